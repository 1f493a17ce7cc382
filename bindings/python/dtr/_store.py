"""How the ranks of a world without MPI find each other: by the keys and values of a store of the program."""
from __future__ import annotations

import builtins
from typing import Any, Callable, Optional, Protocol

from ._call import Options, c_text, whole
from ._dtr import ffi, lib
from ._errors import ArgError, text_of


class Store(Protocol):
    """Where ranks put values for each other; torch.distributed.Store, etcd, a folder of files, ... are made one in a few lines.

    Both functions are called inside dtr.World(store=...) only, on the thread that makes the world.
    """

    def put(self, key: str, value: bytes) -> None:
        """Keys have 1 to 63 characters of ASCII, values up to 4096 bytes. Each key is put once."""

    def get(self, key: str, timeout: float) -> bytes:
        """The value of a key, which it waits for; TimeoutError when nobody has put it within so many seconds."""


class Bootstrap:
    """A dtr_bootstrap over a store, and what that has raised."""

    def __init__(self, store: Store, rank: Any, size: Any, prefix: Optional[str]) -> None:
        for name in ("put", "get"):
            if not callable(getattr(store, name, None)):
                raise ArgError("store is %r; it must have put(key, value) and get(key, timeout)" % (store,))
        if rank is None or size is None:
            raise ArgError("%s is None; with a store each rank says which it is, and of how many" % ("rank" if rank is None else "size"))
        self.store = store
        self.raised: Optional[BaseException] = None
        self._handle = ffi.new_handle(self)
        self._options = Options("dtr_bootstrap", rank=whole(rank, "rank"), size=whole(size, "size"), prefix=c_text(prefix, "prefix"),
                                arg=self._handle, put=lib.pydtr_store_put, get=lib.pydtr_store_get)
        self.c = self._options.c


def _guarded(arg: Any, call: Callable[[Store], None]) -> int:
    bootstrap: Bootstrap = ffi.from_handle(arg)
    try:
        call(bootstrap.store)
    except builtins.TimeoutError:
        return int(lib.DTR_ERR_TIMEOUT)  # the library says who is missing
    except BaseException as error:  # raised again once the library has returned
        bootstrap.raised = error
        return int(lib.DTR_ERR_SYSTEM)
    return int(lib.DTR_OK)


@ffi.def_extern(error=lib.DTR_ERR_SYSTEM)
def pydtr_store_put(arg: Any, key: Any, value: Any, nbytes: int) -> int:
    return _guarded(arg, lambda store: store.put(text_of(key), bytes(ffi.buffer(value, nbytes))))


@ffi.def_extern(error=lib.DTR_ERR_SYSTEM)
def pydtr_store_get(arg: Any, key: Any, value: Any, cap: int, nbytes: Any, timeout: float) -> int:
    def get(store: Store) -> None:
        found = bytes(store.get(text_of(key), timeout))
        ffi.memmove(value, found, min(len(found), cap))
        nbytes[0] = len(found)
    return _guarded(arg, get)
