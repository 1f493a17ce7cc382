"""The C interface itself, as cffi gives it; made by build_dtr.py."""
from typing import Any

ffi: Any
lib: Any
