"""Worlds over communicators of mpi4py."""
import numpy as np
import pytest

import dtr

MPI = pytest.importorskip("mpi4py.MPI")


@pytest.fixture(autouse=True)
def same_mpi():
    if not any(name == MPI.get_vendor()[0] and name in dtr.version_text() for name in ("Open MPI", "MPICH")):
        pytest.skip("mpi4py is built with %s, the library with another MPI" % MPI.get_vendor()[0])


def test_world_of_a_communicator(world):
    part = MPI.COMM_WORLD.Split(world.rank % 2, -world.rank)
    with dtr.World(part) as inner:
        part.Free()
        assert inner.size == len(range(world.rank % 2, world.size, 2))
        total = inner.group.allreduce(np.array([world.rank]))
        assert total[0] == sum(range(world.rank % 2, world.size, 2))
        assert inner.group.broadcast(np.array([world.rank]), 0)[0] == max(range(world.rank % 2, world.size, 2))
    assert MPI.COMM_WORLD.allreduce(1) == world.size  # MPI is the program's


def test_no_communicator(world):
    with pytest.raises(dtr.ArgError, match="."):
        dtr.World(MPI.COMM_NULL)
    with pytest.raises(dtr.ArgError, match="comm is 7; it must be an mpi4py communicator"):
        dtr.World(7)
