"""Runs one fault and judges what the surviving ranks wrote and what dtr-doctor says.

run.py MPIEXEC PROGRAM DOCTOR FOLDER CASE RANKS [BACKEND [NODE_RANKS [BED [WAY]]]]

NODE_RANKS: so many ranks are a node; 0: hosts are nodes. BED: scripts/testbed/run, to make a host of every node; "-": none.
WAY: how the operation is called that meets the fault (small large async scope backward), where the case asks for it.

Exit 0: as it must be. No check looks at how long anything took; the outer limit is CTest's.
"""
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

arguments = sys.argv[1:] + ["auto", "0", "-", "small"][len(sys.argv) - 7:]
mpiexec, program, doctor, base, case, ranks, backend, node_ranks, bed, way = arguments
bed = "" if bed == "-" else bed
ranks, node_ranks = int(ranks), int(node_ranks)
victim = 2 if ranks > 2 else 1
others = [r for r in range(ranks) if r != victim]
problems = []
order = list(range(ranks - 1, -1, -1))  # who is killed when by `busy`; by chance where FAULT_SEED is set
if "FAULT_SEED" in os.environ:
    random.Random(int(os.environ["FAULT_SEED"])).shuffle(order)
os.environ["FAULT_ORDER"] = ",".join(map(str, order))
folder = os.path.join(base, "%s-%d-%s-%d-%s%s" % (case, ranks, backend, node_ranks, way, "-bed" if bed else ""))
recordings = os.path.join(folder, "recordings")


def check(condition, what):
    if not condition:
        problems.append(what)


# What meets the fault, from where, and what the victim had finished before, in each way of calling.
TITLE = {"small": r"allreduce #21 f32 x 1000 max 'grad\.3' group 'world'",
         "large": r"allreduce #21 f32 x 300000 max 'grad\.3' group 'world'",
         "async": r"allreduce #21 f32 x 300000 max 'grad\.3' group 'world'",
         "scope": r"coalesced #21 \(\d operations?\) group 'world'",
         "backward": r"allreduce #\d+ f32 x \d+ avg 'ddp\d+\.bucket0' group 'world\.ddp'"}[way]
SITE = r"fault\.c:"
LAST = r"\w+ #\d+ .* group 'world\.ddp'" if way == "backward" else r"allreduce #20 .*'warm'"

# Settings of single cases.
ABORT = {"DTR_ON_ERROR": "abort", "DTR_LOG_FILE": os.path.join(folder, "log%r")}
SETTINGS = {"kind": {"DTR_DUMP": "0"}, "unwritable": {"DTR_RECORDER_DIR": "/proc/nowhere"},
            "cut": {"DTR_NODE_SILENCE": "2"}, "muted": {"DTR_LOG": "debug"},
            "hung": {"DTR_HEARTBEAT_LIMIT": "3"}, "flipped": {"DTR_HASH": "1"},
            "abort_absent": ABORT, "abort_kind": ABORT, "abort_killed": ABORT}


def prepare():
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(recordings)


def launch():
    env = dict(os.environ, DTR_RECORDER_DIR=recordings, DTR_BACKEND="cpu:" + backend)
    env.update(SETTINGS.get(case, {}))
    env.pop("OMPI_MCA_orte_abort_on_non_zero_status", None)
    version = subprocess.run([mpiexec, "--version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout
    # A rank's death must not be the launcher's reason to end the others.
    go_on = ["--enable-recovery"] if b"Open MPI" in version or b"OpenRTE" in version else ["-disable-auto-cleanup"]
    start = [mpiexec] + go_on + ["-n", str(ranks)]
    if bed:
        each = str(node_ranks)
        start = [bed, "--hosts", str(ranks // node_ranks), "--ranks", each, "--", "--enable-recovery"]
    elif node_ranks > 0:
        env["DTR_NODE_RANKS"] = str(node_ranks)
    if bed:
        return launch_bed(start + [program, case, folder, way], env)
    done = subprocess.run(start + [program, case, folder, way], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.stdout.decode(errors="replace")


def launch_bed(command, env):
    """With a rank killed on another host the launcher never ends, so it is ended when the ranks have."""
    with open(os.path.join(folder, "output"), "w+") as out:
        bed_process = subprocess.Popen(command, env=env, stdout=out, stderr=subprocess.STDOUT)
        cut_link = case == "cut"
        while bed_process.poll() is None and not all("destroy" in lines(r) for r in survivors()):
            time.sleep(0.05)
            if cut_link and all(os.path.exists(os.path.join(folder, "in%d" % r)) for r in range(ranks)):
                switch_link(bed_process.pid, "down")
                cut_link = False
                open(os.path.join(folder, "cut"), "w").close()
        if case == "cut":
            switch_link(bed_process.pid, "up")  # so that the launcher can end what it started there
        bed_process.terminate()
        status = bed_process.wait()
        out.seek(0)
        text = out.read()
    if status == 77:
        print(text)
        sys.exit(77)
    return text


def switch_link(bed_pid, way):
    """The cable between the victim's host and the switch of the bed."""
    port = "port%d" % (victim // node_ranks + 1)
    subprocess.run(["ip", "-n", "dtr%dsw" % bed_pid, "link", "set", port, way], check=True)


def named(some):
    """As dtr-doctor names ranks: "rank 2", "ranks 0-1, 3"."""
    parts = []
    for r in sorted(some):
        if parts and parts[-1][1] == r - 1:
            parts[-1][1] = r
        else:
            parts.append([r, r])
    return ("rank " if len(some) == 1 else "ranks ") + ", ".join("%d" % a if a == b else "%d-%d" % (a, b) for a, b in parts)


def survivors():
    dead = {"killed": [victim], "word_killed": [victim], "muted": [victim], "killed_node": victims_node()}.get(case, [])
    return [r for r in range(ranks) if r not in dead]


def victims_node():
    return [r for r in range(ranks) if r // node_ranks == victim // node_ranks]


def lines(rank):
    """What a rank noted: name -> (status, message)."""
    try:
        with open(os.path.join(folder, "rank%d" % rank)) as f:
            parts = [line.rstrip("\n").split(" ", 2) for line in f]
    except OSError:
        return {}
    return {p[0]: (p[1], p[2] if len(p) > 2 else "") for p in parts if len(p) >= 2}


def expect(rank, call, status, *words):
    got = lines(rank).get(call, ("nothing", ""))
    check(got[0] == status, "rank %d: %s gave %s, want %s: %s" % (rank, call, got[0], status, got[1]))
    for word in words:
        check(re.search(word, got[1]), "rank %d: %s: no \"%s\" in: %s" % (rank, call, word, got[1]))


def ask_doctor(*arguments):
    done = subprocess.run([doctor, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    check(done.returncode in (0, 1, 2), "dtr-doctor ended with %d" % done.returncode)
    return done.returncode, done.stdout.decode(errors="replace")


def diagnosis(*patterns, code=1):
    """The first sentence matches the first pattern, and so on; then every rank has a row in the table."""
    got, text = ask_doctor(recordings)
    check(got == code, "dtr-doctor gave %d, want %d:\n%s" % (got, code, text))
    sentences = text.split("\n")
    for i, pattern in enumerate(patterns):
        check(re.search(pattern, sentences[i]), "sentence %d of dtr-doctor lacks \"%s\":\n%s" % (i + 1, pattern, text))
    for r in range(ranks):
        check(re.search(r"(?m)^ +%d  " % r, text), "no row for rank %d:\n%s" % (r, text))
    return text


def files(end=".rec"):
    return sorted(os.path.join(recordings, f) for f in os.listdir(recordings) if f.endswith(end))


def dumps(cause):
    """O6, O13: every rank has left a dump with that cause and its records, in one piece."""
    found = files(".dump.json")
    check(len(found) == ranks, "%d dumps of %d ranks" % (len(found), ranks))
    check(not files(".new"), "a dump was left half done")
    for path in found:
        with open(path) as f:
            dump = json.load(f)
        check(any(re.search(cause, c["text"]) for c in dump["causes"]), "%s: %s" % (path, dump["causes"]))
        check(len(dump["records"]) >= 20 and len(dump["node"]) == (node_ranks or ranks), "%s lacks records or ranks" % path)
        check(all(re.search(r"fault(_nodes)?\.c:", r["site"]) for r in dump["records"]),
              "%s: records without call site" % path)
    return found


# ---- what each fault must produce ----

def healthy():
    for r in range(ranks):
        expect(r, "allreduce", "DTR_OK")
        expect(r, "destroy", "DTR_OK")
    code, text = ask_doctor(recordings)
    first = text.split("\n")[0]
    # DR5: under load a rank may be last so often that this is said.
    check("usually last" in first or re.search(
        r"no problem found: %d ranks; rank 0 has finished allreduce #\d+ .* 'last' group 'world', called at fault\.c:\d+" % ranks,
        first), text)
    robust()


def unwritable():
    """FI24: work goes on, after one warning of each rank with the folder and the reason."""
    for r in range(ranks):
        expect(r, "allreduce", "DTR_OK")
        expect(r, "destroy", "DTR_OK")
        warnings = re.findall(r"(?m)^\[rank%d\]: warning: .*no file in /proc/nowhere \(DTR_RECORDER_DIR\): \w+" % r, output)
        check(len(warnings) == 1, "%d warnings of rank %d" % (len(warnings), r))


def robust():
    """DR1, DR3, DR4: machine-readable output, a trace, damaged, missing and stale files."""
    trace = os.path.join(folder, "trace.json")
    code, text = ask_doctor("--json", "--last", "3", "--trace", trace, recordings)
    report = json.loads(text)
    check(report["ranks_read"] == ranks and len(report["ranks"]) == ranks, text)
    check([len(r["newest"]) for r in report["ranks"]] == [3] * ranks, text)
    check("fault.c:" in report["ranks"][0]["last"]["site"], text)
    with open(trace) as f:
        events = json.load(f)["traceEvents"]
    slices = [e for e in events if e["ph"] == "X"]
    check({e["pid"] for e in slices} == set(range(ranks)), "a rank has no slices in the trace")
    check(all(e["dur"] >= 0 and e["ts"] >= 0 for e in slices), "negative times in the trace")
    compute = [e for e in slices if e["cat"] == "compute"]
    check({e["pid"] for e in compute} == set(range(ranks)), "a rank has no compute in the trace")
    for track in {(e["pid"], e["tid"]) for e in slices}:
        of = sorted((e["ts"], e["ts"] + e["dur"]) for e in slices if (e["pid"], e["tid"]) == track)
        check(all(a[1] <= b[0] + 0.002 for a, b in zip(of, of[1:])), "slices of track %s overlap" % str(track))
    for r in range(ranks):
        buckets = [(e["ph"], e["name"].split(".")[-1]) for e in events if e.get("cat") == "bucket" and e["pid"] == r]
        check(buckets == [("b", "bucket0"), ("e", "bucket0")], "buckets of rank %d: %s" % (r, buckets))
        spans = {e["name"] for e in events if e.get("cat") == "span" and e["pid"] == r}
        check({"ddp_backward", "ddp_bucket"} <= spans, "spans of rank %d: %s" % (r, spans))
    check(sum("'warm'" in e["name"] for e in slices) == 20 * ranks, "not all operations are in the trace")
    names = files()
    check(len(names) == ranks, "%d recordings of %d ranks" % (len(names), ranks))
    two = [os.path.join(folder, "host%d" % k) for k in range(2)]  # DR1: as of two hosts
    for k in range(2):
        os.makedirs(two[k])
        for name in names[k::2]:
            shutil.copy(name, two[k])
    code, text = ask_doctor("--last", "2", *two)
    check("no readable recording" not in text, text)
    for r in range(ranks):  # DR4
        check(len(re.findall(r"(?m)^ +%d +\d+ +finished +[0-9.]+ +[0-9.]+ +\w+ #\d+ .* at \S+$" % r, text)) == 2,
              "not two newest operations of rank %d:\n%s" % (r, text))
    with open(names[-1], "r+b") as f:  # cut off in the ring: still read
        f.truncate(os.path.getsize(names[-1]) - 100000)
    stale = bytearray(open(names[0], "rb").read())
    at = stale.find(open(names[0], "rb").read()[:8]) + 88  # job id
    stale[at:at + 8] = (1).to_bytes(8, sys.byteorder)
    with open(os.path.join(recordings, "old.rec"), "wb") as f:
        f.write(stale)
    with open(os.path.join(recordings, "rubbish.rec"), "wb") as f:
        f.write(os.urandom(50000))
    os.unlink(names[0])
    code, text = ask_doctor(recordings)
    check(code == 1 and re.search(r"no readable recording of rank 0\b", text), text)
    check(re.search(r"rubbish\.rec cannot be used", text), text)
    check(re.search(r"1 recordings of earlier worlds are left out", text), text)
    check(ask_doctor(os.path.join(recordings, "rubbish.rec"))[0] == 2, "rubbish alone is not status 2")


def slow():
    """FI2: no error, only the doctor speaks."""
    for r in range(ranks):
        expect(r, "allreduce", "DTR_OK")
    text = diagnosis(r"rank %d \(host .*\) is usually last: into \d+ %% of \d+ operations" % victim)
    shares = [float(re.search(r"(?m)^ +%d +\S+ +\d+ +ended +[0-9.]+ +(\d+) %% +(-|[0-9.]+) " % r, text).group(1)) for r in range(ranks)]
    check(max(shares) == shares[victim], text)


def absent():
    for r in others:
        expect(r, "allreduce", "DTR_ERR_TIMEOUT")
    diagnosis(r"rank %d \(host \S+, pid \d+\) never entered %s, called at %s\w+ on %s; .*"
              r"its last finished operation .* %s.*called at %s" % (victim, TITLE, SITE, named(others), LAST, SITE))
    dumps(r"\w+ #\d+ of group 'world(\.ddp)?' failed")


seen_running = ""


def trigger():
    """O7: asks the running job for dumps as soon as all ranks are in their places, then lets it end."""
    while len([f for f in os.listdir(folder) if f.startswith("in")]) < ranks:
        time.sleep(0.02)
    global seen_running
    seen_running = ask_doctor(recordings)[1]
    code, text = ask_doctor("--trigger", recordings)
    check(code == 0 and len(re.findall(r"asked rank \d", text)) == ranks, text)
    while len(files(".dump.json")) < ranks:
        time.sleep(0.02)
    open(os.path.join(folder, "go"), "w").close()


def look():
    """DR1: dtr-doctor reads a running job as well, here once the others have given up."""
    global seen_running
    while not all(os.path.exists(os.path.join(folder, "done%d" % r)) for r in others):
        time.sleep(0.02)
    seen_running = ask_doctor(recordings)[1]
    open(os.path.join(folder, "looked"), "w").close()


BESIDE = {"asked": "trigger", "stopped": "look"}  # runs while the job does


def asked():
    for r in range(ranks):
        expect(r, "allreduce", "DTR_OK")
        expect(r, "destroy", "DTR_OK")
    dumps(r"dtr-doctor --trigger on rank \d")
    check(re.match(r"rank %d \(host \S+, pid \d+\) never entered %s, called at fault\.c:\d+ on %s; it is outside the library since "
                   r"[0-9.]+ s; its last finished operation is %s" % (victim, TITLE, named(others), LAST), seen_running), seen_running)
    for r in range(ranks):
        row = r"running +[0-9.]+ +\d+ %% +(-|[0-9.]+) +%s +last: allreduce #20 .*" % ("-" if r == victim else victim)
        check(re.search(r"(?m)^ +%d +\S+ +\d+ +%s$%s" % (r, row, "" if r == victim else r"\n +now: " + TITLE), seen_running), seen_running)
    check(ask_doctor("--trigger", recordings)[0] == 2, "a job that has ended was asked")


def kind():
    """FI9, T5."""
    for r in range(ranks):
        expect(r, "call", "DTR_ERR_MISMATCH")
    check(not files(".dump.json"), "a dump in spite of DTR_DUMP=0")
    odd = 0 if ranks > 3 else victim
    most = named([r for r in range(ranks) if r != odd])
    diagnosis(r"ranks disagree on operation #21 of group 'world': %s called %s at fault\.c:\d+, but rank %d called broadcast #21 f32 "
              r"x 1000 root 0 group 'world' at fault\.c:\d+" % (most, TITLE, odd))


def ended(ranks_ended, cause):
    """FI27, M1, M3, T2: by SIGABRT, after the dumps, and the last line of the log says why."""
    for r in ranks_ended:
        check(os.path.exists(os.path.join(folder, "abort%d" % r)), "rank %d was not ended by SIGABRT" % r)
        with open(os.path.join(folder, "log%d" % r)) as f:
            last = f.read().rstrip("\n").split("\n")[-1]
        check(re.search(r"\[rank%d\]: error: DTR_ON_ERROR=abort ends this process: .*%s" % (r, cause), last), last)
        check("destroy" not in lines(r), "rank %d came out of dtr_world_destroy" % r)
    check({"rank%d." % r for r in ranks_ended} <= {f.split("-")[-1].split("dump")[0] for f in files(".dump.json")},
          "a dump is missing: %s" % files(".dump.json"))


def abort_absent():
    ended(range(ranks), "allreduce #21 ")


def abort_kind():
    ended(range(ranks), "(allreduce|broadcast)")


def abort_killed():
    ended(others, r"rank %d \(host \S+, pid \d+\) died" % victim)


def far_killed():
    """Nobody is left on the victim's node to say more than what it had reported."""
    for r in others:
        expect(r, "allreduce", "DTR_ERR_REMOTE",
               r"rank %d \(host \S+, pid \d+\) died or ended without dtr_world_destroy: its connection has ended" % victim)
        expect(r, "destroy", "DTR_OK")


def killed_node():
    named = "|".join(map(str, victims_node()))
    for r in survivors():
        expect(r, "allreduce", "DTR_ERR_REMOTE", r"rank (%s) \(host \S+, pid \d+\) died" % named)
        expect(r, "destroy", "DTR_OK")


def said(rank, word, status, text):
    """CP10: what a rank got as the word of all."""
    expect(rank, word, "DTR_OK")
    expect(rank, word + "_said", status, "^%s$" % text)


def word_killed():
    for r in others:
        said(r, "first", "DTR_ERR_STATE", "rank %d in step 1" % (ranks - 1))
        expect(r, "second", "DTR_ERR_REMOTE", r"rank %d \(host \S+, pid \d+\) died" % victim)
        expect(r, "destroy", "DTR_OK")


def word_stopped():
    for r in range(ranks):
        said(r, "word", "DTR_ERR_STATE", "rank %d in step 1" % victim)
        expect(r, "destroy", "DTR_OK")


def far_absent():
    for r in others:
        expect(r, "allreduce", "DTR_ERR_TIMEOUT",
               r"rank %d \(host \S+, pid \d+\) has not entered allreduce #21 \(1 behind\): (no report .*)?it is outside the "
               r"library since [0-9.]+ s; its last finished operation is allreduce #20 f32 x 1000 max 'warm' group 'world', called at fault\.c:\d+ "
               r"\(alive but not progressing since [0-9.]+ s, last at fault\.c:\d+\)" % victim)


def far_stopped():
    for r in others:
        expect(r, "allreduce", "DTR_ERR_TIMEOUT",
               r"rank %d \(host \S+, pid \d+\) has not entered .*: (no report of it has come since [0-9.]+ s; .*|.*and stopped \(SIGSTOP\).*)"
               r"alive but not progressing since [0-9.]+ s, last at fault\.c:\d+" % victim)


def barrier():
    for r in others:
        for call, listed in ("barrier", "missing"), ("again", "then"):
            expect(r, call, "DTR_ERR_REMOTE", r"rank %d \(host \S+, pid \d+\) died" % victim)
            check(lines(r).get(listed) == ("1", str(victim)), "rank %d: %s: %s" % (r, listed, lines(r).get(listed)))
        expect(r, "destroy", "DTR_OK")


def no_creation():
    for r in others:
        expect(r, "split", "DTR_ERR_TIMEOUT", "dtr_group_split")
        expect(r, "half", "none")
        expect(r, "destroy", "DTR_OK")
    # The chair knows who has come; a rank that was held up may have come after its limit.
    expect(0, "split", "DTR_ERR_TIMEOUT", r"\d of %d ranks came within 1 s, missing: rank" % ranks,
           r"rank %d \(host \S+, pid \d+\): it is outside the library since [0-9.]+ s; its last finished operation is "
           r"allreduce #20 .*alive but not progressing since [0-9.]+ s, last at fault\.c:\d+" % victim)


def no_world():
    for r in range(ranks):
        expect(r, "meet", "DTR_ERR_TIMEOUT", r"rank %d has waited 1 s, but not all %d ranks" % (r, ranks))


def aborted():
    """FI17, O6, O14: an abort leaves evidence as errors do."""
    for r in range(ranks):
        expect(r, "allreduce", "DTR_ERR_ABORTED", "the loss is not a number")
    dumps(r"^dtr_group_abort of group 'world'$")
    check(re.search(r"(?m)^the first error was DTR_ERR_ABORTED on rank \d: group \"world\" was aborted by rank %d \(world rank %d\): the "
                    r"loss is not a number" % (victim, victim), ask_doctor(recordings)[1]), "dtr-doctor does not tell of the abort")


def killed():
    if node_ranks == 1:
        far_killed()
        return
    for r in others:
        expect(r, "allreduce", "DTR_ERR_REMOTE", r"rank %d \(host \S+, pid \d+\) died: it was .*%s.*"
               r"called at %s" % (victim, LAST, SITE))
        expect(r, "destroy", "DTR_OK")
    diagnosis(r"rank %d \(host \S+, pid \d+\) died .*%s.*called at %s" % (victim, LAST, SITE))


def cascade():
    for k in range(ranks, 1, -1):
        for r in range(k - 1):
            expect(r, "kill%d" % k, "DTR_ERR_REMOTE", r"rank %d \(host \S+, pid \d+\) died" % (k - 1), r"called at fault\.c:")
    for call in "module", "step", "modules", "destroy":
        expect(0, call, "DTR_OK")
    text = diagnosis(r"rank %d \(host \S+, pid \d+\) died or ended without dtr_world_destroy, as the first, last sign of life "
                     r"at [0-9:]+ UTC: when it ended, it was " % (ranks - 1))
    check("\n%s ended without dtr_world_destroy too;" % named(range(1, ranks - 1)) in text, text)


def busy():
    """CP6, P7: whatever the rank was doing, the others end, and what it has left can be read."""
    for k in range(ranks, 1, -1):
        for r in order[ranks - k + 1:]:
            expect(r, "kill%d" % k, "DTR_ERR_REMOTE", r"rank %d \(host \S+, pid \d+\) died" % order[ranks - k])
    expect(order[-1], "destroy", "DTR_OK")
    text = diagnosis(r"rank \d \(host \S+, pid \d+\) died ")
    check("cannot be used" not in text, "a recording cannot be read:\n" + text)


def killed_p2p():
    for r in others:
        for call in "blocking", "long", "receive", "any", "last":
            expect(r, call, "DTR_ERR_REMOTE", r"rank %d \(host \S+, pid \d+\) died: it was .*allreduce #20 .*'warm'" % victim)
        expect(r, "destroy", "DTR_OK")


def crashed():
    for r in others:
        expect(r, "allreduce", "DTR_ERR_REMOTE", r"rank %d \(host \S+, pid \d+\) died: it was .*%s" % (victim, LAST))
        expect(r, "destroy", "DTR_OK")


def left():
    # Open MPI may end the others, also with recovery, when a rank exits without MPI_Finalize.
    told = [r for r in others if "allreduce" in lines(r)]
    check(told, "no rank has learnt of it")
    for r in told:
        expect(r, "allreduce", "DTR_ERR_REMOTE",
               r"rank %d \(host \S+, pid \d+\) ended without dtr_world_destroy: it was .*%s" % (victim, LAST))
        if "destroy" in lines(r):
            expect(r, "destroy", "DTR_OK")
    diagnosis(r"rank %d .* ended without dtr_world_destroy" % victim)


def killed_async():
    for r in others:
        # EA3, M5, M9. Death may be known before all have been issued, or before the first.
        notes = lines(r)
        works = [k for k in notes if k.startswith("work")]
        check(notes.get("issued", ("",))[0] in ("DTR_OK", "DTR_ERR_REMOTE"), "rank %d: issued %s" % (r, notes))
        for call in works + ["after"]:
            expect(r, call, "DTR_ERR_REMOTE", r"rank %d \(host \S+, pid \d+\) died" % victim, "outputs of its unfinished")
        expect(r, "before", "DTR_OK")
        expect(r, "group", "DTR_ERR_REMOTE")
        expect(r, "destroy", "DTR_OK")
    causes = {lines(r).get("after", ("", ""))[1] for r in others}
    check(len(causes) == 1, "not the same words on all ranks: %s" % causes)


def other_group():
    for r in others:
        expect(r, "world", "DTR_ERR_REMOTE", "rank %d .* died" % victim)
        expect(r, "half", "DTR_OK")
        expect(r, "destroy_half", "DTR_OK")
        expect(r, "destroy", "DTR_OK")


def creation():
    for r in others:
        expect(r, "split", "DTR_ERR_REMOTE", "dtr_group_split", r"rank %d \(host \S+, pid \d+\) died: it was " % victim)
        expect(r, "half", "none")
        expect(r, "destroy", "DTR_OK")


def stopped():
    for r in others:
        expect(r, "allreduce", "DTR_ERR_TIMEOUT", "rank %d" % victim)
    texts = " ".join(lines(r).get("allreduce", ("", ""))[1] for r in others)
    check(re.search(r"rank %d \(host \S+, pid \d+\) has not entered .*: it is outside the library since [0-9.]+ s and stopped" % victim, texts),
          "nobody says that rank %d is stopped: %s" % (victim, texts))
    expect(victim, "allreduce", "DTR_ERR_TIMEOUT")
    # DR2: while the job was running.
    check(re.search(r"(?m)^rank %d \(host \S+, pid \d+\) is stopped \(SIGSTOP or a debugger\); it is outside the library since "
                    r"[0-9.]+ s and stopped \(SIGSTOP\); its last finished operation is %s" % (victim, LAST), seen_running), seen_running)
    check(re.search(r"(?m)^ +%d .* stopped " % victim, seen_running), seen_running)


def no_partner():
    one, other = ("send", "recv") if backend == "mpi" else ("recv", "send")
    ends = r"%s #1 0%s%d f32 x \d+ tag 7 'halo' group 'world'" % (one, "->" if one == "send" else "<-", victim)  # S6
    expect(0, "partner", "DTR_ERR_TIMEOUT", ends, r"called at fault\.c:\d+",
           r"rank %d \(host \S+, pid \d+\): it is outside the library .*allreduce #20 " % victim)
    diagnosis(r"rank 0 waited in %s, called at fault\.c:\d+, but rank %d .* has not posted the matching %s" % (ends, victim, other))


def far_dump():
    for r in range(ranks):
        expect(r, "allreduce", "DTR_OK")
        if r in victims_node():
            expect(r, "call", "DTR_ERR_MISMATCH")
    dumps(r"(broadcast|allreduce) #1 of group '\S+' failed")


def cut():
    """FI25, T28: each side learns that the other has been silent."""
    gone = victims_node()
    for r in range(ranks):
        far = [s for s in range(ranks) if (s in gone) != (r in gone)]
        expect(r, "allreduce", "DTR_ERR_REMOTE", r"rank (%s) \(host \S+, pid \d+\) is lost: node \d, host \S+, has been "
               r"silent for 2 s" % "|".join(map(str, far)))
        expect(r, "destroy", "DTR_OK")


def flipped():
    """Q7: dtr-doctor names the first operation whose outputs differ, and no later one."""
    for r in range(ranks):
        for call in "register", "split", "allreduce", "destroy":
            expect(r, call, "DTR_OK")
    text = diagnosis(r"the outputs of allreduce #3 f32 x 1000 sum group 'replicas', called at fault_nodes\.c:\d+, differ between "
                     r"ranks: most have hash [0-9a-f]{16}, but rank %d has [0-9a-f]{16}" % victim)
    check(text.count("the outputs of") == 1, text)


def muted():
    for r in others:
        expect(r, "allreduce", "DTR_ERR_REMOTE", r"rank %d \(host \S+, pid \d+\) died" % victim)
        expect(r, "destroy", "DTR_OK")


def hung():
    """FI26, N4, O3, T8: the rank's groups end everywhere, what it is not in goes on, and nobody hangs in the end."""
    for r in range(ranks):
        for call in ["allreduce"] + ["recv"] * (r == victim):
            expect(r, call, "DTR_ERR_TIMEOUT", r"^rank %d \(host \S+, pid \d+\): its progress thread has been inside "
                   r"MPI_(Test|Improbe) for more than 3 s \(DTR_HEARTBEAT_LIMIT\)\. Group 'world' is broken" % victim)
        expect(r, "half", "DTR_ERR_TIMEOUT" if r == victim else "DTR_OK")
        expect(r, "destroy_half", "DTR_OK")
        expect(r, "destroy", "DTR_OK")
    check(len({lines(r).get("allreduce") for r in range(ranks)}) == 1, "not the same words on all ranks")
    check(re.search(r"\[rank%d\]: warning: the progress thread is still inside MPI_" % victim, output), "no warning")
    for path in dumps(r"group '(world|2)' failed"):  # the victim's groups end in any order, the first of them asks for dumps
        with open(path) as f:
            told = [n for n in json.load(f)["node"] if n["world_rank"] == victim]
        check(all(re.match(r"MPI_(Test|Improbe)$", n.get("progress_inside", "")) and n["progress_still_s"] >= 2
                  for n in told), "%s: %s" % (path, told))
    diagnosis(r"rank %d \(host \S+, pid \d+\): its progress thread was inside MPI_(Test|Improbe) at the end and had "
              r"not come back for [0-9.]+ s" % victim)
    report = json.loads(ask_doctor("--json", recordings)[1])
    check([r["rank"] for r in report["ranks"] if r.get("progress_inside", "").startswith("MPI_")] == [victim],
          "not just rank %d is inside a call of MPI: %s" % (victim, report))


def refused():
    expect(victim, "bad", "DTR_ERR_ARG")
    for r in others:
        expect(r, "allreduce", "DTR_ERR_TIMEOUT")
    texts = " ".join(lines(r).get("allreduce", ("", ""))[1] for r in others)
    check(re.search(r"rank %d \(.*its last call failed: .*NULL" % victim, texts), "the refusal is not told: " + texts)


def opposite():
    for r in range(ranks):
        expect(r, "first", "DTR_ERR_TIMEOUT")
    texts = " ".join(lines(r).get("first", ("", ""))[1] for r in range(ranks))
    check("opposite order" in texts and "'rows'" in texts and "'columns'" in texts, texts)
    diagnosis(r"groups are used in opposite order: rank \d waits in allreduce #1 .*called at fault\.c:\d+, for rank \d, "
              r"which waits in allreduce #1 .*called at fault\.c")


helper = threading.Thread(target=globals()[BESIDE[case]], daemon=True) if case in BESIDE else None
prepare()
if helper:
    helper.start()
output = launch()
globals()[case]()
if problems:
    print("\n".join(problems))
    print("---- output of the job ----\n" + output)
    sys.exit(1)
shutil.rmtree(folder, ignore_errors=True)
