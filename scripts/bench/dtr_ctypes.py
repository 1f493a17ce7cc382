"""The few calls of libdtr that the comparisons with torch need, through ctypes."""
import ctypes

F32 = 10
SUM = 0
MEM_DEFAULT, MEM_SHARED = 0, 2
CPU = (0, 0)


class Device(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("index", ctypes.c_int)]


class Buffer(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("count", ctypes.c_size_t), ("dtype", ctypes.c_int), ("device", Device)]


class Param(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("value", ctypes.c_void_p), ("grad", ctypes.c_void_p),
                ("flags", ctypes.c_uint32)]


class DdpOptions(ctypes.Structure):
    """The first fields; struct_size tells the library that the rest is not there."""
    _fields_ = [("struct_size", ctypes.c_size_t), ("bucket_cap_bytes", ctypes.c_size_t),
                ("first_bucket_bytes", ctypes.c_size_t), ("find_unused", ctypes.c_bool),
                ("static_graph", ctypes.c_bool), ("grad_as_bucket_view", ctypes.c_bool),
                ("no_init_sync", ctypes.c_bool), ("no_broadcast_buffers", ctypes.c_bool)]


class Dtr:
    """A world over MPI, and its group of all ranks."""

    def __init__(self, library):
        # MPI loads its own plug-ins, which look for its symbols among the global ones.
        self.lib = ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
        pointer = ctypes.c_void_p
        for name, result, arguments in (
                ("dtr_last_error_message", ctypes.c_char_p, []),
                ("dtr_version_string", ctypes.c_char_p, []),
                ("dtr_world_group", pointer, [pointer]),
                ("dtr_world_rank", ctypes.c_int, [pointer]),
                ("dtr_world_size", ctypes.c_int, [pointer]),
                ("dtr_alloc", ctypes.c_int, [pointer, Device, ctypes.c_int, ctypes.c_size_t, pointer]),
                ("dtr_free", ctypes.c_int, [pointer, pointer]),
                ("dtr_allreduce", ctypes.c_int, [pointer, Buffer, Buffer, ctypes.c_int, pointer, pointer]),
                ("dtr_barrier", ctypes.c_int, [pointer, pointer, pointer]),
                ("dtr_tensor_empty", ctypes.c_int,
                 [pointer, ctypes.c_int, Device, ctypes.c_int, ctypes.c_int, pointer, pointer]),
                ("dtr_tensor_data", pointer, [pointer]),
                ("dtr_ddp_create", ctypes.c_int, [pointer, pointer, ctypes.c_size_t, pointer, pointer]),
                ("dtr_ddp_grad", pointer, [pointer, ctypes.c_size_t]),
                ("dtr_ddp_grad_ready", ctypes.c_int, [pointer, ctypes.c_size_t, pointer]),
                ("dtr_ddp_backward_end", ctypes.c_int, [pointer, pointer]),
                ("dtr_ddp_destroy", ctypes.c_int, [pointer]),
                ("dtr_world_create", ctypes.c_int, [pointer, pointer]),
                ("dtr_world_destroy", ctypes.c_int, [pointer])):
            function = getattr(self.lib, name)
            function.restype, function.argtypes = result, arguments
        self.world = pointer()
        self.check(self.lib.dtr_world_create(None, ctypes.byref(self.world)))
        self.group = self.lib.dtr_world_group(self.world)
        self.rank = self.lib.dtr_world_rank(self.world)
        self.size = self.lib.dtr_world_size(self.world)

    def check(self, status):
        if status < 0:
            raise RuntimeError(self.lib.dtr_last_error_message().decode())

    def version(self):
        return self.lib.dtr_version_string().decode()

    def alloc(self, nbytes, shared):
        pointer = ctypes.c_void_p()
        self.check(self.lib.dtr_alloc(self.world, Device(*CPU), MEM_SHARED if shared else MEM_DEFAULT, nbytes,
                                      ctypes.byref(pointer)))
        return pointer.value

    def free(self, pointer):
        self.check(self.lib.dtr_free(self.world, pointer))

    def allreduce(self, source, target, count):
        device = Device(*CPU)
        self.check(self.lib.dtr_allreduce(self.group, Buffer(source, count, F32, device),
                                          Buffer(target, count, F32, device), SUM, None, None))

    def barrier(self):
        self.check(self.lib.dtr_barrier(self.group, None, None))

    def slowest(self, value):
        """The maximum over all ranks, by sums alone: each rank fills its own place."""
        mine = (ctypes.c_float * self.size)()
        mine[self.rank] = value
        every = (ctypes.c_float * self.size)()
        self.allreduce(ctypes.addressof(mine), ctypes.addressof(every), self.size)
        return max(every)

    def tensor(self, shape):
        out = ctypes.c_void_p()
        sizes = (ctypes.c_int64 * max(1, len(shape)))(*shape)
        self.check(self.lib.dtr_tensor_empty(self.world, F32, Device(*CPU), MEM_DEFAULT, len(shape), sizes,
                                             ctypes.byref(out)))
        return out.value

    def ddp(self, named_shapes):
        """A module whose gradients lie in its buckets."""
        options = DdpOptions(ctypes.sizeof(DdpOptions), 25 << 20, 1 << 20, False, False, True, True, False)
        params = (Param * len(named_shapes))()
        for param, (name, shape) in zip(params, named_shapes):
            param.name, param.value = name.encode(), self.tensor(shape)
        out = ctypes.c_void_p()
        self.check(self.lib.dtr_ddp_create(self.group, params, len(named_shapes), ctypes.byref(options),
                                           ctypes.byref(out)))
        return out

    def grad_address(self, ddp, i):
        return self.lib.dtr_tensor_data(self.lib.dtr_ddp_grad(ddp, i))

    def close(self):
        self.check(self.lib.dtr_world_destroy(self.world))
