"""The backend dtr of torch.distributed, on as many ranks as mpirun starts. Each function is a test, run on all ranks."""
import datetime
import os
import re
import sys
import traceback

try:
    import torch
    import torch.distributed as dist
except ImportError as error:
    print(f"skipped: no torch ({error})")
    sys.exit(77)
try:
    import dtr_torch
except ImportError as error:
    print(f"skipped: dtr_torch is not built or does not load ({error})")
    sys.exit(77)

OPS = dist.ReduceOp
TYPES = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32,
         torch.float64, torch.complex64, torch.complex128]


def same(got, want):
    assert torch.equal(torch.as_tensor(got), torch.as_tensor(want)), f"{got} is not {want}"


def refused(kind, pattern, call, *arguments, **named):
    """The call raises an exception of just this kind, with this text."""
    try:
        call(*arguments, **named)
    except kind as error:
        assert type(error) is kind, f"{type(error).__name__} is not {kind.__name__}: {error}"
        assert re.search(pattern, str(error)), f"no '{pattern}' in: {error}"
        return str(error)
    raise AssertionError(f"{call.__name__} raised no {kind.__name__}")


def test_ranks_are_those_of_mpi(rank, size):
    assert (rank, size) == dtr_torch._C.world()[:2]
    assert dist.get_backend() == "dtr"


def test_types(rank, size):
    for dtype in TYPES:
        t = torch.arange(7).to(dtype) + rank
        dist.all_reduce(t)
        same(t, (torch.arange(7) * size + size * (size - 1) // 2).to(dtype))
        t = torch.full((3,), rank).to(dtype)
        dist.broadcast(t, size - 1)
        same(t, torch.full((3,), size - 1).to(dtype))
    t = torch.tensor([rank == 0, False])
    dist.all_reduce(t)
    same(t, torch.tensor([True, False]))
    t = torch.full((2,), rank, dtype=torch.uint8).view(torch.float8_e4m3fnuz)  # one that dtr does not know: moved as bytes
    dist.broadcast(t, size - 1)
    same(t.view(torch.uint8), torch.full((2,), size - 1, dtype=torch.uint8))


def test_operators(rank, size):
    every = torch.arange(1, size + 1)
    for op, want in ((OPS.PRODUCT, every.prod()), (OPS.MIN, every.min()), (OPS.MAX, every.max()), (OPS.SUM, every.sum())):
        t = torch.tensor([rank + 1])
        dist.all_reduce(t, op)
        same(t, want.reshape(1))
    t = torch.tensor([float(rank)])
    dist.all_reduce(t, OPS.AVG)
    same(t, torch.tensor([(size - 1) / 2]))
    for op, fold in ((OPS.BAND, torch.bitwise_and), (OPS.BOR, torch.bitwise_or), (OPS.BXOR, torch.bitwise_xor)):
        t, want = torch.tensor([rank + 5]), torch.tensor([5])
        dist.all_reduce(t, op)
        for other in range(1, size):
            want = fold(want, torch.tensor([other + 5]))
        same(t, want)
    for factor in (0.5, 0.0, torch.tensor([2.0])):
        t = torch.full((3,), float(rank + 1))
        dist.all_reduce(t, dist._make_nccl_premul_sum(factor))
        same(t, torch.full((3,), float(factor) * size * (size + 1) / 2))
    refused(ValueError, "max.*c64|c64.*max|complex", dist.group.WORLD.allreduce, [torch.zeros(2, dtype=torch.complex64)], OPS.MAX)


def test_rooted(rank, size):
    root = size - 1
    t = torch.tensor([rank + 1.0])
    dist.reduce(t, root)
    same(t, torch.tensor([size * (size + 1) / 2 if rank == root else rank + 1.0]))
    got = [torch.zeros(2, 2) for _ in range(size)] if rank == root else None
    dist.gather(torch.full((2, 2), float(rank)), got, root)
    for i, one in enumerate(got or []):
        same(one, torch.full((2, 2), float(i)))
    out = torch.zeros(3)
    dist.scatter(out, [torch.full((3,), i + 0.5) for i in range(size)] if rank == root else None, root)
    same(out, torch.full((3,), rank + 0.5))


def test_all_gather(rank, size):
    flat = torch.zeros(2 * size, dtype=torch.int64)
    for target in ([torch.zeros(2, dtype=torch.int64) for _ in range(size)], list(flat.chunk(size))):
        dist.all_gather(target, torch.tensor([rank, -rank]))
        for i, one in enumerate(target):
            same(one, torch.tensor([i, -i]))
    uneven = [torch.zeros(i + 1) for i in range(size)]
    dist.all_gather(uneven, torch.full((rank + 1,), float(rank)))
    for i, one in enumerate(uneven):
        same(one, torch.full((i + 1,), float(i)))
    out = torch.zeros(size, 3)
    dist.all_gather_into_tensor(out, torch.full((3,), float(rank)))
    same(out, torch.arange(size).float().reshape(size, 1).expand(size, 3))
    pair = [torch.zeros(size), torch.zeros(2 * size)]
    dist.group.WORLD.allgather_into_tensor_coalesced(pair, [torch.tensor([rank + 1.0]), torch.full((2,), rank + 2.0)]).wait()
    same(pair[0], torch.arange(size) + 1.0)
    same(pair[1], (torch.arange(size) + 2.0).repeat_interleave(2))
    same(dist_objects(rank, size), list(range(size)))


def dist_objects(rank, size):
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    return [one["rank"] for one in objects]


def test_reduce_scatter(rank, size):
    out = torch.zeros(2)
    dist.reduce_scatter(out, [torch.full((2,), float(i + rank)) for i in range(size)])
    want = size * rank + size * (size - 1) / 2
    same(out, torch.full((2,), want))
    dist.reduce_scatter_tensor(out, torch.arange(size).float().repeat_interleave(2) + rank)
    same(out, torch.full((2,), want))
    out = torch.zeros(rank + 1)
    dist.reduce_scatter(out, [torch.full((i + 1,), 1.0) for i in range(size)])
    same(out, torch.full((rank + 1,), float(size)))
    outs = [torch.zeros(1), torch.zeros(2)]
    dist.group.WORLD.reduce_scatter_tensor_coalesced(outs, [torch.ones(size), torch.ones(2 * size)]).wait()
    same(torch.cat(outs), torch.full((3,), float(size)))


def test_all_to_all(rank, size):
    out = torch.zeros(size)
    dist.all_to_all_single(out, torch.arange(size).float() + 10 * rank)
    same(out, torch.arange(size) * 10.0 + rank)
    sent, received = [i + 1 for i in range(size)], [rank + 1] * size
    out = torch.zeros(sum(received), 2)
    dist.all_to_all_single(out, torch.full((sum(sent), 2), float(rank)), received, sent)
    same(out, torch.arange(size).float().repeat_interleave(rank + 1).reshape(-1, 1).expand(-1, 2))
    outs = [torch.zeros(2) for _ in range(size)]
    dist.all_to_all(outs, [torch.full((2,), float(rank * size + i)) for i in range(size)])
    for i, one in enumerate(outs):
        same(one, torch.full((2,), float(i * size + rank)))
    refused(ValueError, "splits sum to", dist.all_to_all_single, torch.zeros(size), torch.zeros(size), [2] * size, [1] * size)


def test_coalesced(rank, size):
    many = [torch.full((i + 1,), float(rank + i)) for i in range(20)]
    dist.all_reduce_coalesced(many)
    for i, one in enumerate(many):
        same(one, torch.full((i + 1,), float(size * i + size * (size - 1) // 2)))


def test_not_contiguous(rank, size):
    t = torch.zeros(4, 6)
    view = t.t()[1::2]
    view.fill_(rank + 1)
    work = dist.all_reduce(view, async_op=True)
    work.wait()
    same(view, torch.full_like(view, size * (size + 1) / 2))
    assert t.sum() == view.sum()
    x = torch.zeros(2, 2, requires_grad=True)  # a leaf may be an output
    dist.broadcast(x, 0)


def test_sparse(rank, size):
    t = torch.sparse_coo_tensor([[rank, size]], [1.0, 2.0], (size + 1,))
    dist.all_reduce(t)
    same(t.to_dense(), torch.tensor([1.0] * size + [2.0 * size]))


def test_messages(rank, size):
    if size == 1:
        return
    right, left = (rank + 1) % size, (rank - 1) % size
    got = torch.zeros(5)
    works = [dist.isend(torch.full((5,), float(rank)), right, tag=3), dist.irecv(got, left, tag=3)]
    for work in works:
        work.wait()
    same(got, torch.full((5,), float(left)))
    if rank == 0:
        seen = set()
        for _ in range(size - 1):
            source = dist.recv(got)
            same(got, torch.full((5,), float(source)))
            seen.add(source)
        assert seen == set(range(1, size))
    else:
        dist.send(torch.full((5,), float(rank)), 0)
    dist.barrier()  # what is received from any rank must not be a message of the next part
    ops = [dist.P2POp(dist.isend, torch.tensor([rank]), right), dist.P2POp(dist.irecv, got := torch.tensor([0]), left)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    same(got, torch.tensor([left]))
    dist.barrier()


def test_futures(rank, size):
    t = torch.full((4,), rank + 1.0)
    work = dist.all_reduce(t, async_op=True)

    def double(future):
        again = future.value()[0]
        dist.all_reduce(again, op=OPS.MAX)  # waits, which a callback may
        return again * 2

    same(work.get_future().then(double).wait(), torch.full((4,), size * (size + 1.0)))
    assert work.is_completed() and work.is_success()
    dropped = torch.ones(1000)
    dist.all_reduce(dropped, async_op=True)  # nobody holds the work
    dist.barrier()
    same(dropped, torch.full((1000,), float(size)))


def test_groups(rank, size):
    first = dist.new_group([0])
    rest = dist.new_group(list(range(size - 1, -1, -1)))
    if rank == 0:
        t = torch.ones(1)
        dist.all_reduce(t, group=first)
        same(t, torch.ones(1))
        dist.destroy_process_group(first)
    t = torch.tensor([float(rank)])
    dist.all_reduce(t, group=rest)
    same(t, torch.tensor([size * (size - 1) / 2]))
    before = rest._get_sequence_number_for_group()
    dist.all_reduce(t, group=rest)
    assert rest._get_sequence_number_for_group() == before + 1
    if rank % 2:  # in another order on other ranks
        dist.destroy_process_group(rest)
    more = dist.new_group(pg_options=dtr_torch.Options(datetime.timedelta(seconds=30), transport="cpu:mpi", deterministic=True))
    dist.all_reduce(t, group=more)
    if not rank % 2:
        dist.destroy_process_group(rest)


def test_bad_input(rank, size):
    refused(ValueError, "2 tensors", dist.group.WORLD.broadcast, [torch.ones(1), torch.ones(1)], dist.BroadcastOptions())
    refused(ValueError, "meta", dist.group.WORLD._get_backend(torch.device("cpu")).broadcast, [torch.ones(1, device="meta")],
            dist.BroadcastOptions())
    refused(ValueError, "are dtr_torch.Options, not torch", dist.new_group, pg_options=dist.ProcessGroupGloo._Options())
    refused(ValueError, "tag", dist.isend, torch.ones(1), (rank + 1) % size, tag=40000)
    refused(ValueError, "in.*count|counts|out", dist.all_gather_into_tensor, torch.zeros(size + 1), torch.zeros(1))
    t = torch.ones(2)
    dist.all_reduce(t)  # nothing of that has broken the group
    same(t, torch.full((2,), float(size)))


def test_timeouts(rank, size):
    if size == 1:
        return
    short = dist.new_group(timeout=datetime.timedelta(seconds=1))
    if rank == 0:
        text = refused(dist.DistNetworkError, "DTR_ERR_TIMEOUT", dist.all_reduce, torch.ones(3), group=short)
        assert "torch_backend.py" in text and "rank 1" in text, text
    dist.barrier()
    refused(dist.DistNetworkError, "DTR_ERR_TIMEOUT", dist.all_reduce, torch.ones(3), group=short)
    slow = dist.new_group()
    if rank == 0:
        names = ", ".join(str(i) for i in range(1, size))
        refused(dist.DistNetworkError, f"Ranks? {names} failed to pass", slow.monitored_barrier, datetime.timedelta(0), True)
    dist.barrier()


def test_abort(rank, size):
    group = dist.new_group()
    if size > 1 and rank == 0:
        work = dist.all_reduce(torch.ones(3), group=group, async_op=True)
        group.abort()
        refused(dist.DistBackendError, "abort of the process group", work.wait)
        assert not work.is_success()
    dist.barrier()
    group.shutdown()
    refused(RuntimeError, "has been shut down", dist.all_reduce, torch.ones(1), group=group)


def test_shared_memory(rank, size):
    with dtr_torch.shared_memory(1024):
        big, small = torch.full((4096,), rank + 1.0), torch.ones(4)
    dist.all_reduce(big)
    same(big, torch.full((4096,), size * (size + 1) / 2))
    dist.all_reduce(small)
    assert not dtr_torch._C.use_shared_memory(False, 0)
    del big


def test_ddp(rank, size):
    for cls in (torch.nn.parallel.DistributedDataParallel, dtr_torch.DistributedDataParallel):
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 8))
        alone = [p.detach().clone().requires_grad_() for p in model.parameters()]
        ddp = cls(model, gradient_as_bucket_view=True)
        x = torch.randn(4 * size, 64)
        for _ in range(3):  # torch makes its buckets anew after the first
            ddp.zero_grad()
            ddp(x[4 * rank:4 * rank + 4]).square().mean().backward()
        w1, b1, w2, b2 = alone
        (torch.relu(x @ w1.t() + b1) @ w2.t() + b2).square().mean().backward()
        for got, want in zip(model.parameters(), alone):
            assert torch.allclose(got.grad, want.grad, atol=1e-6)
        every = [torch.zeros_like(model[0].weight) for _ in range(size)]
        dist.all_gather(every, model[0].weight.grad)
        for one in every:
            same(one, every[0])


def run(rank, size):
    for name, test in sorted(globals().items()):
        if name.startswith("test_"):
            try:
                test(rank, size)
            except Exception:
                print(f"rank {rank}: {name}\n{traceback.format_exc()}", file=sys.stderr, flush=True)
                os._exit(1)  # the others may wait for this one; the launcher ends them

def main():
    for name in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE"):
        os.environ.pop(name, None)
    refused(ValueError, "MPI says", dist.init_process_group, "dtr", init_method="env://?rank=7&world_size=9")
    dist.init_process_group("dtr", timeout=datetime.timedelta(seconds=60))
    rank, size = dist.get_rank(), dist.get_world_size()
    run(rank, size)
    dist.destroy_process_group()
    dist.init_process_group("dtr", init_method="dtr://")  # once more in one process
    dist.barrier()
    if rank == 0:
        print(f"torch_backend: all well on {size} ranks, torch {torch.__version__}")


if __name__ == "__main__":
    main()
