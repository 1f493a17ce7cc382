"""Memory of the program, as the library takes it: NumPy arrays, and whatever has DLPack or the buffer protocol."""
from __future__ import annotations

import ctypes
from typing import Any, Dict, Optional, Tuple

import numpy as np

from ._dtr import ffi, lib
from ._errors import ArgError, DeviceError, DtypeError, LayoutError, check

#: Pairs for MINLOC and MAXLOC, as NumPy's structured types.
f32_index = np.dtype([("value", np.float32), ("index", np.int64)], align=True)
f64_index = np.dtype([("value", np.float64), ("index", np.int64)], align=True)
i64_index = np.dtype([("value", np.int64), ("index", np.int64)], align=True)

DTYPES: Dict[Any, int] = {
    np.dtype(kind): getattr(lib, "DTR_" + name) for kind, name in (
        ("?", "BOOL"), ("u1", "U8"), ("i1", "I8"), ("i2", "I16"), ("i4", "I32"), ("i8", "I64"), ("u2", "U16"), ("u4", "U32"),
        ("u8", "U64"), ("f2", "F16"), ("f4", "F32"), ("f8", "F64"), ("c8", "C64"), ("c16", "C128"))}
DTYPES.update({f32_index: lib.DTR_F32_INDEX, f64_index: lib.DTR_F64_INDEX, i64_index: lib.DTR_I64_INDEX})
# What the package ml_dtypes adds to NumPy.
NAMED = {"bfloat16": lib.DTR_BF16, "float8_e4m3fn": lib.DTR_F8E4M3, "float8_e5m2": lib.DTR_F8E5M2}
KINDS = {code: dtype for dtype, code in DTYPES.items()}

CPU, CPU_PINNED = 1, 3  # of DLPack's devices those that are host memory


def dtype_code(dtype: Any, what: str) -> int:
    """The library's element type for one of NumPy's."""
    dtype = np.dtype(dtype)
    code = DTYPES.get(dtype) if dtype.isnative else None
    if code is None:
        code = NAMED.get(dtype.name)
    if code is None:
        raise DtypeError("%s has element type %s; the library has %s" % (
            what, dtype, ", ".join([d.name for d in DTYPES if d.fields is None] + list(NAMED)) + ", and pairs as dtr.f32_index"))
    return code


class View:
    """One argument: its address, count and type, the C buffer of it, and what keeps the memory alive."""

    __slots__ = ("given", "array", "shape", "code", "count", "buffer", "keep")

    def __init__(self, given: Any, address: int, shape: Tuple[int, ...], count: int, code: int, readonly: bool,
                 array: Optional[np.ndarray[Any, Any]], keep: Any) -> None:
        self.given, self.array, self.shape, self.code, self.count, self.keep = given, array, shape, code, count, keep
        self.buffer = ffi.new("dtr_buffer *")
        self.buffer.data = ffi.cast("void *", address)
        self.buffer.count = count
        self.buffer.dtype = code
        self.buffer.access = lib.DTR_READ_ONLY if readonly else 0

    @property
    def c(self) -> Any:
        return self.buffer[0]


def view(x: Any, what: str) -> View:
    """See an argument's memory, without a copy."""
    if not isinstance(x, np.ndarray):
        if hasattr(x, "__dlpack__") and hasattr(x, "__dlpack_device__"):
            return view_of_dlpack(x, what)
        try:
            array = np.asarray(memoryview(x))
        except TypeError:
            raise ArgError("%s is a %s; it must be a NumPy array, or have DLPack (__dlpack__) or the buffer protocol" % (
                what, type(x).__name__)) from None
    else:
        array = x
    if not array.flags.c_contiguous:
        raise LayoutError("%s, an array of shape %s with strides %s, is not contiguous in C order; numpy.ascontiguousarray makes "
                          "a copy that is" % (what, array.shape, array.strides))
    address = array.__array_interface__["data"][0]
    return View(x, address, array.shape, array.size, dtype_code(array.dtype, what), not array.flags.writeable, array, x)


def capsule_pointer(capsule: Any) -> int:
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return int(get(capsule, b"dltensor"))


def take_capsule(capsule: Any) -> None:
    rename = ctypes.pythonapi.PyCapsule_SetName
    rename.argtypes = [ctypes.py_object, ctypes.c_char_p]
    rename(capsule, b"used_dltensor")  # its tensor is the library's now


def view_of_dlpack(x: Any, what: str) -> View:
    """The memory of another library's tensor, through the C library, which knows every element type."""
    device = x.__dlpack_device__()
    if device[0] not in (CPU, CPU_PINNED):
        raise DeviceError("%s, a %s, is on DLPack device %s; this package takes host memory only" % (what, type(x).__name__, device))
    try:
        capsule = x.__dlpack__()
    except (BufferError, RuntimeError, TypeError) as error:
        raise ArgError("%s, a %s, does not give its memory: %s" % (what, type(x).__name__, error)) from error
    tensor = ffi.new("dtr_tensor **")
    check(lib.dtr_tensor_from_dlpack(ffi.cast("struct DLManagedTensor *", capsule_pointer(capsule)), tensor))
    take_capsule(capsule)
    owner = ffi.gc(tensor[0], lib.dtr_tensor_release)
    shape = tuple(lib.dtr_tensor_shape(owner)[i] for i in range(lib.dtr_tensor_ndim(owner)))
    if not lib.dtr_tensor_is_contiguous(owner):
        raise LayoutError("%s, a %s of shape %s, is not contiguous in C order; make a contiguous copy of it first" % (
            what, type(x).__name__, shape))
    address = int(ffi.cast("uintptr_t", lib.dtr_tensor_data(owner)))
    return View(x, address, shape, lib.dtr_tensor_numel(owner), lib.dtr_tensor_dtype(owner), False, None, (x, owner))


def result_like(source: View, shape: Tuple[int, ...], what: str) -> View:
    """A new array for a result, of the source's element type."""
    if source.array is not None:
        dtype = source.array.dtype
    elif source.code in KINDS:
        dtype = KINDS[source.code]
    else:
        raise ArgError("%s is needed: NumPy has no element type %s for a new array" % (
            what, ffi.string(lib.dtr_dtype_name(source.code)).decode()))
    return view(np.empty(shape, dtype), what)


def c_counts(values: Any, size: int, what: str) -> Any:
    """Elements for each rank of a group."""
    try:
        numbers = [int(v) for v in values]
    except (TypeError, ValueError):
        raise ArgError("%s is %r; it must be a sequence of %d whole numbers" % (what, values, size)) from None
    if len(numbers) != size:
        raise ArgError("%s has %d numbers; the group has %d ranks" % (what, len(numbers), size))
    for i, n in enumerate(numbers):
        if n < 0:
            raise ArgError("%s[%d] is %d; it must not be negative" % (what, i, n))
    return ffi.new("size_t[]", numbers)
