"""Results of the collectives, over element types, in place and with new arrays."""
import numpy as np
import pytest

import dtr

NUMBERS = ["u1", "i1", "i2", "i4", "i8", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"]


def ranks(group):
    return range(group.size)


@pytest.mark.parametrize("kind", NUMBERS)
def test_allreduce_of_every_type(group, kind):
    x = np.arange(1, 8, dtype=kind) * (group.rank + 1)
    want = np.arange(1, 8, dtype=kind) * sum(r + 1 for r in ranks(group))
    got = group.allreduce(x)
    assert got.dtype == np.dtype(kind) and np.array_equal(got, want)
    assert np.array_equal(x, np.arange(1, 8, dtype=kind) * (group.rank + 1))  # the input is as it was
    assert group.allreduce(x, out=x) is x
    assert np.array_equal(x, want)


@pytest.mark.parametrize("op, want", [
    (dtr.SUM, lambda v: v.sum(0)), (dtr.MAX, lambda v: v.max(0)), (dtr.MIN, lambda v: v.min(0)), (dtr.PROD, lambda v: v.prod(0)),
    (dtr.BOR, lambda v: np.bitwise_or.reduce(v)), (dtr.BAND, lambda v: np.bitwise_and.reduce(v)),
    (dtr.BXOR, lambda v: np.bitwise_xor.reduce(v)), (dtr.LAND, lambda v: v.all(0)), (dtr.LOR, lambda v: v.any(0))])
def test_operators(group, op, want):
    all_ranks = np.array([[r + 1, 3 - r, r % 2, 7] for r in ranks(group)], np.int64)
    assert np.array_equal(group.allreduce(all_ranks[group.rank], op), want(all_ranks))


def test_bool_avg_factor_and_pairs(group):
    flags = np.array([group.rank == 0, False])
    assert group.allreduce(flags, dtr.LOR).tolist() == [True, False]
    assert group.allreduce(np.array([float(group.rank)]), dtr.AVG)[0] == (group.size - 1) / 2
    assert group.allreduce(np.ones(2), dtr.PREMUL_SUM, factor=group.rank + 1.0)[0] == sum(r + 1 for r in ranks(group))
    pair = np.array([(10.0 * group.rank, group.rank)], dtr.f64_index)
    assert group.allreduce(pair, dtr.MAXLOC)[0].tolist() == (10.0 * (group.size - 1), group.size - 1)


def test_shapes_and_kinds_of_memory(group):
    assert group.allreduce(np.array(2.0)).shape == () and group.allreduce(np.array(2.0)) == 2.0 * group.size
    assert group.allreduce(np.zeros((3, 0))).shape == (3, 0)
    frozen = np.ones((2, 3), np.float32)
    frozen.flags.writeable = False
    assert np.array_equal(group.allreduce(frozen), np.full((2, 3), group.size, np.float32))
    raw = bytearray([1, 2, 3])
    assert group.allreduce(raw, out=raw) is raw and list(raw) == [group.size, 2 * group.size, 3 * group.size]


def test_reduce_scan_exscan(group):
    x, root = np.array([group.rank + 1, 5]), group.size - 1
    got = group.reduce(x, dtr.SUM, root)
    assert (got is None) == (group.rank != root)
    assert got is None or got.tolist() == [sum(r + 1 for r in ranks(group)), 5 * group.size]
    assert group.scan(x).tolist() == [sum(r + 1 for r in range(group.rank + 1)), 5 * (group.rank + 1)]
    assert group.exscan(x).tolist() == [sum(r + 1 for r in range(group.rank)), 5 * group.rank]
    group.scan(x, out=x)
    assert x[1] == 5 * (group.rank + 1)


def test_broadcast_and_gathers(group):
    root, mine = group.size // 2, np.full((2, 2), group.rank, np.int32)
    x = mine.copy()
    assert group.broadcast(x, root) is x and (x == root).all()
    everyone = np.array([np.full((2, 2), r) for r in ranks(group)])
    assert np.array_equal(group.allgather(mine), everyone)
    place = np.zeros((group.size, 2, 2), np.int32)
    place[group.rank] = mine
    assert np.array_equal(group.allgather(place[group.rank], out=place), everyone)  # in place
    got = group.gather(mine, root)
    assert (got is None) == (group.rank != root) and (got is None or np.array_equal(got, everyone))
    out = np.zeros((2, 2), np.int32)
    assert group.scatter(everyone.astype(np.int32) if group.rank == root else None, root, out=out) is out
    assert (out == group.rank).all()


def test_counts_by_rank(group):
    counts, root = [r + 1 for r in ranks(group)], 0
    mine, flat = np.full(group.rank + 1, group.rank), np.concatenate([np.full(r + 1, r) for r in ranks(group)])
    assert np.array_equal(group.allgatherv(mine, counts), flat)
    got = group.gatherv(mine, counts if group.rank == root else None, root)
    assert (got is None) == (group.rank != root) and (got is None or np.array_equal(got, flat))
    out = np.zeros_like(mine)
    group.scatterv(flat if group.rank == root else None, counts, root, out=out)
    assert np.array_equal(out, mine)
    assert np.array_equal(group.reduce_scatterv(flat, counts), mine * group.size)
    to = [r + 1 for r in ranks(group)]
    got = group.alltoallv(np.full(sum(to), group.rank), to, [group.rank + 1] * group.size)
    assert np.array_equal(got, np.repeat(np.arange(group.size), group.rank + 1))


def test_reduce_scatter_and_alltoall(group):
    x = np.repeat(np.arange(group.size), 3).reshape(group.size, 3)
    got = group.reduce_scatter(x)
    assert got.shape == (1, 3) and (got == group.rank * group.size).all()
    assert np.array_equal(group.alltoall(x + 100 * group.rank), np.add.outer(100 * np.arange(group.size), [group.rank] * 3))


def test_exact_sums(group):
    mine = np.array([1e16, 1.0, -1e16]) if group.rank == 0 else np.array([1.0])
    assert group.sum(mine) == group.size and group.sum(mine, label="sum", timeout=20) == group.size
    assert group.dot(np.array([2.0, 1.0]), np.array([3.0, 4.0])) == 10 * group.size
    assert group.norm2(np.full(9, 2.0)) == pytest.approx(6 * group.size ** 0.5)
    with pytest.raises(dtr.ArgError, match="async_ is True"):
        group.sum(mine, async_=True)


def test_messages(group):
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    x, y = np.array([group.rank, 7]), np.zeros(2, int)
    group.batch([("send", x, right, 5), ("recv", y, left, 5)])
    assert y.tolist() == [left, 7]
    sending = group.send(x, right, async_=True)
    coming = group.recv(y, async_=True)
    assert coming.wait() is y and coming.source == y[0] == left
    sending.wait()
    assert group.recv(y, dtr.PEER_NONE) is y and group.send(x, dtr.PEER_NONE) is None


def test_groups(world, group):
    parts = group.split(group.rank % 2, name="part", timeout=60)
    assert parts.name == "part" and parts.size == len(range(group.rank % 2, group.size, 2))
    assert parts.allreduce(np.array([group.rank]))[0] == sum(range(group.rank % 2, group.size, 2))
    parts.close()
    assert group.split(-1 if group.rank else 0, timeout=60) is None or group.rank == 0
    backwards = world.new_group(list(range(world.size))[::-1], name="backwards", reproducible=True)
    with backwards:
        assert backwards.rank == world.size - 1 - world.rank and backwards.world_rank(0) == world.size - 1
        assert backwards.rank_of(world.rank) == backwards.rank
        assert backwards.broadcast(np.array([world.rank]), 0)[0] == world.size - 1
        before = backwards.seq
        backwards.barrier()
        assert backwards.seq == before + 1 and "cpu:" in backwards.backend
    assert backwards.closed
