"""Exceptions: their classes, and what wrong inputs, wrong order and closed handles give."""
import builtins
import re

import numpy as np
import pytest

import dtr
from dtr import _errors
from dtr._dtr import lib

ONE = np.ones(4)
GRID = np.ones((4, 4))


def test_a_class_for_each_status():
    for name in dir(lib):
        if name.startswith("DTR_ERR_"):
            found = _errors.CLASSES[getattr(lib, name)]
            assert issubclass(found, dtr.Error) and found("text").name == name and getattr(dtr, found.__name__) is found
    assert len(_errors.CLASSES) == len([name for name in dir(lib) if name.startswith("DTR_ERR_")])
    assert issubclass(dtr.TimeoutError, builtins.TimeoutError) and issubclass(dtr.ArgError, ValueError)


@pytest.mark.parametrize("what, call, text", [
    (dtr.LayoutError, lambda g: g.allreduce(GRID[:, 1]), r"x, an array of shape \(4,\).*not contiguous.*ascontiguousarray"),
    (dtr.LayoutError, lambda g: g.allreduce(GRID, out=GRID.T), "out, an array.*not contiguous"),
    (dtr.ArgError, lambda g: g.allreduce([1, 2]), "x is a list; it must be a NumPy array"),
    (dtr.ArgError, lambda g: g.allreduce(3.0), "x is a float"),
    (dtr.DtypeError, lambda g: g.allreduce(np.array(["a"])), "x has element type <U1; the library has bool, uint8"),
    (dtr.DtypeError, lambda g: g.allreduce(ONE.astype(">f8")), "x has element type >f8"),
    (dtr.DtypeError, lambda g: g.allreduce(np.array([None])), "x has element type object"),
    (dtr.Error, lambda g: g.allreduce(ONE, out=np.ones(3)), "allreduce.*3"),
    (dtr.Error, lambda g: g.allreduce(ONE, out=np.ones(4, np.float32)), "allreduce.*f32"),
    (dtr.ArgError, lambda g: g.allreduce(ONE, out=np.frombuffer(bytes(32))), "allreduce.*only"),
    (dtr.ArgError, lambda g: g.allreduce(ONE, "sum"), "op is 'sum'"),
    (dtr.ArgError, lambda g: g.allreduce(ONE, 77), "allreduce.*77"),
    (dtr.DtypeError, lambda g: g.allreduce(ONE, dtr.BOR), "allreduce"),
    (dtr.ArgError, lambda g: g.allreduce(ONE, timeout=-1), "timeout is -1"),
    (dtr.ArgError, lambda g: g.allreduce(ONE, timeout=float("nan")), "timeout is nan"),
    (dtr.ArgError, lambda g: g.allreduce(ONE, timeout="soon"), "timeout is 'soon'"),
    (dtr.ArgError, lambda g: g.allreduce(ONE, label=5), "label is 5"),
    (dtr.RankError, lambda g: g.broadcast(ONE, 99), "root is 99"),
    (dtr.ArgError, lambda g: g.broadcast(ONE, "0"), "root is '0'"),
    (dtr.ArgError, lambda g: g.broadcast(ONE, 2**40), "root is 1099511627776"),
    (dtr.RankError, lambda g: g.send(ONE, 99), "99"),
    (dtr.ArgError, lambda g: g.recv(ONE.copy(), dtr.ANY_SOURCE, 40000), "40000"),
    (dtr.ArgError, lambda g: g.allgatherv(ONE, [4] * (g.size + 1)), r"counts has \d+ numbers; the group has \d"),
    (dtr.ArgError, lambda g: g.allgatherv(ONE, [-1] * g.size), r"counts\[0\] is -1"),
    (dtr.ArgError, lambda g: g.allgatherv(ONE, 4), "counts is 4"),
    (dtr.ArgError, lambda g: g.batch([("sent", ONE, 0)]), r"messages\[0\] is \('sent'"),
    (dtr.ArgError, lambda g: g.split("red"), "color is 'red'"),
    (dtr.ArgError, lambda g: g.split(0, name="world"), "world"),
    (dtr.ArgError, lambda g: g.split(0, name="a\0b"), "name is 'a.x00b'"),
    (dtr.ArgError, lambda g: g.world.group.close(), "close the world"),
    (dtr.RankError, lambda g: g.world.new_group([99]), "99"),
    (dtr.ArgError, lambda g: g.world.shared(3, object), "dtype is object"),
    (dtr.ArgError, lambda g: g.world.shared(-3), "shape is -3"),
    (dtr.ArgError, lambda g: g.world.peer(ONE, g.world.local_rank), "lies in no block"),
    (dtr.ArgError, lambda g: g.world.peer([1], 0), "array is"),
    (dtr.ArgError, lambda g: dtr.World("world"), "comm is"),
    (dtr.ArgError, lambda g: dtr.World(timeout=0), "timeout is 0"),
    (dtr.ArgError, lambda g: dtr.DDP(g, [[1.0]]), r"params\[0\] is a list"),
    (dtr.ShapeError, lambda g: dtr.DDP(g, [ONE], [np.ones(5)]), r"grads\[0\] has shape \(5,\)"),
    (dtr.ArgError, lambda g: dtr.DDP(g, {"w": ONE}, [ONE]), "grads must have the names"),
    (dtr.ArgError, lambda g: dtr.wait_all([None]), r"works\[0\] is a NoneType"),
    (TypeError, lambda g: g.allreduce(ONE, tmeout=3), "tmeout"),
])
def test_wrong_inputs(group, what, call, text):
    before = group.seq
    with pytest.raises(what) as caught:
        call(group)
    assert re.search(text, str(caught.value)), str(caught.value)
    assert group.seq == before and (ONE == 1).all()
    assert group.allreduce(ONE)[0] == group.size  # nothing is broken


def test_reduce_scatter_that_does_not_divide(group):
    if group.size == 1:
        pytest.skip("one rank gets everything")
    with pytest.raises(dtr.ShapeError, match=r"x has 5 elements \(shape \(5,\)\), which %d ranks cannot share" % group.size):
        group.reduce_scatter(np.ones(5))


def test_abort_is_an_error_everywhere(group):
    if group.rank == 0:
        group.abort("enough")
    with pytest.raises(dtr.AbortedError, match="enough"):
        for _ in range(10**6):
            group.barrier()


def test_mismatch(group):
    if group.size == 1:
        pytest.skip("one rank agrees with itself")
    with pytest.raises(dtr.MismatchError, match="test_errors.py:"):
        group.allreduce(np.ones(4 + group.rank))
        group.barrier()


def test_closed_in_any_order():
    world = dtr.World(keep_mpi=True)
    part = world.group.split(0)
    x = np.ones(3)
    shared = world.shared(5)
    shared[:] = 3
    world.node_barrier()
    peer = world.peer(shared, (world.local_rank + 1) % world.local_size)
    work = part.allreduce(x, async_=True)
    unfinished = part.recv(x, part.rank, async_=True, timeout=0.3)
    part.allreduce(np.ones(3), async_=True)  # nobody has the work
    module = dtr.DDP(part, [x])
    world.close()
    world.close()
    assert world.closed and part.closed and module.closed and work.result[0] == part.size and shared[1] == peer[1] == 3
    with pytest.raises(dtr.TimeoutError):
        unfinished.wait()
    for call in (part.barrier, lambda: part.allreduce(x), lambda: part.split(0), world.node_barrier, lambda: world.shared(3),
                 lambda: module.grad_ready(0), module.backward_end, lambda: part.seq, world.progress,
                 lambda: world.group.barrier(), lambda: world.peer(shared, 0), lambda: dtr.DDP(part, [x])):
        with pytest.raises(dtr.StateError, match="closed"):
            call()
    part.close()
    module.close()
    assert not world._works  # nothing is kept for what has ended
    assert "closed" in repr(world) and "closed" in repr(part)


def test_group_closed_before_its_works_and_modules():
    with dtr.World(keep_mpi=True) as world:
        part = world.group.split(0)
        work = part.allreduce(np.ones(3), async_=True)
        module = dtr.DDP(part, [np.ones(3)])
        part.close()
        part.close()
        assert work.wait()[0] == world.size
        with pytest.raises(dtr.StateError, match="group '.*' is closed"):
            part.barrier()
        with module.backward():
            module.grad_ready(0)
        module.close()
        with pytest.raises(dtr.StateError, match="module is closed"):
            module.stats()


def test_exception_leaves_a_world():
    with pytest.raises(KeyError):
        with dtr.World(keep_mpi=True) as world:
            if world.rank == 0:
                raise KeyError("mine")
            try:
                world.group.barrier()
                world.group.barrier()
            except dtr.AbortedError as error:
                assert "rank 0 left its world by KeyError" in str(error)
                raise KeyError("theirs") from error
    assert world.closed
