"""A program of mpi4py: MPI is initialised and finalised by that, and used before, beside and after a world."""
import sys

import numpy as np

import dtr

try:
    from mpi4py import MPI
except ImportError:
    print("skipped: mpi4py is not installed")
    sys.exit(77)
if MPI.get_vendor()[0] not in dtr.version_text():
    print("skipped: mpi4py is built with %s, the library with another MPI" % MPI.get_vendor()[0])
    sys.exit(77)

comm = MPI.COMM_WORLD
with dtr.World(comm) as world:
    total = world.group.allreduce(np.array([comm.allreduce(1)]))
    assert total[0] == comm.size ** 2 and world.size == comm.size
with dtr.World(comm) as world:  # and again
    assert world.group.allgather(np.array([comm.rank])).ravel().tolist() == list(range(comm.size))
assert comm.allreduce(1) == comm.size and not MPI.Is_finalized()
print("own MPI: rank %d of %d" % (comm.rank, comm.size))
