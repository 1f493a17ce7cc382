"""What is common to all calls: where they come from, and how options are written."""
from __future__ import annotations

import contextlib
import math
import numbers
import os
import sys
from typing import Any, Dict, Optional

from ._dtr import ffi, lib
from ._errors import ArgError

HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_names: Dict[str, Any] = {}


def note_caller() -> None:
    """Let the library know the line of the program that calls: errors, logs and records name it."""
    frame = sys._getframe(1)
    while frame.f_back is not None and (frame.f_code.co_filename.startswith(HERE) or
                                        frame.f_code.co_filename == contextlib.__file__):
        frame = frame.f_back
    file = frame.f_code.co_filename
    name = _names.get(file)
    if name is None:
        name = _names[file] = ffi.new("char[]", os.fsencode(file))
    lib.dtr_call_site_copy(name, frame.f_lineno)


def seconds(value: Optional[float], what: str) -> float:
    """A limit as the library takes it: 0 stands for the default."""
    if value is None:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ArgError("%s is %r; it must be a number of seconds, or None" % (what, value))
    if math.isnan(value) or value <= 0:
        raise ArgError("%s is %r; it must be more than 0 seconds (math.inf: no limit)" % (what, value))
    return float(value)


def whole(value: Any, what: str, low: int = -2**31, high: int = 2**31 - 1) -> int:
    """A whole number of the C interface."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ArgError("%s is %r; it must be a whole number" % (what, value))
    number = value.__index__()
    if not low <= number <= high:
        raise ArgError("%s is %d; it must be in %d..%d" % (what, number, low, high))
    return int(number)


def c_text(value: Optional[str], what: str) -> Any:
    """A string for C, which the caller keeps until its call is over; None is NULL."""
    if value is None:
        return ffi.NULL
    if not isinstance(value, str):
        raise ArgError("%s is %r; it must be a str, or None" % (what, value))
    if "\0" in value:
        raise ArgError("%s is %r; it must not have a zero character" % (what, value))
    return ffi.new("char[]", value.encode())


class Options:
    """An options struct of the C interface, and the texts that it points to."""

    def __init__(self, kind: str, **fields: Any) -> None:
        self.c = ffi.new(kind + " *")
        self.c.struct_size = ffi.sizeof(kind)
        self.keep = list(fields.values())
        for name, value in fields.items():
            setattr(self.c, name, value)
