"""Memory that the ranks of a node share, as NumPy arrays."""
from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, List

import numpy as np

from . import _world
from ._buffers import view
from ._call import whole
from ._dtr import ffi, lib
from ._errors import ArgError, UnsupportedError, check, error_of

if TYPE_CHECKING:
    from ._world import World

_kept: List[Any] = []  # blocks whose arrays went while a world was being ended


def free(pointer: Any) -> None:
    """Give a block back; not while a world is being ended, which is the library's rule."""
    if _world._closing:
        _kept.append(pointer)
        return
    lib.dtr_free(ffi.NULL, pointer)
    while _kept:
        lib.dtr_free(ffi.NULL, _kept.pop())


def array_over(owner: Any, nbytes: int, shape: Any, dtype: Any) -> np.ndarray[Any, Any]:
    """An array over memory that the owner frees when the last view of it has gone."""
    flat = np.frombuffer(ffi.buffer(owner, nbytes), dtype=np.uint8)
    array: np.ndarray[Any, Any] = flat.view(dtype).reshape(shape)
    return array


def shared_array(world: "World", shape: Any, dtype: Any) -> np.ndarray[Any, Any]:
    sizes = tuple(whole(n, "shape", 0, 2**62) for n in (shape if isinstance(shape, (tuple, list)) else (shape,)))
    kind = np.dtype(dtype)
    if kind.hasobject:
        raise ArgError("dtype is %s; Python objects cannot lie in shared memory" % kind)
    nbytes = math.prod(sizes) * kind.itemsize
    raw = ffi.new("void **")
    handle = world._enter()
    try:
        check(lib.dtr_alloc(handle, {"type": lib.DTR_CPU, "index": 0}, lib.DTR_MEM_SHARED, nbytes, raw))
        check(lib.dtr_retain(handle, raw[0]))
    finally:
        world._leave()
    owner = ffi.gc(ffi.cast("char *", raw[0]), free)
    if nbytes == 0:
        return np.zeros(sizes, kind)
    array = array_over(owner, nbytes, sizes, kind)
    array.reshape(-1).view(np.uint8)[...] = 0
    return array


def peer_array(world: "World", array: Any, local_rank: int) -> np.ndarray[Any, Any]:
    if not isinstance(array, np.ndarray) or array.nbytes == 0:
        raise ArgError("array is %r; it must be an array of World.shared, or a part of one, that is not empty" % (array,))
    v = view(array, "array")
    handle = world._enter()
    try:
        there = lib.dtr_peer_pointer(handle, v.c.data, whole(local_rank, "local_rank"))
        if there == ffi.NULL:
            status = ffi.new("dtr_error *")
            status.struct_size = ffi.sizeof("dtr_error")
            lib.dtr_last_error(status)
            raise error_of(status.status)
        if there == v.c.data:
            return array
        # The library's own mapping ends with the world, and the array may be used longer.
        again = lib.pydtr_map_again(there, array.nbytes)
    finally:
        world._leave()
    if again == ffi.NULL:
        raise UnsupportedError("the system does not map shared memory twice: %s" % ffi.errno)
    size = array.nbytes
    owner = ffi.gc(ffi.cast("char *", again), lambda pointer: lib.pydtr_unmap(pointer, size))
    return array_over(owner, size, array.shape, array.dtype)
