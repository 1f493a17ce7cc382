"""Groups of ranks, and the operations they do together."""
from __future__ import annotations

import enum
from types import TracebackType
from typing import TYPE_CHECKING, Any, List, Optional, Sequence, Tuple, Type

from ._buffers import View, c_counts, result_like, view
from ._call import Options, c_text, note_caller, seconds, whole
from ._dtr import ffi, lib
from ._errors import ArgError, ShapeError, StateError, check, text_of
from ._work import Work

if TYPE_CHECKING:
    from typing_extensions import TypedDict, Unpack

    from ._world import World

    class Call(TypedDict, total=False):
        """What every operation takes."""
        timeout: Optional[float]  #: seconds; None: the group's
        label: Optional[str]  #: shown in errors, logs and records
        async_: bool  #: return a Work at once instead of the result


class Op(enum.IntEnum):
    """Operators of reductions."""
    SUM = lib.DTR_SUM
    AVG = lib.DTR_AVG
    PROD = lib.DTR_PROD
    MIN = lib.DTR_MIN
    MAX = lib.DTR_MAX
    BAND = lib.DTR_BAND
    BOR = lib.DTR_BOR
    BXOR = lib.DTR_BXOR
    PREMUL_SUM = lib.DTR_PREMUL_SUM
    LAND = lib.DTR_LAND
    LOR = lib.DTR_LOR
    LXOR = lib.DTR_LXOR
    MINLOC = lib.DTR_MINLOC
    MAXLOC = lib.DTR_MAXLOC


ANY_SOURCE: int = lib.DTR_ANY_SOURCE
PEER_NONE: int = lib.DTR_PEER_NONE


def group_options(*, name: Optional[str] = None, desc: Optional[str] = None, tag: Optional[str] = None,
                  backend: Optional[str] = None, timeout: Optional[float] = None, local_sync: bool = False,
                  deterministic: bool = False, reproducible: bool = False, nan_check: Optional[bool] = None) -> Options:
    return Options("dtr_group_options", name=c_text(name, "name"), desc=c_text(desc, "desc"), tag=c_text(tag, "tag"),
                   backend=c_text(backend, "backend"), timeout_s=seconds(timeout, "timeout"), local_sync=bool(local_sync),
                   deterministic=bool(deterministic), reproducible=bool(reproducible),
                   nan_check=0 if nan_check is None else 1 if nan_check else -1)


class Group:
    """Ranks that call operations together, each of them in the same order.

    Every operation takes NumPy arrays, or objects with DLPack or the buffer protocol in host memory, contiguous and
    without a copy. `out` is where the result goes: a new array where it is not given, and the input itself where the
    operation is to work in place. All operations also take

    - timeout: seconds until it fails, None for the group's;
    - label: a text for errors, logs and records;
    - async_=True: return a Work at once; its result is what the call returns otherwise.

    They release the interpreter while they wait. What goes wrong is a dtr.Error.
    """

    def __init__(self, world: "World", raw: Any) -> None:
        self._world = world
        self._raw = raw
        self._closed = False
        self.name: str = text_of(lib.dtr_group_name(raw))
        self.rank: int = lib.dtr_group_rank(raw)
        self.size: int = lib.dtr_group_size(raw)
        self._own = raw != lib.dtr_world_group(world._raw)
        if self._own:
            world._groups.append(self)

    # ---- what there is ----

    @property
    def world(self) -> "World":
        return self._world

    @property
    def closed(self) -> bool:
        return self._closed or self._world.closed

    @property
    def seq(self) -> int:
        """Collectives started so far."""
        return int(self._query(lib.dtr_group_seq))

    @property
    def backend(self) -> str:
        """What serves the group, as "cpu:shm,cpu:mpi"."""
        info = Options("dtr_group_info")
        check(self._query(lambda raw: lib.dtr_group_get_info(raw, info.c)))
        return text_of(info.c.backend)

    def world_rank(self, rank: int) -> int:
        """World rank of a group rank, -1 where there is none."""
        number = whole(rank, "rank")
        return int(self._query(lambda raw: lib.dtr_group_world_rank(raw, number)))

    def rank_of(self, world_rank: int) -> int:
        """Group rank of a world rank, -1 where it is no member."""
        number = whole(world_rank, "world_rank")
        return int(self._query(lambda raw: lib.dtr_group_rank_of(raw, number)))

    def _enter(self) -> Any:
        self._world._enter()
        if self._closed:
            self._world._leave()
            raise StateError("group '%s' is closed" % self.name)
        return self._raw

    def _query(self, function: Any) -> Any:
        raw = self._enter()
        try:
            return function(raw)
        finally:
            self._world._leave()

    # ---- other groups, and the end ----

    def split(self, color: int, key: int = 0, **options: Any) -> Optional["Group"]:
        """Make groups of the ranks with the same color, ordered by key, then rank; None where color is negative.

        Options: name, desc, tag, backend (as "cpu:mpi"), timeout, local_sync, deterministic, reproducible, nan_check.
        """
        given = group_options(**options)
        made = ffi.new("dtr_group **")
        number, order = whole(color, "color"), whole(key, "key")
        check(self._query(lambda raw: lib.dtr_group_split(raw, number, order, given.c, made)))
        return Group(self._world, made[0]) if made[0] != ffi.NULL else None

    def set_timeout(self, timeout: Optional[float]) -> None:
        """Change the limit of later operations on this rank."""
        limit = seconds(timeout, "timeout")
        check(self._query(lambda raw: lib.dtr_group_set_timeout(raw, limit)))

    def abort(self, reason: str) -> None:
        """Break the group on all ranks: unfinished and later operations raise AbortedError with the reason."""
        text = c_text(reason, "reason")
        check(self._query(lambda raw: lib.dtr_group_abort(raw, text)))

    def close(self) -> None:
        """End the group; collective over its members. The world's own group ends with the world."""
        if not self._own:
            raise ArgError("group '%s' is the world's own: close the world" % self.name)
        if self.closed:
            return
        try:
            status = self._query(lib.dtr_group_destroy)
        finally:
            self._closed = True
            self._world._groups.remove(self)
        self._world._finish_works(self)
        check(status)

    def __enter__(self) -> "Group":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], value: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        if kind is not None and not self.closed:
            try:
                self.abort("an exception left the block of group '%s': %s: %s" % (self.name, kind.__name__, value))
                self.close()
            except Exception:
                pass  # the one that leaves the block is the one to see
        elif self._own:
            self.close()

    def __repr__(self) -> str:
        return "<dtr.Group '%s' rank %d of %d%s>" % (self.name, self.rank, self.size, ", closed" if self.closed else "")

    # ---- how every operation is called ----

    def _run(self, function: Any, arguments: Tuple[Any, ...], result: Any, keep: Any, *, timeout: Optional[float] = None,
             label: Optional[str] = None, async_: bool = False, factor: Optional[float] = None) -> Any:
        world = self._world
        options: Any = ffi.NULL
        if timeout is not None or label is not None or factor is not None:
            given = Options("dtr_coll_options", timeout_s=seconds(timeout, "timeout"), label=c_text(label, "label"),
                            premul=0.0 if factor is None else float(factor))
            options, keep = given.c, (keep, given)
        work = ffi.new("dtr_work **") if async_ else ffi.NULL
        raw = self._enter()
        try:
            if world._orphans:
                world._sweep()
            note_caller()
            check(function(raw, *arguments, options, work))
            return Work(self, work[0], result, keep) if async_ else result
        finally:
            world._leave()

    def _pair(self, x: Any, out: Any, shape: Optional[Tuple[int, ...]] = None) -> Tuple[View, View]:
        source = view(x, "x")
        if out is None:
            return source, result_like(source, source.shape if shape is None else shape, "out")
        return source, source if out is x else view(out, "out")

    def _by_rank(self, shape: Tuple[int, ...], count: int) -> Tuple[int, ...]:
        """Shape of one rank's part, of the first dimension where that can be."""
        if shape and shape[0] % self.size == 0:
            return (shape[0] // self.size, *shape[1:])
        if count % self.size != 0:
            raise ShapeError("x has %d elements (shape %s), which %d ranks cannot share evenly" % (count, shape, self.size))
        return (count // self.size,)

    # ---- collectives ----

    def barrier(self, **call: "Unpack[Call]") -> Any:
        """Wait until all members have come."""
        return self._run(lib.dtr_barrier, (), None, None, **call)

    def broadcast(self, x: Any, root: int = 0, **call: "Unpack[Call]") -> Any:
        """Copy the root's elements into x of all other ranks; returns x."""
        v = view(x, "x")
        return self._run(lib.dtr_broadcast, (v.c, whole(root, "root")), x, v, **call)

    def allreduce(self, x: Any, op: Op = Op.SUM, *, out: Any = None, factor: Optional[float] = None,
                  **call: "Unpack[Call]") -> Any:
        """Reduce x of all ranks into out of all ranks, bitwise the same everywhere. factor is that of PREMUL_SUM."""
        return self._reduction(lib.dtr_allreduce, x, op, out, factor, call)

    def scan(self, x: Any, op: Op = Op.SUM, *, out: Any = None, factor: Optional[float] = None, **call: "Unpack[Call]") -> Any:
        """Reduce x of the ranks up to this one, in rank order."""
        return self._reduction(lib.dtr_scan, x, op, out, factor, call)

    def exscan(self, x: Any, op: Op = Op.SUM, *, out: Any = None, factor: Optional[float] = None, **call: "Unpack[Call]") -> Any:
        """Reduce x of the ranks below this one; rank 0 gets the identity of the operator."""
        return self._reduction(lib.dtr_exscan, x, op, out, factor, call)

    def _reduction(self, function: Any, x: Any, op: Op, out: Any, factor: Optional[float], call: Any) -> Any:
        a, b = self._pair(x, out)
        return self._run(function, (a.c, b.c, whole(op, "op")), b.given, (a, b), factor=factor, **call)

    def reduce(self, x: Any, op: Op = Op.SUM, root: int = 0, *, out: Any = None, factor: Optional[float] = None,
               **call: "Unpack[Call]") -> Any:
        """Reduce x of all ranks into out of the root; returns that there, and None elsewhere."""
        there = root == self.rank
        a, b = self._pair(x, out if there else x)
        return self._run(lib.dtr_reduce, (a.c, b.c, whole(op, "op"), whole(root, "root")), b.given if there else None, (a, b),
                         factor=factor, **call)

    def allgather(self, x: Any, *, out: Any = None, **call: "Unpack[Call]") -> Any:
        """Put x of all ranks one behind the other into out of all ranks; a new out has a first dimension of the ranks."""
        a = view(x, "x")
        b = result_like(a, (self.size, *a.shape), "out") if out is None else view(out, "out")
        return self._run(lib.dtr_allgather, (a.c, b.c), b.given, (a, b), **call)

    def allgatherv(self, x: Any, counts: Sequence[int], *, out: Any = None, **call: "Unpack[Call]") -> Any:
        """As allgather with counts[i] elements from rank i, the same on all ranks; a new out has one dimension."""
        n = c_counts(counts, self.size, "counts")
        a, b = self._pair(x, out, (sum(n),))
        return self._run(lib.dtr_allgatherv, (a.c, b.c, n), b.given, (a, b, n), **call)

    def gather(self, x: Any, root: int = 0, *, out: Any = None, **call: "Unpack[Call]") -> Any:
        """Put x of all ranks one behind the other into out of the root; returns that there, and None elsewhere."""
        a, b, there = self._gathered(x, root, out, (self.size, *view(x, "x").shape))
        return self._run(lib.dtr_gather, (a.c, b.c, whole(root, "root")), b.given if there else None, (a, b), **call)

    def gatherv(self, x: Any, counts: Optional[Sequence[int]] = None, root: int = 0, *, out: Any = None,
                **call: "Unpack[Call]") -> Any:
        """As gather with counts[i] elements from rank i, read at the root only."""
        n = ffi.NULL if counts is None and root != self.rank else c_counts(counts, self.size, "counts")
        a, b, there = self._gathered(x, root, out, (0 if n == ffi.NULL else sum(n),))
        return self._run(lib.dtr_gatherv, (a.c, b.c, n, whole(root, "root")), b.given if there else None, (a, b, n), **call)

    def _gathered(self, x: Any, root: int, out: Any, shape: Tuple[int, ...]) -> Tuple[View, View, bool]:
        a, there = view(x, "x"), root == self.rank
        if there:
            return a, result_like(a, shape, "out") if out is None else view(out, "out"), True
        return a, View(None, 0, (0,), 0, a.code, False, None, None), False

    def scatter(self, x: Any, root: int = 0, *, out: Any, **call: "Unpack[Call]") -> Any:
        """Give rank i block i of the root's x in its out; x is None on the others."""
        a, b = self._scattered(x, root, out)
        return self._run(lib.dtr_scatter, (a.c, b.c, whole(root, "root")), b.given, (a, b), **call)

    def scatterv(self, x: Any, counts: Optional[Sequence[int]] = None, root: int = 0, *, out: Any,
                 **call: "Unpack[Call]") -> Any:
        """As scatter with counts[i] elements to rank i, read at the root only."""
        n = ffi.NULL if counts is None and root != self.rank else c_counts(counts, self.size, "counts")
        a, b = self._scattered(x, root, out)
        return self._run(lib.dtr_scatterv, (a.c, n, b.c, whole(root, "root")), b.given, (a, b, n), **call)

    def _scattered(self, x: Any, root: int, out: Any) -> Tuple[View, View]:
        b = view(out, "out")
        return view(x, "x") if root == self.rank else View(None, 0, (0,), 0, b.code, False, None, None), b

    def reduce_scatter(self, x: Any, op: Op = Op.SUM, *, out: Any = None, factor: Optional[float] = None,
                       **call: "Unpack[Call]") -> Any:
        """Reduce x of all ranks and leave part i of it on rank i; a new out has this rank's part of the first dimension."""
        a = view(x, "x")
        b = result_like(a, self._by_rank(a.shape, a.count), "out") if out is None else view(out, "out")
        return self._run(lib.dtr_reduce_scatter, (a.c, b.c, whole(op, "op")), b.given, (a, b), factor=factor, **call)

    def reduce_scatterv(self, x: Any, counts: Sequence[int], op: Op = Op.SUM, *, out: Any = None,
                        factor: Optional[float] = None, **call: "Unpack[Call]") -> Any:
        """As reduce_scatter with counts[i] elements for rank i, the same on all ranks."""
        n = c_counts(counts, self.size, "counts")
        a = view(x, "x")
        b = result_like(a, (n[self.rank],), "out") if out is None else view(out, "out")
        return self._run(lib.dtr_reduce_scatterv, (a.c, n, b.c, whole(op, "op")), b.given, (a, b, n), factor=factor, **call)

    def alltoall(self, x: Any, *, out: Any = None, **call: "Unpack[Call]") -> Any:
        """Send block j of x to rank j, which puts it into its block of this rank."""
        a, b = self._pair(x, out)
        return self._run(lib.dtr_alltoall, (a.c, b.c), b.given, (a, b), **call)

    def alltoallv(self, x: Any, in_counts: Sequence[int], out_counts: Sequence[int], *, out: Any = None,
                  **call: "Unpack[Call]") -> Any:
        """As alltoall with in_counts[j] elements to and out_counts[j] from rank j; a new out has one dimension."""
        to, of = c_counts(in_counts, self.size, "in_counts"), c_counts(out_counts, self.size, "out_counts")
        a, b = self._pair(x, out, (sum(of),))
        return self._run(lib.dtr_alltoallv, (a.c, to, b.c, of), b.given, (a, b, to, of), **call)

    # ---- exact sums: the same bits however the elements are dealt to ranks ----

    def sum(self, x: Any, **call: "Unpack[Call]") -> float:
        """Sum of all elements of all ranks, rounded once; counts may differ. It takes no async_."""
        return self._number(lib.dtr_sum, (view(x, "x"),), call)

    def dot(self, a: Any, b: Any, **call: "Unpack[Call]") -> float:
        """Sum of a[i] * b[i] over all elements of all ranks. It takes no async_."""
        return self._number(lib.dtr_dot, (view(a, "a"), view(b, "b")), call)

    def norm2(self, x: Any, **call: "Unpack[Call]") -> float:
        """Euclidean norm of all elements of all ranks. It takes no async_."""
        return self._number(lib.dtr_norm2, (view(x, "x"),), call)

    def _number(self, function: Any, views: Tuple[View, ...], call: Any) -> float:
        if call.pop("async_", False):
            raise ArgError("async_ is True; an exact sum returns when it is there")
        number = ffi.new("double *")
        self._run(lambda raw, *arguments: function(raw, *arguments[:-1], number), tuple(v.c for v in views), None, views, **call)
        return float(number[0])

    # ---- messages ----

    def send(self, x: Any, peer: int, tag: int = 0, **call: "Unpack[Call]") -> Any:
        """Send x to a group rank, or nothing to PEER_NONE."""
        v = view(x, "x")
        return self._run(lib.dtr_send, (v.c, whole(peer, "peer"), whole(tag, "tag")), None, v, **call)

    def recv(self, out: Any, peer: int = ANY_SOURCE, tag: int = 0, **call: "Unpack[Call]") -> Any:
        """Receive into out from a group rank or ANY_SOURCE, and return it; the source of a Work says who sent."""
        v = view(out, "out")
        return self._run(lib.dtr_recv, (v.c, whole(peer, "peer"), whole(tag, "tag")), out, v, **call)

    def batch(self, messages: Sequence[Tuple[Any, ...]], **call: "Unpack[Call]") -> Any:
        """Start messages together: a list of ("send", x, peer) and ("recv", out, peer), each with a tag or without."""
        entries = ffi.new("dtr_p2p[]", len(messages))
        views: List[View] = []
        for i, (entry, message) in enumerate(zip(entries, messages)):
            what = "messages[%d]" % i
            if not isinstance(message, tuple) or len(message) not in (3, 4) or message[0] not in ("send", "recv"):
                raise ArgError("%s is %r; it must be (\"send\", x, peer), (\"recv\", out, peer), or one with a tag" % (what, message))
            views.append(view(message[1], what))
            entry.is_send, entry.buf, entry.peer = message[0] == "send", views[-1].c, whole(message[2], what + "'s peer")
            entry.tag = whole(message[3], what + "'s tag") if len(message) == 4 else 0
        return self._run(lib.dtr_batch_p2p, (entries, len(messages)), None, (entries, views), **call)
