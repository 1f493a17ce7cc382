"""Memory of others: that of the node's ranks, and what comes by DLPack."""
import gc

import numpy as np
import pytest

import dtr
from dtr import _buffers


class Exported:
    """Someone else's tensor: nothing of NumPy but DLPack."""

    def __init__(self, array, device=(1, 0)):
        self.array, self.device = array, device

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **how):
        return self.array.__dlpack__(**how)


def test_shared_and_peer(world):
    mine = world.shared((4, 3), np.int32)
    assert mine.dtype == np.int32 and not mine.any()
    mine[...] = 10 * world.local_rank + np.arange(12).reshape(4, 3)
    world.node_barrier()
    for rank in range(world.local_size):
        theirs = world.peer(mine, rank)
        assert np.array_equal(theirs, 10 * rank + np.arange(12).reshape(4, 3))
        assert np.array_equal(world.peer(mine[2], rank), theirs[2])
    world.node_barrier()
    right = world.peer(mine, (world.local_rank + 1) % world.local_size)
    right[0, 0] = 1000 + world.local_rank  # a store into the neighbour's memory
    world.node_barrier()
    assert mine[0, 0] == 1000 + (world.local_rank - 1) % world.local_size
    world.group.allreduce(mine, out=mine)  # shared memory is memory like other
    world.node_barrier()
    view = mine[1]
    del mine, right, theirs
    gc.collect()
    assert view.shape == (3,)
    assert world.shared((0, 3)).shape == (0, 3)


def test_large_peer(world):
    mine = world.shared(3 * 2**20, np.uint8)
    mine[-1] = world.local_rank
    world.node_barrier()
    last = (world.local_rank + 1) % world.local_size
    assert world.peer(mine, last)[-1] == last and world.peer(mine[-5:], last)[-1] == last
    world.node_barrier()


def test_no_such_rank(world):
    mine = world.shared(3)
    with pytest.raises(dtr.RankError, match="99"):
        world.peer(mine, 99)


def test_dlpack_is_not_copied(group):
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    v = _buffers.view(Exported(array), "x")
    assert v.c.data == dtr._dtr.ffi.cast("void *", array.ctypes.data) and v.shape == (2, 3)
    del v
    given = Exported(array)
    assert group.allreduce(given, out=given) is given
    assert np.array_equal(array, group.size * np.arange(6).reshape(2, 3))
    got = group.allreduce(Exported(np.ones(3)))
    assert isinstance(got, np.ndarray) and (got == group.size).all()


def test_dlpack_that_is_refused(group):
    with pytest.raises(dtr.LayoutError, match=r"x, a Exported of shape \(3, 2\), is not contiguous"):
        group.allreduce(Exported(np.ones((2, 3)).T))
    with pytest.raises(dtr.DeviceError, match=r"x, a Exported, is on DLPack device \(2, 0\)"):
        group.allreduce(Exported(np.ones(3), (2, 0)))
    frozen = np.ones(3)
    frozen.flags.writeable = False
    with pytest.raises(dtr.ArgError, match="x, a Exported, does not give its memory"):
        group.allreduce(Exported(frozen))


def test_torch(group):
    torch = pytest.importorskip("torch")
    x = torch.ones(4, dtype=torch.bfloat16) * (group.rank + 1)
    group.allreduce(x, out=x)
    assert x.tolist() == [float(sum(r + 1 for r in range(group.size)))] * 4
    v = _buffers.view(x, "x")
    assert int(dtr._dtr.ffi.cast("uintptr_t", v.c.data)) == x.data_ptr()
    with pytest.raises(dtr.ArgError, match="requires_grad|require gradient"):
        group.allreduce(torch.ones(3, requires_grad=True))
    with pytest.raises(dtr.ArgError, match="out is needed.*bf16"):
        group.allreduce(x)
