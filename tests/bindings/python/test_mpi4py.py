"""Worlds over communicators of mpi4py."""
import numpy as np
import pytest

import dtr
from conftest import why_no_mpi4py

if why_no_mpi4py() is not None:
    pytest.skip(why_no_mpi4py(), allow_module_level=True)
from mpi4py import MPI  # noqa: E402


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
