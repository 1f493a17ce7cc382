"""One exception for each status that is an error, all of them dtr.Error."""
from __future__ import annotations

import builtins
from typing import Any, Dict, Optional, Type

from ._dtr import ffi, lib


def text_of(c_string: Any) -> str:
    return ffi.string(c_string).decode(errors="replace") if c_string != ffi.NULL else ""


class Error(Exception):
    """A call that failed; str() is the library's own text, which names rank, operation and call site.

    `status` is the number of the C interface, `name` its name, `hint` what usually helps, and
    `breaks` what the error broke: "nothing", "operation", "group" or "process".
    """

    status: int = lib.DTR_ERR_INTERNAL

    @property
    def name(self) -> str:
        return text_of(lib.dtr_status_name(self.status))

    @property
    def hint(self) -> str:
        return text_of(lib.dtr_status_hint(self.status))

    @property
    def breaks(self) -> str:
        return {lib.DTR_CLASS_OP: "operation", lib.DTR_CLASS_GROUP: "group", lib.DTR_CLASS_PROCESS: "process"}.get(
            lib.dtr_status_class(self.status), "nothing")


class ArgError(Error, ValueError):
    """An argument is wrong; the text names it and its value."""
    status = lib.DTR_ERR_ARG


class DtypeError(Error, TypeError):
    """An element type that the call does not take."""
    status = lib.DTR_ERR_DTYPE


class DeviceError(Error):
    """Memory that is not where it has to be."""
    status = lib.DTR_ERR_DEVICE


class ShapeError(Error, ValueError):
    """Sizes that do not fit each other."""
    status = lib.DTR_ERR_SHAPE


class LayoutError(Error, ValueError):
    """An array that is not contiguous."""
    status = lib.DTR_ERR_LAYOUT


class RankError(Error, ValueError):
    """A rank that is none of the group or world."""
    status = lib.DTR_ERR_RANK


class StateError(Error, RuntimeError):
    """Not now: closed, inside a callback, an iteration is open."""
    status = lib.DTR_ERR_STATE


class UnsupportedError(Error, NotImplementedError):
    """Nothing in this build serves the call."""
    status = lib.DTR_ERR_UNSUPPORTED


class OverflowError(Error, builtins.OverflowError):
    """More bytes than memory can hold."""
    status = lib.DTR_ERR_OVERFLOW


class MemoryError(Error, builtins.MemoryError):
    """No memory left (DTR_ERR_NOMEM)."""
    status = lib.DTR_ERR_NOMEM


class IoError(Error):
    """A file could not be read or written."""
    status = lib.DTR_ERR_IO


class MismatchError(Error):
    """Ranks disagree on the operation; the group is broken."""
    status = lib.DTR_ERR_MISMATCH


class TimeoutError(Error, builtins.TimeoutError):
    """A limit has passed; the text says who is missing. The group is broken."""
    status = lib.DTR_ERR_TIMEOUT


class AbortedError(Error):
    """Some rank has aborted the group, for the reason in the text."""
    status = lib.DTR_ERR_ABORTED


class RemoteError(Error):
    """Another rank failed or died."""
    status = lib.DTR_ERR_REMOTE


class GraphError(Error):
    """DDP: the set of used parameters changed."""
    status = lib.DTR_ERR_GRAPH


class NanError(Error, ArithmeticError):
    """Not a number where that is checked."""
    status = lib.DTR_ERR_NAN


class MpiError(Error):
    """MPI failed."""
    status = lib.DTR_ERR_MPI


class CudaError(Error):
    """CUDA failed."""
    status = lib.DTR_ERR_CUDA


class NcclError(Error):
    """NCCL failed."""
    status = lib.DTR_ERR_NCCL


class SystemError(Error, builtins.SystemError):
    """The operating system refused something."""
    status = lib.DTR_ERR_SYSTEM


class InternalError(Error):
    """The library contradicts itself: please report it."""
    status = lib.DTR_ERR_INTERNAL


CLASSES: Dict[int, Type[Error]] = {c.status: c for c in Error.__subclasses__()}


def error_of(status: int, text: Optional[str] = None) -> Error:
    """The exception for a status, with the text of this thread's last error where none is given."""
    if text is None:
        text = text_of(lib.dtr_last_error_message()) or text_of(lib.dtr_status_text(status))
    return CLASSES.get(status, Error)(text)


def check(status: int) -> int:
    """The status, if it is no error."""
    if status < 0:
        raise error_of(status)
    return status
