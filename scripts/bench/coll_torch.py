#!/usr/bin/env python3
"""allreduce through torch.distributed with Gloo against dtr, both in the same processes, taking turns.

  mpirun -n 2 scripts/bench/coll_torch.py --sizes 4M,25M,64M
"""
import ctypes
import json
import sys
import time

from benchlib import median, need, parse_size

need("torch", "python3-torch")

from torch_world import arguments, congestion_control, open_both  # noqa: E402

CONTENDERS = ("gloo", "plain", "shared")


def options():
    parser = arguments(__doc__, 11)
    parser.add_argument("--sizes", default="64K,1M,4M,25M,64M", help="bytes of each rank, with commas (%(default)s)")
    return parser.parse_args()


class Size:
    """The buffers of all contenders for one size; Gloo reduces in place."""

    def __init__(self, dtr, torch, nbytes):
        self.dtr, self.torch, self.count, self.nbytes = dtr, torch, nbytes // 4, nbytes // 4 * 4
        self.fresh = torch.arange(self.count, dtype=torch.float32).remainder_(5).add_(dtr.rank)
        self.gloo = torch.empty(self.count)
        self.memory = {name: [dtr.alloc(self.nbytes, name == "shared") for _ in range(2)]
                       for name in ("plain", "shared")}

    def write(self, who):
        target = self.gloo.data_ptr() if who == "gloo" else self.memory[who][0]
        ctypes.memmove(target, self.fresh.data_ptr(), self.nbytes)

    def call(self, who):
        if who == "gloo":
            self.torch.distributed.all_reduce(self.gloo)
        else:
            self.dtr.allreduce(self.memory[who][0], self.memory[who][1], self.count)

    def wrong(self, who):
        size = self.dtr.size
        want = (self.fresh - self.dtr.rank).mul_(size).add_(size * (size - 1) // 2)
        got = self.gloo if who == "gloo" else self.torch.empty(self.count)
        if who != "gloo":
            ctypes.memmove(got.data_ptr(), self.memory[who][1], self.nbytes)
        return int((got != want).sum())

    def sample(self, who):
        self.write(who)
        self.dtr.barrier()
        start = time.perf_counter()
        self.call(who)
        return self.dtr.slowest(time.perf_counter() - start)

    def close(self):
        for pair in self.memory.values():
            for pointer in pair:
                self.dtr.free(pointer)


def measure(dtr, torch, nbytes, rounds):
    """One row for each kind of memory."""
    at = Size(dtr, torch, nbytes)
    wrong = {}
    for who in CONTENDERS:
        at.sample(who)
        wrong[who] = at.wrong(who)
    samples = {who: [] for who in CONTENDERS}
    for turn in range(rounds):
        for k in range(len(CONTENDERS)):
            who = CONTENDERS[(k + turn) % len(CONTENDERS)]
            samples[who].append(at.sample(who))
    at.close()
    return [{"call": "allreduce", "bytes": at.nbytes, "who": who, "time_us": 1e6 * median(samples[who]),
             "wrong": wrong[who] + wrong["gloo"], "peer": "gloo", "peer_us": 1e6 * median(samples["gloo"]),
             "ratio": median([a / b for a, b in zip(samples["gloo"], samples[who])])} for who in CONTENDERS[1:]]


def main():
    chosen = options()
    dtr, torch = open_both(chosen)
    rows = []
    if dtr.rank == 0:
        print("# %s; torch %s, Gloo over TCP (%s); %d ranks, %d thread(s) each" %
              (dtr.version(), torch.__version__, congestion_control(), dtr.size, chosen.threads))
        print("#%11s %-7s %11s %7s %11s %7s" % ("size (B)", "who", "time (us)", "#wrong", "gloo (us)", "ratio"))
    for run in range(1, chosen.runs + 1):
        for size in chosen.sizes.split(","):
            for row in measure(dtr, torch, parse_size(size), chosen.rounds):
                rows.append(dict(row, run=run))
                if dtr.rank == 0:
                    print("%12d %-7s %11.1f %7d %11.1f %7.2f" % (row["bytes"], row["who"], row["time_us"],
                                                                  row["wrong"], row["peer_us"], row["ratio"]))
    if chosen.json and dtr.rank == 0:
        with open(chosen.json, "w", encoding="utf-8") as out:
            json.dump({"tool": "coll_torch", "torch": torch.__version__, "ranks": dtr.size,
                       "congestion_control": congestion_control(), "rows": rows}, out, indent=1)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    dtr.close()
    return 1 if any(row["wrong"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
