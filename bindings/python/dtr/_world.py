"""The world: all ranks that were started together."""
from __future__ import annotations

import atexit
import sys
import threading
from types import TracebackType
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Set, Tuple, Type

import numpy as np

from ._call import Options, c_text, note_caller, seconds, whole
from ._dtr import ffi, lib
from ._errors import ArgError, StateError, check, error_of, text_of
from ._group import Group, group_options
from ._store import Bootstrap, Store

if TYPE_CHECKING:
    from ._ddp import DDP

_open: Set["World"] = set()  # a world that is not closed lives as long as the process


def _create_at(bootstrap: Bootstrap, options: Options, raw: Any) -> None:
    options.c.bootstrap = bootstrap.c
    status = lib.dtr_world_create(options.c, raw)
    if bootstrap.raised is not None and not isinstance(bootstrap.raised, Exception):
        raise bootstrap.raised  # KeyboardInterrupt
    if status < 0:
        raise error_of(status) from bootstrap.raised


class World:
    """All ranks that mpirun has started, those of an mpi4py communicator, or those that meet at a store.

    Without `comm` the ranks are those of MPI_COMM_WORLD, and the library initialises MPI where nobody
    has; it then finalises it when the last world is closed, unless `keep_mpi`. With an mpi4py
    communicator the world is over a duplicate of it, and MPI stays the program's. With a `store`
    (see Store) MPI is neither initialised nor called: whatever has started the processes, each says
    which `rank` of `size` it is. One world uses a `prefix` of keys once.

    Making and closing are collective. Use it as a context manager; when an exception leaves the
    block, the groups of the world are aborted first, so that the other ranks get it as AbortedError
    at once. Nothing that only the garbage collector ends calls a collective: a world that is never
    closed stays open until the process ends, which says so on stderr.
    """

    def __init__(self, comm: Any = None, *, timeout: Optional[float] = None, backend: Optional[str] = None,
                 keep_mpi: bool = False, store: Optional[Store] = None, rank: Optional[int] = None, size: Optional[int] = None,
                 prefix: Optional[str] = None) -> None:
        self._lock = threading.Condition()
        self._inside = 0  # calls of other threads that use the handle; under the lock, as what follows
        self._closed = False
        self._works: Dict[int, Tuple[Any, Group, Any]] = {}  # unreleased: a weak reference, the group, what to keep alive
        self._orphans: List[Any] = []  # works that nobody has any more, not released yet
        self._groups: List[Group] = []
        self._modules: List["DDP"] = []
        options = Options("dtr_world_options", timeout_s=seconds(timeout, "timeout"), backend=c_text(backend, "backend"),
                          keep_mpi=bool(keep_mpi))
        raw = ffi.new("dtr_world **")
        if store is not None:
            if comm is not None:
                raise ArgError("comm and store are both given; a world has its ranks from one of them")
            _create_at(Bootstrap(store, rank, size, prefix), options, raw)
        elif rank is not None or size is not None or prefix is not None:
            raise ArgError("rank is %r, size %r, prefix %r, and there is no store, which they belong to" % (rank, size, prefix))
        elif comm is None:
            check(lib.dtr_world_create(options.c, raw))
        else:
            address, size = mpi_handle(comm)
            check(lib.pydtr_world_from_comm(ffi.cast("void *", address), size, options.c, raw))
        self._raw = raw[0]
        self._group = Group(self, lib.dtr_world_group(self._raw))
        self.rank: int = lib.dtr_world_rank(self._raw)
        self.size: int = lib.dtr_world_size(self._raw)
        self.local_rank: int = lib.dtr_world_local_rank(self._raw)
        self.local_size: int = lib.dtr_world_local_size(self._raw)
        self.node: int = lib.dtr_world_node(self._raw)
        self.node_count: int = lib.dtr_world_node_count(self._raw)
        _open.add(self)

    # ---- the handle in use by several threads ----

    def _enter(self) -> Any:
        with self._lock:
            if self._closed:
                raise StateError("the world is closed")
            self._inside += 1
        return self._raw

    def _leave(self) -> None:
        with self._lock:
            self._inside -= 1
            if self._closed:
                self._lock.notify_all()

    def _sweep(self) -> None:
        """Release works that ended after the program had dropped them."""
        with self._lock:
            dropped, self._orphans = self._orphans, []
        done = ffi.new("bool *")
        for handle in dropped:
            lib.dtr_work_test(handle, done)
            if done[0]:
                self._works.pop(int(ffi.cast("uintptr_t", handle)), None)
                lib.dtr_work_release(handle)
            else:
                self._orphans.append(handle)

    def _finish_works(self, group: Optional[Group] = None) -> None:
        """Wait for the works (of a group), whatever comes of them, so that their handles are gone before it is."""
        for key, (reference, owner, _) in list(self._works.items()):
            if group is not None and owner is not group:
                continue
            work = reference()
            if work is not None:
                work._end()
                continue
            raw = ffi.cast("dtr_work *", key)
            lib.dtr_work_wait(raw, -1.0)
            if self._works.pop(key, None) is not None:
                self._orphans = [orphan for orphan in self._orphans if orphan != raw]
                lib.dtr_work_release(raw)

    # ---- what there is ----

    @property
    def group(self) -> Group:
        """The group of all ranks, which ends with the world."""
        return self._group

    @property
    def closed(self) -> bool:
        return self._closed

    def new_group(self, ranks: Optional[Sequence[int]] = None, **options: Any) -> Optional[Group]:
        """Make a group of the listed world ranks (None: all), in that order; None on ranks not listed.

        Collective over the world, or with local_sync=True over the listed ranks. Options are those of
        Group.split: name, desc, tag, backend, timeout, local_sync, deterministic, reproducible, nan_check.
        """
        given = group_options(**options)
        listed = list(range(self.size)) if ranks is None else [whole(r, "ranks[%d]" % i) for i, r in enumerate(ranks)]
        raw = ffi.new("dtr_group **")
        handle = self._enter()
        try:
            check(lib.dtr_group_create(handle, ffi.new("int[]", listed), len(listed), given.c, raw))
        finally:
            self._leave()
        return Group(self, raw[0]) if raw[0] != ffi.NULL else None

    def node_barrier(self) -> None:
        """Wait until all ranks of this node have called it; what they stored into shared arrays is then seen."""
        handle = self._enter()
        try:
            note_caller()
            check(lib.dtr_node_barrier(handle))
        finally:
            self._leave()

    def shared(self, shape: Any, dtype: Any = np.float64) -> np.ndarray[Any, Any]:
        """A new array of zeros in memory that the node's ranks share; it outlives the world if something uses it."""
        from ._shared import shared_array
        return shared_array(self, shape, dtype)

    def peer(self, array: np.ndarray[Any, Any], local_rank: int) -> np.ndarray[Any, Any]:
        """The same part of another rank's shared array, as an array over that rank's memory.

        The ranks make their shared arrays in the same order, and a node_barrier lies between that and this call.
        """
        from ._shared import peer_array
        return peer_array(self, array, local_rank)

    def progress(self) -> None:
        """Let operations move, in programs without a progress thread; see dtr_world_progress."""
        self._simple(lib.dtr_world_progress)

    def dump(self, reason: str) -> None:
        """Write what the flight recorders of this node's ranks hold; see dtr_world_dump."""
        text = c_text(reason, "reason")
        self._simple(lambda handle: lib.dtr_world_dump(handle, text))

    def _simple(self, function: Any) -> None:
        handle = self._enter()
        try:
            check(function(handle))
        finally:
            self._leave()

    # ---- the end ----

    def abort(self, reason: str) -> None:
        """Break all groups of the world: unfinished and later calls on all ranks raise AbortedError with the reason."""
        for module in list(self._modules):
            module._abandon()
        for group in [*self._groups, self._group]:
            if not group.closed:
                group.abort(reason)

    def close(self) -> None:
        """End the world; collective. Modules and groups that are still open are ended first, works are waited for."""
        with self._lock:
            if self._closed:
                return
        failed: Optional[BaseException] = None
        parts: List[Any] = [*reversed(self._modules), *reversed(self._groups)]
        for part in parts:
            try:
                part.close()
            except Exception as error:  # the world is ended all the same
                failed = failed or error
        with self._lock:
            self._closed = True
            self._lock.wait_for(lambda: self._inside == 0)
        self._finish_works()
        _closing.append(self)
        try:
            status = lib.dtr_world_destroy(self._raw)
            failed = failed or (error_of(status) if status < 0 else None)
        finally:
            _closing.remove(self)
            _open.discard(self)
        if failed is not None:
            raise failed

    def __enter__(self) -> "World":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], value: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        if kind is None:
            self.close()
            return
        try:
            if not self._closed:
                self.abort("rank %d left its world by %s: %s" % (self.rank, kind.__name__, value))
            self.close()
        except Exception:
            pass  # the exception that leaves the block is the one to see

    def __repr__(self) -> str:
        return "<dtr.World rank %d of %d%s>" % (self.rank, self.size, ", closed" if self._closed else "")


_closing: List[World] = []


def mpi_handle(comm: Any) -> Tuple[int, int]:
    """Address and size of the MPI_Comm in an mpi4py communicator of the MPI that the library uses."""
    try:
        from mpi4py import MPI
    except ImportError:
        raise ArgError("comm is a %s, and mpi4py is not installed; it must be an mpi4py communicator, or None" % (
            type(comm).__name__)) from None
    if not isinstance(comm, MPI.Comm):
        raise ArgError("comm is %r; it must be an mpi4py communicator, or None" % (comm,))
    theirs, ours = MPI.get_vendor()[0], version_text()
    if any((name == theirs) != (name in ours) for name in ("Open MPI", "MPICH")):
        raise ArgError("mpi4py was built with %s, the library with another MPI (%s); both must use the same" % (theirs, ours))
    return MPI._addressof(comm), MPI._sizeof(MPI.Comm)


def version_text() -> str:
    return text_of(lib.dtr_version_string())


@atexit.register
def _at_exit() -> None:
    """Worlds left open: no operation may write into memory that Python frees now, and the others should know."""
    for world in list(_open):
        print("dtr: rank %d ends with its world open; call close(), or use it as a context manager" % world.rank, file=sys.stderr)
        try:
            world.abort("rank %d ended without closing its world" % world.rank)
            world._finish_works()
        except Exception as error:
            print("dtr: %s" % error, file=sys.stderr)
