"""scripts/bench/peers: from recorded runs, of each cell the lowest ratio of the settings, and what the musts make of it."""
import json
import os
import re
import sys
import tempfile

from tool import expect, refuses, run, verdict

root = sys.argv[1]
folder = tempfile.TemporaryDirectory(prefix="dtr-peers-")
script = [sys.executable, "-B", os.path.join(root, "scripts", "bench", "peers")]
KIB, MIB = 1 << 10, 1 << 20
names = {"openmpi-5": "Open MPI v5.0.11", "mpich-5": "MPICH Version:      5.0.2",
         "impi-2021": "Intel(R) MPI Library 2021.18.1 for Linux* OS"}  # as each of them says it


def recorded(peer, setting, ranks, rows, number=0, void=False, wrong=0):
    """A run as peers keeps it, with the parts of a report of dtr-bench that it reads."""
    return {"peer": peer, "setting": setting, "ranks": ranks, "pass": number, "stamp": 1, "arguments": ["--rounds", "9", "allreduce"],
            "when": "2026-11-27 12:00 UTC", "command": "mpiexec dtr-bench",
            "report": {"mpi": names[peer], "cpu": "a processor",
                       "void": void, "wrong": wrong, "gauge_gbs": [20.0, 21.0],
                       "rows": [{"run": 1, "call": call, "bytes": nbytes, "who": who, "time_us": 10.0, "peer_us": 10.0 * ratio,
                                 "ratio": ratio} for call, nbytes, who, ratio in rows]}}


def judge(name, runs, status=0, *options):
    """The cells by (peer, ranks, call, bytes, who), and what was printed."""
    path = os.path.join(folder.name, name)
    with open(path, "w", encoding="utf-8") as out:
        json.dump({"runs": runs}, out)
    told = run(script + ["--show", "--json", path] + list(options), (status,))
    with open(path, encoding="utf-8") as source:
        written = json.load(source)
    expect(written.get("runs") == runs, "%s: the runs are not kept as they were", name)
    return {(c["peer"], c["ranks"], c["call"], c["bytes"], c["who"]): c for c in written.get("cells", [])}, told


def figure(cells, key, ratio, setting, reached):
    cell = cells.get(key)
    if expect(cell is not None, "no cell %s", key):
        expect((cell["ratio"], cell["setting"], cell["reached"]) == (ratio, setting, reached), "%s: %s, expected %s", key, cell,
               (ratio, setting, reached))


# The lowest over the settings; within a setting the median of its runs, and a void run only where there is no other.
runs = [recorded("openmpi-5", "stock", 2, [("allreduce", 8, "plain", 2.0), ("broadcast", MIB, "plain", 1.3)]),
        recorded("openmpi-5", "stock", 2, [("allreduce", 8, "plain", 1.2), ("broadcast", MIB, "plain", 1.2)], 1),
        recorded("openmpi-5", "stock", 2, [("allreduce", 8, "plain", 1.9), ("broadcast", MIB, "plain", 0.1)], 2),
        recorded("openmpi-5", "coll/sm", 2, [("allreduce", 8, "plain", 3.0), ("broadcast", MIB, "plain", 0.5)]),
        recorded("openmpi-5", "coll/sm", 2, [("broadcast", MIB, "plain", 0.3)], 1, void=True),
        recorded("openmpi-5", "64 KiB segments", 2, [("scan", 512, "plain", 1.4)], void=True),
        recorded("openmpi-5", "stock", 4, [("allreduce", 8, "plain", 1.05)]),
        recorded("mpich-5", "stock", 2, [("allreduce", 8, "plain", 0.9)]),
        recorded("impi-2021", "stock", 2, [("allreduce", 8, "plain", 1.5)])]
cells, told = judge("lowest", runs)
expect(len(cells) == 6, "cells: %s", sorted(cells))
figure(cells, ("openmpi-5", 2, "allreduce", 8, "plain"), 1.9, "stock", True)
figure(cells, ("openmpi-5", 2, "broadcast", MIB, "plain"), 0.5, "coll/sm", False)
figure(cells, ("openmpi-5", 4, "allreduce", 8, "plain"), 1.05, "stock", False)
figure(cells, ("mpich-5", 2, "allreduce", 8, "plain"), 0.9, "stock", False)
void = [key[2:4] for key, cell in cells.items() if cell["void"]]
expect(void == [("scan", 512)], "void cells: %s", void)
of = cells.get(("openmpi-5", 2, "broadcast", MIB, "plain"), {}).get("settings")
expect(of == {"stock": 1.2, "coll/sm": 0.5}, "the ratios of all settings: %s", of)
for line in ("| Open MPI 5.0.11 | 2 | 3 | 1 | 1 | 1.40 | 0.50, broadcast 1 MiB plain, coll/sm | 1 |",
             "| Open MPI 5.0.11 | 4 | 1 | 0 | 1 | 1.05 | 1.05, allreduce 8 B plain, stock | 0 |",
             "| Intel MPI 2021.18.1 | 2 | 1 | 0 | 0 | 1.50 | 1.50, allreduce 8 B plain, stock | 0 |",
             "| MPICH 5.0.2 | 2 | 1 | 1 | 1 | 0.90 | 0.90, allreduce 8 B plain, stock | 0 |",
             "- Open MPI 5.0.11, 2 ranks, below the must: broadcast 1 MiB plain 0.50."):
    expect(line in told.splitlines(), "\"%s\" is not in\n%s", line, told)

# The musts: 1.10, and 1.5 for what reduces in node-shared memory from 32 KiB on. A barrier is one cell.
rows = [(call, nbytes, who) for call in ("allreduce", "reduce", "reduce_scatter", "reduce_scatterv", "alltoall")
        for nbytes in (32 * KIB - 8, 32 * KIB, 64 * MIB) for who in ("plain", "shared")]
for ratio in (1.09, 1.1, 1.49, 1.5):
    cells, _ = judge("musts", [recorded("mpich-5", "stock", 4, [row + (ratio,) for row in rows] +
                                        [("barrier", 0, "plain", ratio), ("barrier", 0, "shared", 0.1)])])
    expect(len(cells) == len(rows) + 1, "%d cells of %d rows", len(cells), len(rows) + 1)
    for call, nbytes, who in rows:
        higher = call in ("allreduce", "reduce", "reduce_scatter") and who == "shared" and nbytes >= 32 * KIB
        figure(cells, ("mpich-5", 4, call, nbytes, who), ratio, "stock", ratio >= (1.5 if higher else 1.1))
    figure(cells, ("mpich-5", 4, "barrier", 0, "plain"), ratio, "stock", ratio >= 1.1)

# The table goes between its marks and nowhere else; wrong results are told by the status.
page = os.path.join(folder.name, "page.md")
with open(page, "w", encoding="utf-8") as out:
    out.write("before\n<!-- peers begin -->\nold\n<!-- peers end -->\nafter\n")
judge("page", runs, 0, "--update", page)
with open(page, encoding="utf-8") as source:
    text = source.read()
expect(text.startswith("before\n<!-- peers begin -->\n\n2026-11-27 12:00 UTC; ") and text.endswith("<!-- peers end -->\nafter\n") and
       "old" not in text, "the page: %s", text)
judge("wrong", [recorded("mpich-5", "stock", 2, [("scan", 8, "plain", 2.0)], wrong=3)], 1)

# The marks are where --update is meant for, and wrong options are refused.
with open(os.path.join(root, "docs", "measurements.md"), encoding="utf-8") as source:
    text = source.read()
expect(0 <= text.find("<!-- peers begin -->\n") < text.find("<!-- peers end -->"), "docs/measurements.md lacks the marks")
refuses(script + ["--only", "lam-1"], "--only", "'lam-1'")
refuses(script + ["--calls", "allreduce,allscatter"], "--calls", "'allscatter'")
refuses(script + ["--sizes", "8Q"], "--sizes", "'8Q'")
refuses(script + ["--show", "--new"], "--show", "--new")
refuses(script + ["--show", "--json", os.path.join(folder.name, "none")], "none", "No such file")

# Its calls are all that dtr-bench has.
with open(os.path.join(root, "collectives", "tools", "bench_case.c"), encoding="utf-8") as source:
    calls = re.findall(r'\[BENCH_\w+\] = \{ "(\w+)"', source.read())
expect(len(calls) > 15, "calls of dtr-bench: %s", calls)
refuses(script + ["--calls", "none"], *calls)
verdict()
