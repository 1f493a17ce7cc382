"""The Distributed Tensor Runtime: collectives and gradient averaging over MPI, on NumPy arrays.

    import numpy as np
    import dtr

    with dtr.World() as world:
        x = np.full(4, world.rank + 1, np.float32)
        total = world.group.allreduce(x)                      # a new array
        world.group.allreduce(x, dtr.MAX, out=x)              # in place
        with world.group.allreduce(x, async_=True) as work:   # compute meanwhile
            ...
        print(work.result)

Run it by `mpirun -n 2 python program.py`. What goes wrong is a dtr.Error, of the class of its status.
"""
from __future__ import annotations

from ._buffers import f32_index, f64_index, i64_index
from ._ddp import DDP
from ._dtr import lib as _lib
from ._errors import (AbortedError, ArgError, CudaError, DeviceError, DtypeError, Error, GraphError, InternalError, IoError,
                      LayoutError, MemoryError, MismatchError, MpiError, NanError, NcclError, OverflowError, RankError,
                      RemoteError, ShapeError, StateError, SystemError, TimeoutError, UnsupportedError)
from ._group import ANY_SOURCE, PEER_NONE, Group, Op
from ._store import Store
from ._work import Work, wait_all
from ._world import World, version_text

SUM, AVG, PROD, MIN, MAX = Op.SUM, Op.AVG, Op.PROD, Op.MIN, Op.MAX
BAND, BOR, BXOR, LAND, LOR, LXOR = Op.BAND, Op.BOR, Op.BXOR, Op.LAND, Op.LOR, Op.LXOR
PREMUL_SUM, MINLOC, MAXLOC = Op.PREMUL_SUM, Op.MINLOC, Op.MAXLOC


def version() -> str:
    """Version of the loaded library, "0.2.0"."""
    number = _lib.dtr_version()
    return "%d.%d.%d" % (number // 10000, number // 100 % 100, number % 100)


__version__ = "%d.%d.%d" % (_lib.DTR_VERSION // 10000, _lib.DTR_VERSION // 100 % 100, _lib.DTR_VERSION % 100)

__all__ = [
    "ANY_SOURCE", "AVG", "AbortedError", "ArgError", "BAND", "BOR", "BXOR", "CudaError", "DDP", "DeviceError", "DtypeError",
    "Error", "GraphError", "Group", "InternalError", "IoError", "LAND", "LOR", "LXOR", "LayoutError", "MAX", "MAXLOC", "MIN",
    "MINLOC", "MemoryError", "MismatchError", "MpiError", "NanError", "NcclError", "Op", "OverflowError", "PEER_NONE",
    "PREMUL_SUM", "PROD", "RankError", "RemoteError", "SUM", "ShapeError", "StateError", "Store", "SystemError", "TimeoutError",
    "UnsupportedError", "Work", "World", "f32_index", "f64_index", "i64_index", "version", "version_text", "wait_all"]
