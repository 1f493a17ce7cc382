"""Of healthy(): what dtr-doctor makes of recordings that are damaged, missing or of another job."""
import json
import os
import re
import shutil
import sys

import __main__ as judge


def robust():
    """DR1, DR3, DR4: machine-readable output, a trace, damaged, missing and stale files."""
    trace = os.path.join(judge.folder, "trace.json")
    code, text = judge.ask_doctor("--json", "--last", "3", "--trace", trace, judge.recordings)
    report = json.loads(text)
    judge.check(report["ranks_read"] == judge.ranks and len(report["ranks"]) == judge.ranks, text)
    judge.check([len(r["newest"]) for r in report["ranks"]] == [3] * judge.ranks, text)
    judge.check("fault.c:" in report["ranks"][0]["last"]["site"], text)
    with open(trace) as f:
        events = json.load(f)["traceEvents"]
    slices = [e for e in events if e["ph"] == "X"]
    judge.check({e["pid"] for e in slices} == set(range(judge.ranks)), "a rank has no slices in the trace")
    judge.check(all(e["dur"] >= 0 and e["ts"] >= 0 for e in slices), "negative times in the trace")
    compute = [e for e in slices if e["cat"] == "compute"]
    judge.check({e["pid"] for e in compute} == set(range(judge.ranks)), "a rank has no compute in the trace")
    for track in {(e["pid"], e["tid"]) for e in slices}:
        of = sorted((e["ts"], e["ts"] + e["dur"]) for e in slices if (e["pid"], e["tid"]) == track)
        judge.check(all(a[1] <= b[0] + 0.002 for a, b in zip(of, of[1:])), "slices of track %s overlap" % str(track))
    for r in range(judge.ranks):
        buckets = [(e["ph"], e["name"].split(".")[-1]) for e in events if e.get("cat") == "bucket" and e["pid"] == r]
        judge.check(buckets == [("b", "bucket0"), ("e", "bucket0")], "buckets of rank %d: %s" % (r, buckets))
        spans = {e["name"] for e in events if e.get("cat") == "span" and e["pid"] == r}
        judge.check({"ddp_backward", "ddp_bucket"} <= spans, "spans of rank %d: %s" % (r, spans))
    judge.check(sum("'warm'" in e["name"] for e in slices) == 20 * judge.ranks, "not all operations are in the trace")
    names = judge.files()
    judge.check(len(names) == judge.ranks, "%d recordings of %d ranks" % (len(names), judge.ranks))
    two = [os.path.join(judge.folder, "host%d" % k) for k in range(2)]  # DR1: as of two hosts
    for k in range(2):
        os.makedirs(two[k])
        for name in names[k::2]:
            shutil.copy(name, two[k])
    code, text = judge.ask_doctor("--last", "2", *two)
    judge.check("no readable recording" not in text, text)
    for r in range(judge.ranks):  # DR4
        judge.check(len(re.findall(r"(?m)^ +%d +\d+ +finished +[0-9.]+ +[0-9.]+ +\w+ #\d+ .* at \S+$" % r, text)) == 2,
              "not two newest operations of rank %d:\n%s" % (r, text))
    with open(names[-1], "r+b") as f:  # cut off in the ring: still read
        f.truncate(os.path.getsize(names[-1]) - 100000)
    stale = bytearray(open(names[0], "rb").read())
    at = stale.find(open(names[0], "rb").read()[:8]) + 88  # job id
    stale[at:at + 8] = (1).to_bytes(8, sys.byteorder)
    with open(os.path.join(judge.recordings, "old.rec"), "wb") as f:
        f.write(stale)
    with open(os.path.join(judge.recordings, "rubbish.rec"), "wb") as f:
        f.write(os.urandom(50000))
    os.unlink(names[0])
    code, text = judge.ask_doctor(judge.recordings)
    judge.check(code == 1 and re.search(r"no readable recording of rank 0\b", text), text)
    judge.check(re.search(r"rubbish\.rec cannot be used", text), text)
    judge.check(re.search(r"1 recordings of earlier worlds are left out", text), text)
    judge.check(judge.ask_doctor(os.path.join(judge.recordings, "rubbish.rec"))[0] == 2, "rubbish alone is not status 2")
