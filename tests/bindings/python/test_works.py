"""Operations under way: waiting, asyncio, threads, lifetimes."""
import asyncio
import gc
import os
import threading
import time
import weakref

import numpy as np
import pytest

import dtr


def test_work(group):
    x = np.array([group.rank + 1.0])
    work = group.allreduce(x, async_=True, label="loss")
    assert work.wait()[0] == sum(range(1, group.size + 1)) and work.wait() is work.result
    assert work.done() and work.duration >= 0 and work.seq >= 1 and "done" in repr(work)
    with group.allgather(x, async_=True) as work:
        pass
    assert work.result[:, 0].tolist() == [r + 1.0 for r in range(group.size)]
    many = [group.allreduce(np.array([i]), async_=True) for i in range(20)]
    assert [y[0] for y in dtr.wait_all(many)] == [i * group.size for i in range(20)]


def test_unfinished_result(group):
    y = np.zeros(1)
    work = group.recv(y, group.rank, async_=True)
    assert not work.done()
    with pytest.raises(dtr.StateError, match="unfinished"):
        work.result
    group.send(np.array([3.0]), group.rank, async_=True).wait()
    assert work.wait()[0] == 3.0


def test_await_does_not_block_the_loop(group):
    async def program():
        order = []
        y = np.zeros(1)

        async def receive():
            order.append("waits")
            await group.recv(y, group.rank, async_=True)
            order.append("has it")

        async def send():
            await asyncio.sleep(0.01)
            order.append("sends")
            await group.send(np.array([4.0]), group.rank, async_=True)

        await asyncio.wait_for(asyncio.gather(receive(), send()), 30)
        return order, y[0]

    order, value = asyncio.run(program())
    assert order[:2] == ["waits", "sends"] and order[-1] == "has it" and value == 4.0


def test_many_awaits_at_once(group):
    async def program():
        works = [group.allreduce(np.array([i + group.rank]), async_=True) for i in range(100)]
        return await asyncio.gather(*works)

    results = asyncio.run(program())
    assert [r[0] for r in results] == [i * group.size + sum(range(group.size)) for i in range(100)]


def test_cancelled_await_leaves_the_work(group):
    y = np.zeros(1)

    async def program():
        work = group.recv(y, group.rank, async_=True)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(work, 0.05)
        await group.send(np.array([6.0]), group.rank, async_=True)
        return (await work)[0]

    assert asyncio.run(program()) == 6.0


def test_failed_await(group):
    async def program():
        await group.recv(np.zeros(1), group.rank, async_=True, timeout=0.2)

    with pytest.raises(dtr.TimeoutError):
        asyncio.run(program())


def test_the_interpreter_is_released(group):
    """A thread that waits in the library holds nobody up: it gets what this one sends meanwhile."""
    y = np.zeros(1)
    waiting = threading.Thread(target=group.recv(y, group.rank, async_=True).wait)
    waiting.start()
    time.sleep(0.02)
    group.send(np.array([5.0]), group.rank, async_=True).wait()
    waiting.join(30)
    assert not waiting.is_alive() and y[0] == 5.0


def test_a_work_keeps_its_arrays(group):
    y = np.zeros(1000)
    gone = weakref.ref(y)
    work = group.recv(y, group.rank, async_=True)
    del y
    gc.collect()
    assert gone() is not None
    group.send(np.ones(1000), group.rank, async_=True).wait()
    assert work.wait().sum() == 1000
    del work
    gc.collect()
    assert gone() is None


def test_a_dropped_work_keeps_its_arrays_until_it_ends(world, group):
    y = np.zeros(1000)
    gone = weakref.ref(y)
    group.recv(y, group.rank, async_=True)  # nobody has the work
    del y
    gc.collect()
    assert gone() is not None
    group.send(np.ones(1000), group.rank, async_=True).wait()
    until = time.monotonic() + 30
    while gone() is not None and time.monotonic() < until:
        group.barrier()  # calls give back what has ended; all ranks see it by the same message to themselves
        if group.allreduce(np.array([gone() is None]), dtr.LAND)[0]:
            break
    assert gone() is None
    assert not [w for w in world._works.values() if w[1] is group]


def test_limit_names_the_line(group):
    y = np.zeros(1)
    work = group.recv(y, group.rank, async_=True)
    with pytest.raises(dtr.TimeoutError) as caught:
        work.wait(0.2)
    line = test_limit_names_the_line.__code__.co_firstlineno + 2
    assert "%s:%d" % (os.path.basename(__file__), line) in str(caught.value)
    assert isinstance(caught.value, TimeoutError) and caught.value.name == "DTR_ERR_TIMEOUT" and caught.value.breaks == "group"
    with pytest.raises(dtr.TimeoutError):
        work.wait()  # each time
    with pytest.raises(dtr.TimeoutError):
        group.barrier()


def test_exception_in_the_block_of_a_work_aborts(group):
    alone = group.split(group.rank)
    with pytest.raises(ZeroDivisionError):
        with alone.recv(np.zeros(1), 0, async_=True) as work:
            1 / 0
    assert work.done()
    with pytest.raises(dtr.AbortedError, match="ZeroDivisionError"):
        alone.barrier()
    alone.close()
