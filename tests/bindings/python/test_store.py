"""Worlds that meet at a store, beside the one that mpirun has started."""
import importlib.util
import os
import shutil
import tempfile

import numpy as np
import pytest

import dtr

EXAMPLE = os.path.join(os.path.dirname(__file__), "../../../bindings/python/examples/without_mpirun.py")
spec = importlib.util.spec_from_file_location("without_mpirun", EXAMPLE)
example = importlib.util.module_from_spec(spec)
spec.loader.exec_module(example)
Folder = example.Folder


@pytest.fixture
def folder(group):
    made = tempfile.mkdtemp() if group.rank == 0 else ""
    text = np.zeros(256, np.uint8)
    text[:len(made)] = list(made.encode())
    yield Folder(bytes(group.broadcast(text, 0)).rstrip(b"\0").decode())
    if made:
        shutil.rmtree(made, ignore_errors=True)


def test_works(group, folder):
    for prefix in (None, "again"):
        with dtr.World(store=folder, rank=group.rank, size=group.size, prefix=prefix) as world:
            assert (world.rank, world.size) == (group.rank, group.size)
            total = world.group.allreduce(np.array([1.0, world.rank]))
            assert total.tolist() == [group.size, group.size * (group.size - 1) / 2]
    group.barrier()


def test_what_a_store_raises(group, folder):
    class Broken(Folder):
        def put(self, key, value):
            raise OSError("the disk is full")

    with pytest.raises(dtr.SystemError, match="the program's put of key 'dtr/rank") as caught:
        dtr.World(store=Broken(folder.path), rank=1, size=2)
    assert isinstance(caught.value.__cause__, OSError)


def test_interrupted(group, folder):
    class Interrupted(Folder):
        def put(self, key, value):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        dtr.World(store=Interrupted(folder.path), rank=1, size=2)


def test_a_rank_that_does_not_come(group):
    class Empty:
        def put(self, key, value):
            pass

        def get(self, key, timeout):
            raise TimeoutError(key)

    with pytest.raises(dtr.TimeoutError, match="rank 1, which has not put key 'dtr/rank.1'"):
        dtr.World(store=Empty(), rank=0, size=2)


@pytest.mark.parametrize("arguments, text", [
    (dict(store=object(), rank=0, size=1), "it must have put"),
    (dict(store=Folder("/"), size=1), "rank is None"),
    (dict(store=Folder("/"), rank=0), "size is None"),
    (dict(store=Folder("/"), rank="0", size=1), "rank is '0'"),
    (dict(store=Folder("/"), rank=3, size=2), "ranks are 0 to size - 1"),
    (dict(rank=0, size=1), "there is no store"),
    (dict(comm=object(), store=Folder("/"), rank=0, size=1), "both given"),
])
def test_refused(group, arguments, text):
    with pytest.raises(dtr.ArgError, match=text):
        dtr.World(**arguments)
