"""A rank waits for another one that does something else: which line of which file is to be found in the records."""
import time

import numpy as np

import dtr

world = dtr.World(timeout=2)
try:
    if world.rank == 0:
        time.sleep(4)
    world.group.allreduce(np.ones(8))  # this line
except dtr.Error as error:
    print("rank %d: %s: %s" % (world.rank, type(error).__name__, error), flush=True)
try:
    world.close()
except dtr.Error:
    pass
