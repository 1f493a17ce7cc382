"""Rank 0 ends by an exception without closing its world, with an operation under way; the others learn of it at once."""
import numpy as np

import dtr

world = dtr.World()
y = np.zeros(100000)
if world.rank == 0:
    work = world.group.recv(y, world.size - 1, async_=True)
    raise KeyError("mine")
try:
    world.group.barrier()
    print("no error")
except dtr.AbortedError as error:
    print("rank %d: %s" % (world.rank, error), flush=True)
