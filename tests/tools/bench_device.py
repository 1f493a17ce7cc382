"""dtr-bench --device cuda: every call with right results beside NCCL itself, through stage, on a shared GPU, and refusals.
Runs on the stand-ins, so times are never looked at."""
import json
import os
import sys
import tempfile

from tool import expect, number, refuses, rows, run, verdict

mpiexec, program = sys.argv[1:3]
folder = tempfile.TemporaryDirectory(prefix="dtr-bench-")
out = os.path.join(folder.name, "out.json")
PAIRED = ["allreduce", "reduce", "broadcast", "allgather", "allgatherv", "reduce_scatter", "reduce_scatterv", "alltoall",
          "alltoallv", "gather", "gatherv", "scatter", "scatterv", "sendrecv", "pingpong"]


def bench(ranks, *options, **settings):
    """Rows and JSON of one run."""
    os.environ.update(settings)
    text = run([mpiexec, "-n", str(ranks), program, "--device", "cuda", "--no-gauge", "--strict", "--json", out] + list(options), (0,))
    for name in settings:
        del os.environ[name]
    if not text:
        return [], {"rows": [], "peer": "", "device": "", "backend": ""}
    with open(out, encoding="utf-8") as source:
        report = json.load(source)
    expect(report["wrong"] == 0, "wrong elements: %s", report)
    return rows(text), report


def check_pairs():
    """Every call but the barrier has NCCL's beside it."""
    table, report = bench(2, "all", "--sizes", "1000", "--rounds", "2", "--calls", "3", DTR_BACKEND="cuda:nccl")
    expect(report["peer"].startswith("NCCL ") and "stand-in" in report["device"], "peer and device: %s", report)
    expect([row["call"] for row in report["rows"] if row.get("peer") == "nccl"] == PAIRED, "calls with a peer: %s", report)
    for row in report["rows"]:
        expect(row["host_us"] > 0 and row["events_us"] >= 0, "times of %s", row)
        expect(row["call"] == "barrier" or isinstance(row["added_percent"], float), "what is added in %s", row)
    expect(len(table) == len(PAIRED) + 1 and all(number(row[-1]) is not None for row in table[:-1]), "ratios: %s", table)


def check_types():
    """All types from another root, more calls in a sample than are given to the device at once; what NCCL lacks has no peer."""
    _, report = bench(3, "allreduce", "scatterv", "--root", "1", "--mode", "async", "--dtype", "all", "--sizes", "1000",
                      "--rounds", "1", "--calls", "2", DTR_BACKEND="cuda:auto")
    alone = {row["dtype"] for row in report["rows"] if "peer" not in row}
    expect(alone == {"bool", "i16", "u16", "f8e4m3", "f8e5m2", "c64", "c128"}, "types without a peer: %s", alone)
    _, report = bench(1, "--sizes", "8", "--rounds", "1", "--calls", "600", "--in-place", DTR_BACKEND="cuda:nccl")
    expect(len(report["rows"]) == 1, "600 calls: %s", report)


def check_stage():
    _, report = bench(2, "--sizes", "1000", "--rounds", "1", "--calls", "2", "--mode", "overlap", DTR_BACKEND="cuda:stage")
    hidden = [row["hidden"] for row in report["rows"]]
    expect(report["backend"] == "cuda:stage" and len(hidden) == 1 and 0 <= hidden[0] <= 100, "overlap: %s", report)
    table, report = bench(2, "--sizes", "1000", "--rounds", "1", "--calls", "2", DTR_FAKE_CUDA_UUID="one",
                          DTR_BACKEND="cuda:stage")
    expect(report["peer"].startswith("none: ") and table and table[0][-1] == "-", "two ranks on one GPU: %s", report)


check_pairs()
check_types()
check_stage()
refuses([program, "--device", "cuda", "--read-back"], "--device cuda")
verdict()
