#!/usr/bin/env python3
"""torch's DistributedDataParallel on Gloo against dtr's, on one parameter list, in the same processes, taking turns.

  mpirun -n 2 scripts/bench/ddp_torch.py --list gpt2.txt --compute-ms 300

The list is what `dtr-ddp-bench --model NAME --list` prints. The backward pass is device-like: it sleeps for each
parameter's share of --compute-ms and leaves the core free. Of torch's step the same step under no_sync() is taken off,
so what autograd itself costs does not count; of dtr's only the sleeping is.

  mpirun -n 2 scripts/bench/ddp_torch.py --gpt 4,256

takes steps of a real model in torch, with its gradients averaged by torch's own DistributedDataParallel on Gloo, on the backend
dtr (bindings/torch), and on that with buckets in memory the ranks share; `local` is the step under no_sync().
"""
import contextlib
import ctypes
import json
import os
import sys
import time

from benchlib import median, need

need("torch", "python3-torch")

from torch_world import arguments, congestion_control, open_both  # noqa: E402

FLOOR_S = 1e-4  # exposed times below are noise


def options():
    parser = arguments(__doc__, 5)
    parser.add_argument("--list", help="file with one parameter a line: name and sizes")
    parser.add_argument("--gpt", metavar="LAYERS,WIDTH", help="steps of a GPT-2-like model through the backend dtr instead")
    parser.add_argument("--compute-ms", type=float, default=300, help="length of one backward (%(default)s)")
    chosen = parser.parse_args()
    if bool(chosen.list) == bool(chosen.gpt):
        parser.error("one of --list and --gpt is needed")
    return chosen


def read_list(path):
    with open(path, encoding="utf-8") as source:
        words = [line.split("#")[0].split() for line in source]
    return [(word[0], tuple(int(size) for size in word[1:])) for word in words if word]


class Clock:
    """The moments at which the gradients of one backward pass become final."""

    def __init__(self, numels):
        self.numels, self.total = numels, sum(numels)
        self.restart(0)

    def restart(self, length):
        self.length, self.begun, self.done = length, time.perf_counter(), 0

    def finish(self, i):
        self.done += self.numels[i]
        rest = self.begun + self.length * self.done / self.total - time.perf_counter()
        if rest > 0:
            time.sleep(rest)


def torch_model(torch, shapes, clock):
    """A module whose backward hands over one prepared gradient after the other, the last parameter's first."""

    class Chain(torch.autograd.Function):
        @staticmethod
        def forward(context, x, parameter, gradient, i):
            context.gradient, context.i = gradient, i
            return x.clone()

        @staticmethod
        def backward(context, upstream):
            clock.finish(context.i)
            return upstream, context.gradient, None, None

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.all = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(shape)) for _, shape in shapes])
            self.gradients = [torch.ones(shape) for _, shape in shapes]

        def forward(self, x):
            for i, parameter in enumerate(self.all):
                x = Chain.apply(x, parameter, self.gradients[i], i)
            return x

    return torch.nn.parallel.DistributedDataParallel(Model(), gradient_as_bucket_view=True, bucket_cap_mb=25)


class Bench:
    """Both contenders over one list."""

    def __init__(self, dtr, torch, shapes):
        self.dtr, self.torch, self.shapes = dtr, torch, shapes
        numels = [int(torch.Size(shape).numel()) for _, shape in shapes]
        self.numels, self.clock = numels, Clock(numels)
        self.torch_ddp = torch_model(torch, shapes, self.clock)
        self.ddp = dtr.ddp(shapes)
        self.fresh = torch.ones(max(numels)).mul_(dtr.rank + 1)
        self.mean = (dtr.size + 1) / 2

    def write(self, who):
        for i, numel in enumerate(self.numels):
            target = self.torch_ddp.module.gradients[i].data_ptr() if who != "dtr" else \
                self.dtr.grad_address(self.ddp, i)
            ctypes.memmove(target, self.fresh.data_ptr(), 4 * numel)

    def torch_step(self, length, synced):
        loss = self.torch_ddp(self.torch.zeros(1, requires_grad=True)) if synced else None
        if not synced:
            with self.torch_ddp.no_sync():
                loss = self.torch_ddp(self.torch.zeros(1, requires_grad=True))
        self.dtr.barrier()
        self.clock.restart(length)
        loss.sum().backward()
        return time.perf_counter() - self.clock.begun

    def dtr_step(self, length):
        ready, ddp = self.dtr.lib.dtr_ddp_grad_ready, self.ddp
        self.dtr.barrier()
        self.clock.restart(length)
        for i in reversed(range(len(self.shapes))):
            if length > 0:
                self.clock.finish(i)
            self.dtr.check(ready(ddp, i, None))
        self.dtr.check(self.dtr.lib.dtr_ddp_backward_end(ddp, None))
        return time.perf_counter() - self.clock.begun

    def step(self, who, length):
        self.write(who)
        return self.dtr.slowest(self.dtr_step(length) if who == "dtr" else self.torch_step(length, who == "torch"))

    def wrong(self):
        first = ctypes.cast(self.dtr.grad_address(self.ddp, 0), ctypes.POINTER(ctypes.c_float))[0]
        theirs = float(self.torch_ddp.module.all[0].grad.flatten()[0])
        return int(abs(first - self.mean) > 1e-6) + int(abs(theirs - self.mean) > 1e-6)

    def clear(self):
        for parameter in self.torch_ddp.module.all:
            parameter.grad.zero_()

    def phase(self, rounds, length):
        """Median times and the ratio of what is exposed, paired per round."""
        contenders = ("torch", "local", "dtr")
        samples = {who: [] for who in contenders}
        for turn in range(rounds):
            for k in range(3):
                who = contenders[(k + turn) % 3]
                self.clear()
                samples[who].append(self.step(who, length))
        torch_s = [max(a - b, FLOOR_S) for a, b in zip(samples["torch"], samples["local"])]
        dtr_s = [max(a - length, FLOOR_S) for a in samples["dtr"]]
        return {"torch_step_ms": 1e3 * median(samples["torch"]), "torch_local_ms": 1e3 * median(samples["local"]),
                "dtr_step_ms": 1e3 * median(samples["dtr"]), "torch_ms": 1e3 * median(torch_s),
                "dtr_ms": 1e3 * median(dtr_s), "ratio": median([a / b for a, b in zip(torch_s, dtr_s)])}


def gpt(torch, layers, width, vocabulary=4096, context=64):
    """A model of the shape of GPT-2: embeddings, blocks with a norm before each part, a head."""
    class Gpt(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.token, self.place = torch.nn.Embedding(vocabulary, width), torch.nn.Embedding(context, width)
            self.blocks = torch.nn.ModuleList(torch.nn.TransformerEncoderLayer(
                width, max(1, width // 64), 4 * width, dropout=0, activation="gelu", batch_first=True, norm_first=True)
                for _ in range(layers))
            self.norm, self.head = torch.nn.LayerNorm(width), torch.nn.Linear(width, vocabulary, bias=False)
            self.register_buffer("mask", torch.nn.Transformer.generate_square_subsequent_mask(context))

        def forward(self, tokens):
            x = self.token(tokens) + self.place.weight
            for block in self.blocks:
                x = block(x, src_mask=self.mask)
            return self.head(self.norm(x))

    return Gpt(), lambda: torch.randint(vocabulary, (2, context))


class Steps:
    """The same model under every contender; all have to come to the same gradients."""

    def __init__(self, torch, dtr_torch, layers, width):
        self.torch, self.dist = torch, torch.distributed
        plain = torch.nn.parallel.DistributedDataParallel
        gloo = self.dist.new_group(backend="gloo")
        self.models = {}
        for name, cls, group in (("gloo", plain, gloo), ("dtr", plain, None),
                                 ("shared", dtr_torch.DistributedDataParallel, None)):
            torch.manual_seed(1)
            model, batch = gpt(torch, layers, width)
            self.models[name] = cls(model, process_group=group, gradient_as_bucket_view=True)
        torch.manual_seed(2 + self.dist.get_rank())
        self.tokens = batch()

    def step(self, who):
        """The time of one forward and backward pass on the slowest rank."""
        model = self.models["gloo" if who == "local" else who]
        model.zero_grad(set_to_none=False)
        self.dist.barrier()
        start = time.perf_counter()
        with model.no_sync() if who == "local" else contextlib.nullcontext():
            logits = model(self.tokens)
            self.torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), self.tokens[:, 1:].flatten()).backward()
        took = self.torch.tensor([time.perf_counter() - start], dtype=self.torch.float64)
        self.dist.all_reduce(took, self.dist.ReduceOp.MAX)
        return float(took)

    def wrong(self):
        want = [p.grad for p in self.models["gloo"].parameters()]
        return sum(int(not self.torch.allclose(p.grad, w, rtol=1e-4, atol=1e-6))
                   for who in ("dtr", "shared") for p, w in zip(self.models[who].parameters(), want))


def main_gpt(chosen):
    import torch
    import torch.distributed as dist
    import dtr_torch
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(chosen.threads)
    dist.init_process_group("dtr")
    steps, contenders, runs = Steps(torch, dtr_torch, *map(int, chosen.gpt.split(","))), ("local", "gloo", "dtr", "shared"), []
    numel = sum(p.numel() for p in steps.models["dtr"].parameters())
    for who in ("gloo", "dtr", "shared") * 3:  # torch makes its buckets anew after the first step
        steps.step(who)
    wrong = steps.wrong()
    if dist.get_rank() == 0:
        print("# torch %s, %s; %d ranks, %d thread(s) each; %d parameters; wrong: %d" %
              (torch.__version__, dtr_torch.__version__, dist.get_world_size(), chosen.threads, numel, wrong))
        print("#%4s" % "run" + "".join("%13s" % (who + " (ms)") for who in contenders) + "%12s%12s" % ("gloo/dtr", "gloo/shared"))
    for run in range(1, chosen.runs + 1):
        samples = {who: [] for who in contenders}
        for turn in range(chosen.rounds):
            for k in range(4):
                who = contenders[(k + turn) % 4]
                samples[who].append(steps.step(who))
        row = {who: 1e3 * median(samples[who]) for who in contenders}
        ratios = [median([a / b for a, b in zip(samples["gloo"], samples[who])]) for who in ("dtr", "shared")]
        runs.append(dict(row, run=run, ratio_dtr=ratios[0], ratio_shared=ratios[1]))
        if dist.get_rank() == 0:
            print("%5d" % run + "".join("%13.1f" % row[who] for who in contenders) + "%12.2f%12.2f" % tuple(ratios), flush=True)
    if dist.get_rank() == 0 and chosen.json:
        with open(chosen.json, "w", encoding="utf-8") as out:
            json.dump({"tool": "ddp_torch --gpt", "torch": torch.__version__, "ranks": dist.get_world_size(), "parameters": numel,
                       "wrong": wrong, "runs": runs}, out, indent=1)
    dtr_torch.shutdown()
    return 1 if wrong else 0


def main():
    chosen = options()
    if chosen.gpt:
        return main_gpt(chosen)
    shapes = read_list(chosen.list)
    dtr, torch = open_both(chosen)
    bench = Bench(dtr, torch, shapes)
    for _ in range(2):  # both build their buckets anew after the first step
        bench.step("torch", 0)
        bench.step("dtr", 0)
    bench.clear()
    bench.step("torch", 0)
    wrong, runs = bench.wrong(), []
    if dtr.rank == 0:
        print("# %s; torch %s, Gloo over TCP (%s); %d ranks, %d thread(s) each; %d tensors, %d elements" %
              (dtr.version(), torch.__version__, congestion_control(), dtr.size, chosen.threads, len(shapes),
               sum(bench.numels)))
        print("#%4s %-9s %11s %11s %7s" % ("run", "phase", "dtr (ms)", "torch (ms)", "ratio"))
    for run in range(1, chosen.runs + 1):
        one = {"run": run, "sync": bench.phase(chosen.rounds, 0),
               "exposed": bench.phase(chosen.rounds, chosen.compute_ms * 1e-3)}
        runs.append(one)
        if dtr.rank == 0:
            for name in ("sync", "exposed"):
                print("%5d %-9s %11.2f %11.2f %7.2f" % (run, name, one[name]["dtr_ms"], one[name]["torch_ms"],
                                                        one[name]["ratio"]))
    if dtr.rank == 0 and chosen.json:
        with open(chosen.json, "w", encoding="utf-8") as out:
            json.dump({"tool": "ddp_torch", "torch": torch.__version__, "ranks": dtr.size, "tensors": len(shapes),
                       "compute_ms": chosen.compute_ms, "congestion_control": congestion_control(), "wrong": wrong,
                       "runs": runs}, out, indent=1)
    dtr.check(dtr.lib.dtr_ddp_destroy(bench.ddp))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    dtr.close()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
