"""dtr-bench, dtr-recorder-cost and dtr-sum-cost: every call with right results, columns and JSON of all modes, refusals."""
import json
import os
import sys
import tempfile

from tool import expect, number, refuses, rows, run, strict, verdict, versions

mpiexec, program, recorder, sums = sys.argv[1:5]
folder = tempfile.TemporaryDirectory(prefix="dtr-bench-")
out = os.path.join(folder.name, "out.json")
CALLS = ["allreduce", "reduce", "broadcast", "allgather", "allgatherv", "reduce_scatter", "reduce_scatterv", "alltoall",
         "alltoallv", "gather", "gatherv", "scatter", "scatterv", "sendrecv", "pingpong", "barrier", "scan", "exscan", "waitall"]


def bench(ranks, *options, statuses=(0,)):
    """Rows and JSON of one run."""
    text = run([mpiexec, "-n", str(ranks), program, "--calls", "3", "--json", out] + list(options), statuses)
    if not text:
        return [], {"rows": [], "summary": []}
    with open(out, encoding="utf-8") as source:
        return rows(text), json.load(source)


def check_calls():
    """Every call, also where blocks differ and the root is another; an odd number of ranks leaves one out of pingpong."""
    for ranks, options in ((2, []), (3, ["--root", "1", "--mode", "async"])):
        table, report = bench(ranks, "all", "--sizes", "8,1000", "--rounds", "1", "--no-gauge", *options)
        calls = [row["call"] for row in report["rows"] if row["bytes"] <= (64 if row["call"] == "waitall" else 12) and row["who"] == "plain"]
        expect(calls == CALLS, "%d ranks: calls %s", ranks, calls)
        expect(len(table) == len(report["rows"]), "%d rows in the table, %d in the JSON", len(table), len(report["rows"]))
        for row in table:
            expect(number(row[-1]) is not None, "no ratio in the last column of %s", row)
        expect(report["wrong"] == 0 and report["ranks"] == ranks, "result of %s", report)


def check_types():
    for op in ("sum", "avg", "prod", "bxor"):
        _, report = bench(2, "allreduce", "reduce_scatterv", "--dtype", "all", "--op", op, "--sizes", "1000",
                          "--rounds", "1", "--no-gauge")
        checked = [row for row in report["rows"] if "wrong" in row]
        expect(len(checked) >= 16, "%s: only %d results were checked", op, len(checked))
        expect(report["wrong"] == 0, "%s: wrong results in %s", op, report)


def check_modes():
    for mode, key in (("overlap", "hidden"), ("dispatch", "added")):
        _, report = bench(2, "--mode", mode, "--sizes", "8", "--rounds", "3", "--no-gauge")
        expect([row["who"] for row in report["rows"]] == ["plain", "shared"], "%s: rows %s", mode, report["rows"])
        for row in report["rows"]:
            expect(isinstance(row.get(key), (int, float)), "%s: no %s in %s", mode, key, row)
    _, report = bench(2, "--dtype", "bf16", "--sizes", "4K", "--rounds", "3", "--no-gauge", "--in-place", "--read-back",
                      "--threads", "single", "--memory", "shared")
    for row in report["rows"]:
        expect(row["peer"] == "shared f32" and row["of_f32"] > 0, "16-bit row: %s", row)
    table, report = bench(2, "--min", "64", "--max", "1K", "--factor", "16", "--rounds", "2", "--runs", "3", "--memory",
                          "plain")
    expect([row[0] for row in table] == ["64", "1024"] * 3, "sizes of 3 runs: %s", table)
    expect(len(report["summary"]) == 2 and report["gauge_gbs"][0] > 0, "summary or gauge: %s", report)
    for row in report["summary"]:
        expect(row["low"] <= row["ratio"] <= row["high"], "spread: %s", row)
    strict([mpiexec, "-n", "1", program, "--sizes", "8", "--rounds", "1", "--json", out], out, lambda report: report["void"])
    table, report = bench(2, "--no-peer", "--sizes", "8", "--rounds", "1", "--no-gauge")
    expect("ratio" not in report["rows"][0] and table[0][-1] == "-", "a ratio without a peer: %s", table)
    expect(report["deterministic"] is False, "deterministic unasked: %s", report)
    _, report = bench(2, "--deterministic", "--sizes", "4K", "--rounds", "1", "--no-gauge")
    expect(report["deterministic"] is True and report["wrong"] == 0, "in rank order: %s", report)


def check_refusals():
    for option, value in (("--sizes", "8,many"), ("--dtype", "f33"), ("--op", "plus"), ("--rounds", "0"), ("--root", "1"),
                          ("--mode", "fast"), ("--threads", "many"), ("--memory", "rom"), ("--factor", "1"),
                          ("--device", "gpu")):
        refuses([program, option, value], option, "\"%s\"" % value)
    refuses([program, "--bogus"], "--bogus")
    refuses([program, "allreduse"], "\"allreduse\"")
    refuses([program, "--json", os.path.join(folder.name, "none", "out")], "cannot write")


def check_recorder_cost():
    run([mpiexec, "-n", "2", recorder, "--rounds", "2", "--json", out], (0,))
    with open(out, encoding="utf-8") as source:
        report = json.load(source)
    expect(report["call_ns"] > 0 and abs(report["record_ns"]) < report["call_ns"] * 1e3 and "share_percent" in report,
           "cost: %s", report)
    refuses([recorder, "--rounds", "0"], "\"--rounds\"")


def check_sum_cost():
    text = run([mpiexec, "-n", "3", sums, "--count", "5000", "--rounds", "2", "--json", out], (0,))
    names = [line.rsplit(None, 3)[0] for line in text.splitlines() if line and line.split()[-1].replace(".", "").isdigit()]
    expect(names == ["sum", "dot", "allreduce f64", "sum, of 16 decades", "allreduce f32", "sum of one element"], "rows of %s", text)
    with open(out, encoding="utf-8") as source:
        report = json.load(source)
    expect([row["what"] for row in report["rows"]] == names and report["ranks"] == 3 and report["count"] == 5000 and
           all(row["ratio"] > 0 for row in report["rows"]), "JSON of sums: %s", report)
    refuses([sums, "--rounds", "0"], "--rounds")
    refuses([sums, "more"], "\"more\"")


def check_tune(ranks, more):
    """What --tune writes has a section with every threshold it measures, and is read again."""
    path = os.path.join(folder.name, "node.tune")
    run([mpiexec, "-n", str(ranks), program, "--tune=" + path, "--max", "64K", "--rounds", "2"], (0,))
    with open(path, encoding="utf-8") as source:
        lines = [line.split() for line in source if not line.startswith("#")]
    expect(lines[0] == ["dtr-tune", "1"] and lines[1][0] == "node" and lines[1][-1] == str(ranks), "begin of %s", lines)
    expect([line[0] for line in lines[2:]] == ["zero_copy", "cma_reduce", "cma_end", "cma_piece", "cma_copy", "cma_deal", "cma_p2p",
                                               "cma_exchange", "stream", "chunk"] + more, "thresholds in %s", lines)
    os.environ["DTR_TUNE_FILE"] = path
    _, report = bench(ranks, "--sizes", "8,64K", "--rounds", "1", "--no-gauge")
    del os.environ["DTR_TUNE_FILE"]
    expect(len(report["rows"]) == 4 and report["wrong"] == 0, "rows with DTR_TUNE_FILE: %s", report)
    refuses([program, "--tune"], "tune")


check_calls()
check_types()
check_modes()
check_refusals()
check_recorder_cost()
check_sum_cost()
versions(program, recorder, sums)
check_tune(2, [])
check_tune(5, ["slices"])
verdict()
