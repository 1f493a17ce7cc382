"""A program of mpi4py: MPI is initialised and finalised by that, and used before, beside and after a world."""
import sys

import numpy as np

import dtr
from conftest import why_no_mpi4py

if why_no_mpi4py() is not None:
    print("skipped: " + why_no_mpi4py())
    sys.exit(77)
from mpi4py import MPI  # noqa: E402

comm = MPI.COMM_WORLD
with dtr.World(comm) as world:
    total = world.group.allreduce(np.array([comm.allreduce(1)]))
    assert total[0] == comm.size ** 2 and world.size == comm.size
with dtr.World(comm) as world:  # and again
    assert world.group.allgather(np.array([comm.rank])).ravel().tolist() == list(range(comm.size))
assert comm.allreduce(1) == comm.size and not MPI.Is_finalized()
print("own MPI: rank %d of %d" % (comm.rank, comm.size))
