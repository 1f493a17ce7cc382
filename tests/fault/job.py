"""One job of run.py: its arguments, how it is started, what its ranks noted, and what is checked of that. Exit 77: skipped."""
import json
import os
import random
import re
import shutil
import subprocess
import sys
import time

from held import Held

arguments = sys.argv[1:] + ["auto", "0", "-", "small"][len(sys.argv) - 7:]
mpiexec, program, doctor, base, case, ranks, backend, node_ranks, bed, way = arguments
bed = "" if bed == "-" else bed
ranks, node_ranks = int(ranks), int(node_ranks)
victim = 3 if ranks > 4 and "_creation" in case else 2 if ranks > 2 else 1  # 3: an inner rank of the tree by which groups are made
others = [r for r in range(ranks) if r != victim]
problems = []
clock = Held()
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
         "ordered": r"allreduce #21 f32 x 300000 user op \d+ 'grad\.3' group 'world'",
         "scope": r"coalesced #21 \(\d operations?\) group 'world'",
         "backward": r"allreduce #\d+ f32 x \d+ avg 'ddp\d+\.bucket0' group 'world\.ddp'"}[way]
SITE = r"fault\.c:"
LAST = r"\w+ #\d+ .* group 'world\.ddp'" if way == "backward" else r"allreduce #20 .*'warm'"

# What all that waited for the victim are told: the operation, its place, and who has not come.
WAITED = re.sub(r" f32.*", "", TITLE) if way == "backward" else TITLE
NOT_ENTERED = (WAITED, SITE, r"rank %d \(host \S+, pid \d+\) has not entered " % victim)

# Settings of single cases.
ABORT = {"DTR_ON_ERROR": "abort", "DTR_LOG_FILE": os.path.join(folder, "log%r")}
SETTINGS = {"kind": {"DTR_DUMP": "0"}, "unwritable": {"DTR_RECORDER_DIR": "/proc/nowhere"},
            # Its watchdog, which would hear of it as well, goes on at the same moment.
            "stopped_again": {"DTR_WATCHDOG_MS": "10000"}, "cut": {"DTR_NODE_SILENCE": "2"}, "muted": {"DTR_LOG": "debug"},
            "hung": {"DTR_HEARTBEAT_LIMIT": "3"}, "hung_left": {"DTR_HEARTBEAT_LIMIT": "3"}, "killed_inside": {"DTR_FAKE_NCCL_KILL_RANK": "%d@21" % victim},
            "killed_told": {"DTR_FAKE_NCCL_KILL_RANK": "%d@21" % victim, "DTR_FAKE_NCCL_REMOTE_ERR": "1", "DTR_TIMEOUT": "60",
                            "DTR_NODE_RANKS": "1", "DTR_CONTROL_MS": "0"}, "flipped": {"DTR_HASH": "1"},
            "abort_absent": ABORT, "abort_kind": ABORT, "abort_killed": ABORT}


CUT_S = 5  # a link that comes back: less than DTR_NODE_SILENCE
# Seconds that calls may wait by themselves: their own limit, that of heartbeats, or of a node's silence.
T = {"absent": 1, "abort_absent": 1, "stopped": 1, "stopped_again": 1, "refused": 1, "no_partner": 1, "opposite": 1, "no_creation": 1, "no_world": 1,
     "stopped_creation": 10, "far_absent": 0.2, "far_stopped": 0.2, "hung": 3, "hung_left": 3, "cut": 2, "cut_short": CUT_S}.get(case, 0)
PROMPT_S = 3 if node_ranks > 0 else 1  # what comes on top


def prepare():
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(recordings)


def launch():
    env = dict(os.environ, DTR_RECORDER_DIR=recordings, DTR_BACKEND="cpu:" + backend)
    if backend == "nccl":
        env.update(DTR_BACKEND="cpu:auto,cuda:nccl", FAULT_DEVICE="cuda")
    env.update(SETTINGS.get(case, {}))
    env.pop("OMPI_MCA_orte_abort_on_non_zero_status", None)
    version = subprocess.run([mpiexec, "--version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout
    # A rank's death must not be the launcher's reason to end the others. Hydra sends them SIGUSR1 all the same, and SIGKILL
    # when it sees that a process which it started was ended by a signal: it starts shells, which are not.
    if b"Open MPI" in version or b"OpenRTE" in version:
        start, shell = [mpiexec, "--enable-recovery", "-n", str(ranks)], []
    else:
        start, shell = [mpiexec, "-disable-auto-cleanup", "-n", str(ranks)], ["sh", "-c", 'trap "" USR1; "$@"; exit $?', "sh"]
    if bed:
        each = str(node_ranks)
        start = [bed, "--mpiexec", mpiexec, "--hosts", str(ranks // node_ranks), "--ranks", each, "--", "--enable-recovery"]
        # From version 5 on the transport between hosts ends a process whose peer has died, but for this.
        start += ["--with-ft", "ulfm"] if re.search(rb"Open MPI\) ([5-9]|\d\d)", version) else []
    elif node_ranks > 0:
        env["DTR_NODE_RANKS"] = str(node_ranks)
    if bed:
        return launch_bed(start + [program, case, folder, way], env)
    done = subprocess.run(start + shell + [program, case, folder, way], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.stdout.decode(errors="replace")


def launch_bed(command, env):
    """With a rank killed on another host the launcher never ends, so it is ended when the ranks have."""
    with open(os.path.join(folder, "output"), "w+") as out:
        bed_process = subprocess.Popen(command, env=env, stdout=out, stderr=subprocess.STDOUT)
        cut_link = case in ("cut", "cut_short")
        while bed_process.poll() is None and not all("destroy" in lines(r) for r in survivors()):
            time.sleep(0.05)
            if cut_link and all(os.path.exists(os.path.join(folder, "in%d" % r)) for r in range(ranks)):
                switch_link(bed_process.pid, "down")
                with open(os.path.join(folder, "fault%d" % victim), "w") as f:
                    f.write("%.6f" % time.monotonic())
                cut_link = False
                open(os.path.join(folder, "cut"), "w").close()
                if case == "cut_short":
                    time.sleep(CUT_S)
                    switch_link(bed_process.pid, "up")
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
    alone = case in ("killed", "killed_storing", "killed_node_barrier", "killed_scan", "killed_inside", "killed_told", "vote_killed", "muted")
    dead = [victim] if alone else victims_node() if case == "killed_node" else []
    return [r for r in range(ranks) if r not in dead]


def victims_node():
    return [r for r in range(ranks) if r // node_ranks == victim // node_ranks]


def notes(rank):
    """What a rank noted, in order: (name, status, message, (begun, ended) of a call)."""
    try:
        with open(os.path.join(folder, "rank%d" % rank)) as f:
            found = [re.match(r"(\S+) (\S+)(?: @([0-9.]+)-([0-9.]+))? ?(.*)", line) for line in f]
    except OSError:
        return []
    return [(m[1], m[2], m[5], (float(m[3]), float(m[4])) if m[3] else None) for m in found if m]


def lines(rank):
    """name -> (status, message) of the last note of that name."""
    return {name: (status, message) for name, status, message, _ in notes(rank)}


def fault_times():
    """When it happened, on each rank on which it did."""
    found = [os.path.join(folder, f) for f in os.listdir(folder) if re.match(r"fault\d+$", f)]
    return [float(open(f).read()) for f in found]


def in_time():
    """The limits of reliability, section FI: counted from the call or from the fault, whichever is later, every call comes back
    within its limit and what the page adds to it. Nobody who waits gives up before its limit has passed for the first of them."""
    faults = fault_times()
    calls = [(r,) + n for r in range(ranks) for n in notes(r) if n[3]]
    check(calls, "no rank has noted a call")
    for r, name, status, _, (begun, ended) in calls:
        since = max([begun] + [t for t in faults if t < ended])
        must_be_soon(since, ended, "rank %d: %s" % (r, name))
        first = min(c[4][0] for c in calls if c[1] == name)
        check(status != "DTR_ERR_TIMEOUT" or r == victim or name == "after" or case in ("hung", "hung_left") or ended - first >= T - 0.01,
              "rank %d: %s gave up after %.3f s of %g s" % (r, name, ended - first, T))


def must_be_soon(since, ended, what, more=0):
    late = clock.late(since, ended, T + PROMPT_S + more, what)
    check(not late, late)


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
    job, *sentences = text.split("\n")
    check(re.match(r"job [0-9a-f]{16}, %d ranks?, started [-0-9]+ [:0-9]+ UTC: .*%s" % (ranks, os.path.basename(program)), job),
          "dtr-doctor does not name the job first:\n%s" % text)
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
        called = [r for r in dump["records"] if not r["operation"].startswith("connect #0 ")]  # which the library does by itself
        check(all(re.search(r"fault(_\w+)?\.c:", r["site"]) for r in called), "%s: records without call site" % path)
    return found
