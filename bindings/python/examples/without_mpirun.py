"""Processes that no launcher of MPI has started find each other through files.

Run: python3 without_mpirun.py 3
"""
import os
import subprocess
import sys
import tempfile
import time

import numpy as np

import dtr


class Folder:
    """A store of files, which may lie in a file system that several hosts share."""

    def __init__(self, path):
        self.path = path

    def put(self, key, value):
        name = os.path.join(self.path, key.replace("/", "%"))
        with open(name + ".part", "wb") as file:
            file.write(value)
        os.rename(name + ".part", name)  # whole or not there

    def get(self, key, timeout):
        name, end = os.path.join(self.path, key.replace("/", "%")), time.monotonic() + timeout
        while not os.path.exists(name):
            if time.monotonic() > end:
                raise TimeoutError(key)
            time.sleep(0.002)
        with open(name, "rb") as file:
            return file.read()


def rank_main(rank, size, path):
    with dtr.World(store=Folder(path), rank=rank, size=size) as world:
        total = world.group.allreduce(np.array([1.0, world.rank]))
        print("rank %d of %d: %g %g" % (world.rank, world.size, *total))


def main():
    if len(sys.argv) == 4:
        rank_main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
        return 0
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    with tempfile.TemporaryDirectory() as path:
        ranks = [subprocess.Popen([sys.executable, __file__, str(rank), str(size), path]) for rank in range(size)]
        return 1 if any([rank.wait() for rank in ranks]) else 0  # all are waited for; one that was killed has a negative status


if __name__ == "__main__":
    sys.exit(main())
