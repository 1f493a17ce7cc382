#!/usr/bin/env python3
"""The baselines of scripts/gpu/measure by PyTorch, one at a time, as lines "torch_NAME figure". Without PyTorch, or without a
device for it, it says so and ends with status 77; --dry goes through the same steps on the CPU with Gloo and prints no figures."""
import argparse
import os
import socket
import sys
import time


def give_up(why):
    print("not measured: " + why)
    sys.exit(77)


try:
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as mp
except ImportError:
    give_up("no PyTorch here")

DRY = "--dry" in sys.argv
DEVICE = "cpu" if DRY else "cuda"


def tell(name, figure):
    print("torch_%s %s" % (name, "dry" if DRY else "%.3f" % figure))


def synchronize():
    if not DRY:
        torch.cuda.synchronize()


def sample(work):
    """(host, device) seconds: until the calls have returned, and by events."""
    if DRY:
        begun = time.perf_counter()
        work()
        return time.perf_counter() - begun, 0.0
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    synchronize()
    begin.record()
    begun = time.perf_counter()
    work()
    returned = time.perf_counter() - begun
    end.record()
    synchronize()
    return returned, begin.elapsed_time(end) * 1e-3


def medians(works, rounds=21):
    """Medians of (host, device) of each work; they take turns, after two rounds to warm up."""
    rounds = 2 if DRY else rounds
    took = [[sample(work) for work in works] for _ in range(rounds + 2)][2:]
    return [tuple(sorted(row[k][part] for row in took)[rounds // 2] for part in range(2)) for k in range(len(works))]


def world_of_one():
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ["MASTER_PORT"] = str(free_port())
    dist.init_process_group("gloo" if DRY else "nccl", rank=0, world_size=1)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


# ---- kernels, and lists of tensors packed into one ----

def copies(_):
    n = 1 << (16 if DRY else 28)
    x, y = torch.full((n,), 3.0, device=DEVICE), torch.empty(n, device=DEVICE)
    half = torch.empty(n, device=DEVICE, dtype=torch.bfloat16)
    cases = [("copy", 8 * n, lambda: y.copy_(x)), ("f32_to_bf16", 6 * n, lambda: half.copy_(x)),
             ("bf16_to_f32", 6 * n, lambda: y.copy_(half)), ("scale", 8 * n, lambda: y.mul_(1.0)),
             ("axpy", 12 * n, lambda: y.add_(x)), ("fill", 4 * n, lambda: y.fill_(1.0))]
    for name, one in (("64k", 1 << 14), ("16m", 1 << 22)):
        one = min(one, n // 4)
        parts, slots = list(x.split(one)), list(y.split(one))
        cases.append(("cat_" + name, 8 * n, lambda parts=parts: torch.cat(parts, out=y)))
        if hasattr(torch, "_foreach_copy_"):
            cases.append(("foreach_copy_" + name, 8 * n, lambda s=slots, p=parts: torch._foreach_copy_(s, p)))
    for (name, nbytes, _), (_, seconds) in zip(cases, medians([work for _, _, work in cases])):
        tell(name + "_gb_per_s", nbytes / seconds * 1e-9 if seconds else 0)


# ---- what DDP costs a step ----

class Grads(torch.autograd.Function):
    """A backward pass that hands out ready gradients, the last parameter's first."""

    @staticmethod
    def forward(ctx, ready, *params):
        ctx.ready = ready
        return params[0].new_zeros(())

    @staticmethod
    def backward(ctx, _):
        return (None, *ctx.ready)


class Model(torch.nn.Module):
    def __init__(self, shapes):
        super().__init__()
        self.params = torch.nn.ParameterList([torch.nn.Parameter(torch.randn(s, device=DEVICE)) for s in shapes])
        self.ready = [torch.randn(s, device=DEVICE) for s in shapes]

    def forward(self, unused):
        return Grads.apply(self.ready, *self.params)


def ddp(options):
    """Host and device time that DDP adds to the same backward pass, at world 1, with NCCL."""
    with open(options.model, encoding="utf-8") as source:
        shapes = [[int(n) for n in line.split()[1:]] for line in source if line.split("#")[0].strip()]
    world_of_one()
    given = torch.zeros(1, device=DEVICE)
    where = {} if DRY else {"device_ids": [torch.cuda.current_device()]}
    wrapped = torch.nn.parallel.DistributedDataParallel
    models = [("none", Model(shapes))] + [
        (name, wrapped(Model(shapes), bucket_cap_mb=25, gradient_as_bucket_view=view, **where))
        for name, view in (("copy", False), ("view", True))]
    for _, model in models:
        model(given).backward()
    steps = medians([lambda m=m: m(given).backward() for _, m in models])
    tell("ddp_tensors", len(shapes))
    for (name, _), (host, device) in list(zip(models, steps))[1:]:
        tell("ddp_%s_host_us" % name, 1e6 * (host - steps[0][0]))
        tell("ddp_%s_device_us" % name, 1e6 * (device - steps[0][1]))
    dist.destroy_process_group()


# ---- what a call costs the host ----

def calls(_):
    """c10d with NCCL at world 1, 4 KiB: microseconds of the host for a call."""
    world_of_one()
    x = torch.ones(1024, device=DEVICE)
    y = torch.empty_like(x)
    gather, scatter = getattr(dist, "all_gather_into_tensor", None), getattr(dist, "reduce_scatter_tensor", None)
    cases = [("allreduce", lambda: dist.all_reduce(x)), ("broadcast", lambda: dist.broadcast(x, 0))]
    if not DRY and gather and scatter:  # Gloo has no such calls
        cases += [("allgather", lambda: gather(y, x)), ("reduce_scatter", lambda: scatter(y, x))]
    at_once = 4 if DRY else 512

    def row(call):
        for _ in range(at_once):
            call()

    for (name, _), (host, _) in zip(cases, medians([lambda c=call: row(c) for _, call in cases])):
        tell("c10d_%s_us" % name, 1e6 * host / at_once)
    dist.destroy_process_group()


# ---- Gloo on device tensors, several ranks ----

def gloo_rank(rank, options, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", rank=rank, world_size=options.ranks)
    for nbytes in options.bytes:
        x, took = torch.ones(max(nbytes // 4, 1), device=DEVICE), []
        for _ in range(3 if DRY else 13):
            dist.barrier()
            synchronize()
            begun = time.perf_counter()
            dist.all_reduce(x)
            synchronize()
            slowest = torch.tensor(time.perf_counter() - begun)
            dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
            took.append(slowest.item())
            x.fill_(1.0)
        if rank == 0:
            tell("gloo_%d_us" % nbytes, 1e6 * sorted(took[2:])[len(took[2:]) // 2])
    dist.destroy_process_group()


def gloo(options):
    mp.spawn(gloo_rank, args=(options, free_port()), nprocs=options.ranks)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("copies", "ddp", "calls", "gloo"))
    parser.add_argument("--dry", action="store_true", help="on the CPU, without figures")
    parser.add_argument("--model", help="of ddp: a file with a name and sizes in each line")
    parser.add_argument("--ranks", type=int, default=2, help="of gloo (2)")
    parser.add_argument("--bytes", type=int, nargs="+", default=[4096], help="of gloo (4096)")
    options = parser.parse_args()
    if options.what == "ddp" and not options.model:
        parser.error("ddp needs --model FILE")
    if not DRY and not torch.cuda.is_available():
        give_up("PyTorch %s finds no device" % torch.__version__)
    print("torch %s, CUDA %s%s" % (torch.__version__, torch.version.cuda,
                                   "" if DRY else ", NCCL %s" % ".".join(str(n) for n in torch.cuda.nccl.version())))
    {"copies": copies, "ddp": ddp, "calls": calls, "gloo": gloo}[options.what](options)


if __name__ == "__main__":
    main()
