"""Runs one fault and judges what the surviving ranks wrote and what dtr-doctor says.

run.py MPIEXEC PROGRAM DOCTOR FOLDER CASE RANKS [BACKEND [NODE_RANKS [BED [WAY]]]]

NODE_RANKS: so many ranks are a node; 0: hosts are nodes. BED: scripts/testbed/run, to make a host of every node; "-": none.
WAY: how the operation is called that meets the fault (small large async scope backward ordered), where the case asks for it.

Exit 0: as it must be. Every call that a rank noted must have come back in time: see in_time().
"""
import json
import os
import re
import shutil
import sys
import threading
import time

sys.dont_write_bytecode = True
from job import (LAST, NOT_ENTERED, SITE, TITLE, ask_doctor, backend, case, check, diagnosis, doctor, dumps, expect,
                 fault_times, files, folder, in_time, launch, lines, must_be_soon, named, node_ranks, notes, order, others,
                 prepare, problems, ranks, recordings, survivors, victim, victims_node)
from robust import robust

# ---- what each fault must produce ----

def healthy():
    for r in range(ranks):
        expect(r, "allreduce", "DTR_OK")
        expect(r, "destroy", "DTR_OK")
    code, text = ask_doctor(recordings)
    first = text.split("\n")[1]  # after the job
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


def slow():
    """FI2: no error, only the doctor speaks."""
    for r in range(ranks):
        expect(r, "allreduce", "DTR_OK")
    text = diagnosis(r"rank %d \(host .*\) is usually last: into \d+ %% of \d+ operations" % victim)
    shares = [float(re.search(r"(?m)^ +%d +\S+ +\d+ +ended +[0-9.]+ +(\d+) %% +(-|[0-9.]+) " % r, text).group(1)) for r in range(ranks)]
    check(max(shares) == shares[victim], text)


def absent():
    for r in others:
        expect(r, "allreduce", "DTR_ERR_TIMEOUT", *NOT_ENTERED, r"it is outside the library since [0-9.]+ s; its last finished "
               r"operation is %s.*called at %s" % (LAST, SITE))
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


BESIDE = {"asked": "trigger", "stopped": "look", "stopped_again": "look"}  # runs while the job does


def asked():
    for r in range(ranks):
        expect(r, "allreduce", "DTR_OK")
        expect(r, "destroy", "DTR_OK")
    dumps(r"dtr-doctor --trigger on rank \d")
    check(re.search(r"(?m)^rank %d \(host \S+, pid \d+\) never entered %s, called at fault\.c:\d+ on %s; it is outside the library since "
                   r"[0-9.]+ s; its last finished operation is %s" % (victim, TITLE, named(others), LAST), seen_running), seen_running)
    for r in range(ranks):
        row = r"running +[0-9.]+ +\d+ %% +(-|[0-9.]+) +%s +last: allreduce #20 .*" % ("-" if r == victim else victim)
        check(re.search(r"(?m)^ +%d +\S+ +\d+ +%s$%s" % (r, row, "" if r == victim else r"\n +now: " + TITLE), seen_running), seen_running)
    check(ask_doctor("--trigger", recordings)[0] == 2, "a job that has ended was asked")


def kind():
    """FI9, T5."""
    for r in range(ranks):
        expect(r, "call", "DTR_ERR_MISMATCH", r"disagree on the kind of \w+: most have \w+ .*, but rank \d has broadcast")
    check(not files(".dump.json"), "a dump in spite of DTR_DUMP=0")
    odd = 0 if ranks > 3 else victim
    most = named([r for r in range(ranks) if r != odd])
    diagnosis(r"ranks disagree on operation #21 of group 'world': %s called %s at fault\.c:\d+, but rank %d called broadcast #21 f32 "
              r"x 1000 root 0 group 'world' at fault\.c:\d+" % (most, TITLE, odd))


def ended(ranks_ended, cause):
    """FI27, M1, M3, T2: by SIGABRT, after the dumps, and the last line of the log says why."""
    for r in ranks_ended:
        aborted = os.path.join(folder, "abort%d" % r)
        check(os.path.exists(aborted), "rank %d was not ended by SIGABRT" % r)
        if os.path.exists(aborted):
            at = os.stat(aborted).st_mtime - time.time() + time.monotonic()
            entered = [begun for name, _, _, (begun, _) in notes(r) if name == "entered"]
            must_be_soon(max(entered + fault_times()), at, "rank %d: SIGABRT" % r, more=15)  # DTR_DUMP_WAIT
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


def said(rank, vote, status, text):
    """CP10: which vote counts on a rank."""
    expect(rank, vote, "DTR_OK")
    expect(rank, vote + "_said", status, "^%s$" % text)


def vote_killed():
    for r in others:
        said(r, "first", "DTR_ERR_STATE", "rank %d in step 1" % (ranks - 1))
        expect(r, "second", "DTR_ERR_REMOTE", r"rank %d \(host \S+, pid \d+\) died" % victim)
        expect(r, "destroy", "DTR_OK")


def vote_stopped():
    for r in range(ranks):
        said(r, "vote", "DTR_ERR_STATE", "rank %d in step 1" % victim)
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
    expect(victim, "allreduce", "DTR_ERR_TIMEOUT", r"rank %d \(host \S+, pid \d+\) has not entered " % victim)  # EA4


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
    # The coordinator knows who has come; a rank that was held up may have come after its limit.
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


def killed_storing():
    for r, call in [(r, call) for r in others for call in {"destroy", "scan" if case == "killed_scan" else "memory", *lines(r)}]:
        meets_it = call in ("allreduce", "barrier", "scan", "again")
        expect(r, call, *("DTR_ERR_REMOTE", r"rank %d \(host \S+, pid \d+\) died" % victim) if meets_it else ("DTR_OK",))


def killed_inside():
    for r in others:
        expect(r, "allreduce", "DTR_ERR_REMOTE", r"rank %d \(host \S+, pid \d+\) died: it was inside %s.*called at %s" % (
            victim, TITLE, SITE))
        expect(r, "destroy", "DTR_OK")
    diagnosis(r"rank %d \(host \S+, pid \d+\) died .*%s.*called at %s" % (victim, TITLE, SITE))


def killed_told():
    """FI33: in NCCL's own words, as no watchdog can see who has died."""
    for r in others:
        expect(r, "allreduce", "DTR_ERR_REMOTE", r"NCCL error 6 .*connection closed by rank %d;" % victim)


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


def killed_creation():
    for r in others:
        expect(r, "create", "DTR_ERR_REMOTE", "dtr_group_create", r"rank %d \(host \S+, pid \d+\) died: it was " % victim)
        expect(r, "made", "none")
        expect(r, "destroy", "DTR_OK")


def stopped_creation():
    for r in range(ranks):  # the victim as well, once it goes on
        expect(r, "create", "DTR_ERR_TIMEOUT", "dtr_group_create", r"all %d ranks came, but then rank %d did not answer for 10 s" % (ranks, victim))
        expect(r, "made", "none")
        expect(r, "destroy", "DTR_OK")


def stopped():
    for r in range(ranks):  # the victim as well, once it goes on
        expect(r, "allreduce", "DTR_ERR_TIMEOUT", *NOT_ENTERED, r"it is outside the library since [0-9.]+ s and stopped \(SIGSTOP\)")
    # DR2: while the job was running.
    check(re.search(r"(?m)^rank %d \(host \S+, pid \d+\) is stopped \(SIGSTOP or a debugger\); it is outside the library since "
                    r"[0-9.]+ s and stopped \(SIGSTOP\); its last finished operation is %s" % (victim, LAST), seen_running), seen_running)
    check(re.search(r"(?m)^ +%d .* stopped " % victim, seen_running), seen_running)


def stopped_again():
    """EA3, EA4: what the others gave up does not end well on the one that comes late."""
    for r in range(ranks):
        check({s for name, s, _, _ in notes(r) if name == "before"} == {"DTR_OK"}, "rank %d: %s" % (r, notes(r)))
        for call in "allreduce", "send", "receive":
            expect(r, call, "DTR_ERR_TIMEOUT", r"allreduce #\d+ f32 x 8 max 'grad\.3'", r"fault_stopped\.c:", "rank %d .* has not entered " % victim)
        expect(r, "destroy", "DTR_OK")


def no_partner():
    one, other = ("send", "recv") if backend == "mpi" else ("recv", "send")
    ends = r"%s #2 0%s%d f32 x \d+ tag %d 'halo' group 'world'" % (
        one, "->" if one == "send" else "<-", victim, 0 if backend == "nccl" else 7)  # S6
    expect(0, "partner", "DTR_ERR_TIMEOUT", ends, r"called at fault\.c:\d+",
           r"rank %d \(host \S+, pid \d+\): it is outside the library .*(send|recv) #1 " % victim)
    for r in range(1, ranks):
        expect(r, "after", "DTR_ERR_TIMEOUT", ends, r"called at fault\.c:\d+")
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


def cut_short():
    """A link that is back before the node counts as silent costs that time and nothing else."""
    for r in range(ranks):
        expect(r, "allreduce", "DTR_OK")
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


def hung_left():
    """The victim is gone before the others find out that it hangs."""
    hung()


def refused():
    expect(victim, "bad", "DTR_ERR_ARG")
    for r in others:
        expect(r, "allreduce", "DTR_ERR_TIMEOUT", *NOT_ENTERED, r"its last call failed: .*NULL")


def opposite():
    for r in range(ranks):
        expect(r, "first", "DTR_ERR_TIMEOUT", "opposite order", r"allreduce #2 .*'rows'.*called at fault\.c:\d+",
               r"allreduce #2 .*'columns'.*called at fault\.c:\d+")
    diagnosis(r"groups are used in opposite order: rank \d waits in allreduce #2 .*called at fault\.c:\d+, for rank \d, "
              r"which waits in allreduce #2 .*called at fault\.c")


helper = threading.Thread(target=globals()[BESIDE[case]], daemon=True) if case in BESIDE else None
prepare()
if helper:
    helper.start()
output = launch()
globals()[{"killed_node_barrier": "killed_storing", "killed_scan": "killed_storing", "released": "other_group"}.get(case, case)]()
in_time()
if problems:
    print("\n".join(problems))
    print("---- output of the job ----\n" + output)
    sys.exit(1)
shutil.rmtree(folder, ignore_errors=True)
