"""dtr-top --once, of a running job with a stopped and then a killed rank, and what it refuses.

top.py MPIEXEC PROGRAM TOP FOLDER
"""
import json
import os
import re
import shutil
import signal
import subprocess
import sys

from job import Job, of_rank, table, until
from tool import expect, refuses, run, verdict, versions

mpiexec, program, top, base = sys.argv[1:]
RANKS = 3
STEP = "allreduce|ddp invariants"  # what a rank is in; the latter where invariants are looked at


def settled(*options):
    """Once all ranks have trained for a while."""
    def look():
        seen = table(top, job, *options)
        good = seen and seen["ranks_read"] == RANKS and all((r["steps_per_s"] or 0) > 0 for r in seen["ranks"])
        return seen if good else None
    return until("every rank has steps", look)


def running():
    seen = settled()
    if not seen:
        return
    expect(seen["ranks_expected"] == RANKS and seen["unseen_hosts"] == 0 and seen["sorted_by"] == "held", "%s", seen)
    for r in seen["ranks"]:
        # A step is an allreduce of 16 KiB and one of 4 bytes.
        steps, operations = r["steps_per_s"], r["operations_per_s"]
        expect(r["state"] == "running" and re.search(STEP, r["operation"]) and r["site"].startswith("steady.c:"), "%s", r)
        expect(0 < steps < 250 and 0 < operations < 550 and 0 < r["gb_per_s"] < 1, "%s", r)
        expect(1e3 < r["gb_per_s"] * 1e9 / operations < 16384, "bytes of an operation: %s", r)
        expect(0 <= r["exposed_share"] <= 1 and 0 <= r["last_share"] <= 1, "%s", r)
    text = run([top, "--once", job.recordings], (0,))
    expect(re.match(r"job [0-9a-f]{16}, 3 ranks, started .* UTC: .*steady", text), "the job is not named first:\n%s", text)
    expect("3 ranks: 3 running" in text and len(re.findall(r"(?m)^ +[0-2] running ", text)) == RANKS, "%s", text)


def sorting():
    """Whoever is asked for is in order; the other way round too."""
    values = {"rank": lambda r: -r["rank"], "ops": lambda r: r["operations_per_s"], "steps": lambda r: r["steps_per_s"],
              "gb": lambda r: r["gb_per_s"], "exposed": lambda r: r["exposed_share"], "last": lambda r: r["last_share"],
              "lag": lambda r: -1 if r["lag_s"] is None else r["lag_s"]}
    for key, value in values.items():
        for way in ((), ("--reverse",)):
            seen = settled("--sort", key, *way)
            got = [value(r) for r in seen["ranks"]] if seen else []
            expect(got == sorted(got, reverse=not way), "--sort %s %s: %s", key, way, got)


def stopped():
    job.signal(1, signal.SIGSTOP)

    def look():
        seen = table(top, job)
        first = seen["ranks"][0]
        return first["rank"] == 1 and first["state"] == "stopped" and first["holds"] > 0 and first["holds_s"] > 1 and seen
    seen = until("the stopped rank is the first", look)
    # Where invariants are looked at, a rank may be stopped while others compare theirs, which are messages.
    waiting = [r for r in seen["ranks"][1:] if "batch_p2p" not in r["operation"]] if seen else []
    expect(waiting, "nobody waits in a collective: %s", seen)
    for r in waiting:
        expect(1 in r["waits_for"] and r["in_operation"] and r["since_s"] > 0, "does not wait for rank 1: %s", r)
    text = run([top, "--once", job.recordings], (0,))
    expect(re.search(r"1 stopped; rank [012] holds up [12], for [0-9.]+ s on average\n", text), "%s", text)
    expect(re.search(r"operation\n +1 stopped +[12] - ", text), "%s", text)
    expect(re.search(r"(?m)^ +[02] running +[1-] +\S*1\S* .* in allreduce #\d+ .* since \d", text), "%s", text)
    until("a rank that is stopped has no steps", lambda: of_rank(table(top, job), 0)["steps_per_s"] == 0)
    expect(of_rank(table(top, job), 0)["operations_per_s"] == 0, "operations of a job that stands still")
    job.signal(1, signal.SIGCONT)
    until("all go on", lambda: all(r["steps_per_s"] and r["state"] == "running" for r in table(top, job)["ranks"]))


def killed():
    job.signal(2, signal.SIGKILL)

    def look():
        seen = table(top, job)
        return seen["ranks"][0]["rank"] == 2 and seen["ranks"][0]["state"] == "died" and seen
    seen = until("the killed rank is the first", look)
    expect(not seen or all(r["state"] == "running" for r in seen["ranks"][1:]), "%s", seen)
    text = run([top, "--once", job.recordings], (0,))
    expect("2 running, 1 died" in text and re.search(r"operation\n +2 died ", text), "%s", text)


def unseen():
    """Ranks whose recordings are elsewhere."""
    text = run([top, "--once"] + job.files()[:1], (0,))
    expect("not seen: ranks 1-2; give the folders of all hosts" in text, "%s", text)
    mute = Job(mpiexec, 2, base, "top-mute", [program, "STOP"], DTR_NODE_RANKS="1", DTR_CONTROL_MS="0")
    until("two nodes", lambda: (table(top, mute) or {"ranks_read": 0})["ranks_read"] == 2)
    text = run([top, "--once"] + mute.files()[:1], (0,))
    expect("not seen: rank 1, on 1 other host; give" in text, "%s", text)
    status = mute.end()
    expect(status == 0, "a job that is looked at ended with %d", status)
    shutil.rmtree(mute.folder, ignore_errors=True)


def other_hosts():
    """Ranks of other hosts, as they report themselves: here each rank is a host, and only the first one's recording is read."""
    def far(look):
        def found():
            seen = json.loads(run([top, "--once", "--json"] + nodes.files()[:1], (0,)))
            rows = sorted(seen["ranks"], key=lambda r: r["rank"])
            return seen if len(rows) == 2 and look(*rows) else None
        return found
    seen = until("the other host's rank trains", far(lambda a, b: (b["steps_per_s"] or 0) > 0 and b["gb_per_s"] > 0))
    near, other = sorted(seen["ranks"], key=lambda r: r["rank"])
    expect(seen["ranks_read"] == 1 and seen["unseen_hosts"] == 0 and near["reported_s"] is None, "%s", seen)
    expect(other["state"] == "running" and other["pid"] == nodes.pids[1] and other["host"] == near["host"], "%s", other)
    expect(0 <= other["reported_s"] < 30 and 0 <= other["exposed_share"] <= 1 and other["gb_per_s"] > 0, "%s", other)
    expect(re.search(STEP, other["operation"]) and other["site"].startswith("steady.c:"), "%s", other)
    text = run([top, "--once"] + nodes.files()[:1], (0,))
    expect(re.search(r"(?m)^ranks of other hosts as reported, the oldest [0-9.]+ s ago$", text), "%s", text)

    def hold():
        """Stops rank 1; whether rank 0 waits in a collective then, and not while they compare invariants, which are messages."""
        nodes.signal(1, signal.SIGSTOP)
        silent = until("it is silent", far(lambda a, b: b["state"] == "silent" and b["reported_s"] > 0.5))
        return silent and "batch_p2p" not in of_rank(silent, 0)["operation"]

    def go_on():
        nodes.signal(1, signal.SIGCONT)
        until("it goes on", far(lambda a, b: b["state"] == "running" and b["steps_per_s"] > 0 and a["steps_per_s"] > 0 and not b["holds_s"] > 1))

    until("it is stopped within a collective", lambda: hold() or go_on())
    until("rank 0 waits for it", far(lambda a, b: b["state"] == "silent" and a["waits_for"] == [1] and b["holds"] == 1))
    go_on()
    nodes.signal(0, signal.SIGSTOP)
    text = run([top, "--once"] + nodes.files()[:1], (0,))  # there is nobody to ask
    expect("not seen: rank 1, on 1 other host" in text, "%s", text)
    nodes.signal(0, signal.SIGCONT)
    nodes.signal(1, signal.SIGKILL)
    until("it has died", far(lambda a, b: b["state"] == "died"))


def refused():
    refuses([top, "--nonsense", "x"], 'dtr-top: cannot make sense of "--nonsense"', "usage: dtr-top")
    refuses([top, "--json", job.recordings], "--json goes with --once")
    refuses([top, "--once"], "which folder?")
    for bad in ("0", "-1", "nan", "1x", "1e9", ""):
        refuses([top, "--once", "--interval", bad, job.recordings], "--interval needs a number of seconds from 0.1 to 3600")
    refuses([top, "--sort", "colour", job.recordings], "--sort needs one of held, rank,")
    refuses([top, "--once", "--sort"], "--sort needs one of held")
    refuses([top, "--once", os.path.join(base, "nowhere")], "nowhere", "no recording could be read")
    damaged = os.path.join(job.folder, "damaged.rec")
    with open(damaged, "wb") as f:
        f.write(b"x" * 100)
    refuses([top, "--once", damaged], "damaged.rec cannot be used: it has 100 bytes", "no recording could be read")
    refuses([top, job.recordings], "--once prints a table")  # no terminal


versions(top)
job = Job(mpiexec, RANKS, base, "top", [program, "STOP"])
nodes = Job(mpiexec, 2, base, "top-nodes", [program, "STOP"], DTR_NODE_RANKS="1")
try:
    until("two nodes", lambda: (table(top, nodes) or {"ranks_read": 0})["ranks_read"] == 2 and len(nodes.pids) == 2)
    other_hosts()
    nodes.end()
    expect(not [f for f in os.listdir(nodes.recordings) if f.endswith(".remote")], "an answer is left behind")
    running()
    sorting()
    stopped()
    killed()
    unseen()
    refused()
finally:
    nodes.end()
    job.end()
for done in (job, nodes):
    shutil.rmtree(done.folder, ignore_errors=True)
verdict()
