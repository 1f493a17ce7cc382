"""Operations under way."""
from __future__ import annotations

import asyncio
import os
import threading
import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generator, List, Optional, Tuple, Type

from ._call import seconds
from ._dtr import ffi, lib
from ._errors import ArgError, MemoryError, StateError, check, error_of, text_of

if TYPE_CHECKING:
    from ._group import Group


class Work:
    """An operation that has been started with async_=True.

    It is waited for by wait(), by the end of its with block, or by `await`, which lets the loop of asyncio
    go on. Its arrays are kept alive until it has ended, also when the work itself is dropped. When an
    exception leaves its with block while it is unfinished, its group is aborted, as others may wait.
    """

    def __init__(self, group: "Group", raw: Any, result: Any, keep: Any) -> None:
        self._group = group
        self._raw = raw
        self._result = result
        self._mutex = threading.Lock()  # the handle and what follows, in use by several threads
        self._status: Optional[int] = None  # final
        self._text = ""
        self._seq: int = lib.dtr_work_seq(raw)
        self._source, self._duration = -1, float("nan")
        self._key = int(ffi.cast("uintptr_t", raw))
        group._world._works[self._key] = (weakref.ref(self), group, keep)

    def __del__(self) -> None:
        raw = getattr(self, "_raw", None)  # no call here: it may be any moment of any other one
        if raw is not None:
            self._group._world._orphans.append(raw)

    def _settle(self, status: int) -> None:
        """Note the end, with the mutex held, and give the handle and the arrays back."""
        self._status = status
        self._text = text_of(lib.dtr_last_error_message()) if status < 0 else ""
        self._source, self._duration = lib.dtr_work_source(self._raw), lib.dtr_work_duration(self._raw)
        raw, self._raw = self._raw, None
        lib.dtr_work_release(raw)
        self._group._world._works.pop(self._key, None)

    def _end(self, limit: float = -1.0) -> None:
        with self._mutex:
            if self._raw is not None:
                self._settle(lib.dtr_work_wait(self._raw, limit))

    def wait(self, timeout: Optional[float] = None) -> Any:
        """Wait for the operation and return its result; raises its error, each time.

        A limit that passes fails the operation on all ranks and breaks the group; None is the group's.
        """
        limit = -1.0 if timeout is None else seconds(timeout, "timeout")
        self._end(limit)
        return self.result

    @property
    def result(self) -> Any:
        """The array that holds the result, or None where this rank has none; only when it is there."""
        if self._status is None and not self.done():
            raise StateError("the operation is unfinished: wait for it first")
        if self._status is not None and self._status < 0:
            raise error_of(self._status, self._text)
        return self._result

    def done(self) -> bool:
        """Whether the operation has ended, well or not."""
        if self._status is not None:
            return True
        if not self._mutex.acquire(blocking=False):
            return self._status is not None  # another thread waits for it
        try:
            if self._raw is None:
                return True
            done = ffi.new("bool *")
            status = lib.dtr_work_test(self._raw, done)
            if done[0]:
                self._settle(status)
            return bool(done[0])
        finally:
            self._mutex.release()

    @property
    def seq(self) -> int:
        """Number of the operation in its group, from 1."""
        return self._seq

    @property
    def source(self) -> int:
        """Group rank that a completed receive came from, else -1."""
        self.done()
        return self._source

    @property
    def duration(self) -> float:
        """Seconds from the call to the end of the operation; nan before."""
        self.done()
        return self._duration

    def __enter__(self) -> "Work":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], value: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        if kind is None:
            self.wait()
        elif not self.done():
            try:
                self._group.abort("an exception left the block of a work: %s: %s" % (kind.__name__, value))
                self._end()
            except Exception:
                pass  # the one that leaves the block is the one to see

    def __await__(self) -> Generator[Any, None, Any]:
        return self._arrive().__await__()

    async def _arrive(self) -> Any:
        if not self.done():
            await bell_of(asyncio.get_running_loop()).until_done(self)
        return self.result

    def __repr__(self) -> str:
        state = "unfinished" if self._status is None else "done" if self._status == 0 else "failed"
        return "<dtr.Work #%d of group '%s', %s>" % (self._seq, self._group.name, state)


class Bell:
    """Wakes one loop of asyncio when works that are awaited there end."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        raw = lib.pydtr_bell_new()
        if raw == ffi.NULL:
            raise MemoryError("no memory or no descriptor left for an await")
        self.raw = ffi.gc(raw, lib.pydtr_bell_drop)
        self.loop = weakref.ref(loop)
        self.fd: int = lib.pydtr_bell_fd(raw)
        self.waiting: List[Tuple[Work, "asyncio.Future[None]"]] = []  # of the loop's thread alone, as what follows
        self.timer: Optional[asyncio.TimerHandle] = None

    async def until_done(self, work: Work) -> None:
        loop = asyncio.get_running_loop()
        future: "asyncio.Future[None]" = loop.create_future()
        with work._mutex:
            if work._raw is None:
                return
            check(lib.pydtr_bell_watch(self.raw, work._raw))
        if not self.waiting:
            loop.add_reader(self.fd, self.rung)
            self.timer = loop.call_later(0.001, self.look_again, 0.001)
        self.waiting.append((work, future))
        try:
            await future
        finally:
            self.waiting = [entry for entry in self.waiting if entry[1] is not future]
            if not self.waiting:
                loop.remove_reader(self.fd)
                if self.timer is not None:
                    self.timer.cancel()

    def rung(self) -> None:
        try:
            os.read(self.fd, 8)
        except BlockingIOError:
            pass
        self.look()

    def look(self) -> None:
        for work, future in self.waiting:
            if not future.done() and work.done():
                future.set_result(None)

    def look_again(self, pause: float) -> None:
        """For programs where no thread but this one moves operations: the bell rings in a look only."""
        self.look()
        loop = self.loop()
        if self.waiting and loop is not None:
            self.timer = loop.call_later(pause, self.look_again, min(2 * pause, 0.02))


_bells: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Bell]" = weakref.WeakKeyDictionary()


def bell_of(loop: asyncio.AbstractEventLoop) -> Bell:
    bell = _bells.get(loop)
    if bell is None:
        bell = _bells[loop] = Bell(loop)
    return bell


def wait_all(works: Any, timeout: Optional[float] = None) -> List[Any]:
    """Wait for all works and return their results; raises the error of the first that failed, after all have ended."""
    listed = list(works)
    for i, work in enumerate(listed):
        if not isinstance(work, Work):
            raise ArgError("works[%d] is a %s; it must be a dtr.Work" % (i, type(work).__name__))
    limit = -1.0 if timeout is None else seconds(timeout, "timeout")
    for work in listed:
        work._end(limit)
    return [work.result for work in listed]
