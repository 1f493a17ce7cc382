"""Rank 0 ends by an exception without closing its world, with an operation under way; rank 1 learns of it at once.

Usage: left_open.py FILE    which rank 1 writes when it has; launchers end the others as soon as one rank has failed
"""
import atexit
import os
import sys
import time

import numpy as np

path = sys.argv[1]


def wait_for_file():  # registered before that of dtr, so run after it
    until = time.monotonic() + 120
    while not os.path.exists(path) and time.monotonic() < until:
        time.sleep(0.01)
    if os.path.exists(path):
        os.remove(path)


atexit.register(wait_for_file)
import dtr  # noqa: E402

world = dtr.World(timeout=300)
y = np.zeros(100000)
if world.rank == 0:
    work = world.group.recv(y, 1, async_=True)
    raise KeyError("mine")
atexit.unregister(wait_for_file)
try:
    world.group.barrier()
    print("no error")
except dtr.AbortedError as error:
    print("rank %d: %s" % (world.rank, error), flush=True)
with open(path, "w", encoding="utf-8"):
    pass
