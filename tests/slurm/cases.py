#!/usr/bin/env python3
"""Jobs under Slurm, inside a cluster of scripts/testbed/slurm with two hosts.

cases.py CASE SOURCE BUILD MPIEXEC HELLO TRAIN_GPT DOCTOR
"""
import glob
import json
import os
import re
import subprocess
import sys
import time

CASE, SOURCE, BUILD, MPIEXEC, HELLO, TRAIN, DOCTOR = sys.argv[1:8]
TEMPLATE = os.path.join(SOURCE, "scripts", "bench", "launch", "slurm.sbatch")
SHARED = os.environ["TESTBED"]
SMALL = ["--layers", "1", "--heads", "2", "--width", "16", "--context", "16", "--batch", "2", "--sample", "0"]
WAIT_S = 300  # for what takes seconds on a quiet machine


def check(fine, what, *texts):
    if not fine:
        print("FAILED: %s" % what)
        for text in texts:
            print(text)
        for log in sorted(glob.glob(os.path.join(SHARED, "slurm*.log"))):
            print("---- %s\n%s" % (log, shown(log)[-1500:]))
        sys.exit(1)


def run(*command, environment=None):
    """(status, output) of a command."""
    done = subprocess.run(command, env=dict(os.environ, **(environment or {})), stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, universal_newlines=True, timeout=WAIT_S, check=False)
    return done.returncode, done.stdout


def submit(*arguments, settings=(), environment=None):
    """(number, output file) of a batch job of four ranks that runs the template."""
    out = os.path.join(SHARED, "%s.out" % CASE)
    status, text = run("sbatch", "--parsable", "--nodes=2", "--ntasks-per-node=2", "--cpus-per-task=1", "--output=" + out,
                       *settings, TEMPLATE, *arguments, environment=environment)
    check(status == 0, "sbatch: status %d" % status, text)
    return text.split()[-1].split(";")[0], out


def shown(path):
    return open(path, encoding="utf-8").read() if os.path.exists(path) else ""


def facts(job):
    """What scontrol knows of a job."""
    return dict(re.findall(r"(\w+)=(\S*)", run("scontrol", "show", "job", job)[1]))


def await_that(condition, what, *paths):
    end = time.monotonic() + WAIT_S
    while not condition():
        check(time.monotonic() < end, "%s: not within %d s" % (what, WAIT_S), *map(shown, paths))
        time.sleep(0.2)


def ended(job):
    return facts(job).get("JobState") in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")


def hosts():
    return run("scontrol", "show", "hostnames", run("sinfo", "--noheader", "--format=%N")[1].strip())[1].split()


def left_behind():
    """Files in /dev/shm and in the jobs' TMPDIR of all hosts."""
    look = "ls -A /dev/shm | sed 's:^:/dev/shm/:'; find \"$TMPDIR\" -mindepth 1"
    status, text = run("srun", "--quiet", "--nodes=2", "--ntasks-per-node=1", "sh", "-c", look)
    check(status == 0, "srun: status %d" % status, text)
    return text.split()


def greetings(text):
    """Ranks that have said hello, and of how many."""
    return sorted(re.findall(r"rank (\d) of (\d)", text))


ALL_FOUR = [(str(rank), "4") for rank in range(4)]


def template():
    """The launch template as a batch job: srun starts four ranks on two hosts, through PMIx."""
    job, out = submit(HELLO)
    await_that(lambda: ended(job), "the job's end", out)
    check(facts(job)["JobState"] == "COMPLETED", "the job is %s" % facts(job)["JobState"], shown(out))
    check(greetings(shown(out)) == ALL_FOUR, "four ranks greet", shown(out))
    check(left_behind() == [], "nothing stays", left_behind())


def plain_srun():
    """srun without --mpi: this MPI refuses it by itself, so that no rank computes alone."""
    status, text = run("srun", "--quiet", "--nodes=2", "--ntasks=4", HELLO)
    check(status != 0 and greetings(text) == [] and "direct launched using" in text, "MPI refuses", text)


def mpirun():
    """mpirun inside an allocation takes its hosts and ranks from there."""
    status, text = run("salloc", "--quiet", "--nodes=2", "--ntasks-per-node=2", MPIEXEC, HELLO)
    check(status == 0 and greetings(text) == ALL_FOUR, "four ranks greet", text)
    check("has started" not in text, "no warning", text)
    check(left_behind() == [], "nothing stays", left_behind())


def training(job, out):
    await_that(lambda: "] step " in shown(out) or ended(job), "the first step", out)
    check(not ended(job), "the job is training", shown(out))


def cancelled():
    """scancel in the midst of training: SIGTERM makes every rank write what it was doing, nothing else stays, and the next job
    starts clean."""
    folder = os.path.join(SHARED, "recordings")
    os.mkdir(folder)
    job, out = submit(TRAIN, *SMALL, "--steps", "10000000",
                      environment={"DTR_RECORDER_DIR": folder, "DTR_DUMP_SIGNAL": "15"})
    training(job, out)
    run("scancel", job)
    await_that(lambda: ended(job), "the job's end", out)
    check(facts(job)["JobState"] == "CANCELLED", "the job is %s" % facts(job)["JobState"], shown(out))
    dumps = glob.glob(os.path.join(folder, "**", "*.dump.json"), recursive=True)
    check(sorted(re.findall(r"rank(\d+)", " ".join(map(os.path.basename, dumps)))) == list("0123"), "a dump of every rank",
          dumps, run("find", folder)[1], shown(out))
    status, text = run(DOCTOR, folder)
    check("4 ranks" in text, "dtr-doctor reads them: status %d" % status, text)
    stayed = left_behind()
    check(stayed == [], "nothing stays", stayed)
    status, text = run("srun", "--mpi=pmix", "--nodes=2", "--ntasks=4", HELLO)
    check(status == 0 and greetings(text) == ALL_FOUR and "warn" not in text.lower(), "the next job starts clean", text)


def warned():
    """A time limit with a warning signal: the program saves and ends before it is up."""
    file = os.path.join(SHARED, "run.json")
    job, out = submit(TRAIN, *SMALL, "--steps", "10000000", "--checkpoint", file,
                      settings=("--time=2", "--signal=USR2@100", "--no-requeue"))
    await_that(lambda: ended(job), "the job's end", out)
    check(facts(job)["JobState"] != "TIMEOUT" and "the time is up: saved to " + file in shown(out), "saved in time",
          facts(job), shown(out))
    step = re.search(r"saved to \S+ at step (\d+)", shown(out)).group(1)
    status, text = run("srun", "--mpi=pmix", "--nodes=2", "--ntasks=4", TRAIN, *SMALL, "--steps", "10000000", "--resume", file,
                       "--stop-at", str(int(step) + 2))
    check(status == 0 and "resumed from %s at step %s\n" % (file, step) in text, "it goes on from there", text)


def parameters(text):
    return re.findall(r"parameters on 4 ranks: bitwise equal \(hash (\w+)\)", text)


def requeued():
    """A job that was warned goes back into the queue, resumes, and ends where it would have ended undisturbed."""
    file = os.path.join(SHARED, "run.json")
    arguments = SMALL + ["--steps", "1500", "--deterministic"]
    job, out = submit(TRAIN, *arguments, "--checkpoint", file)
    training(job, out)
    run("scancel", "--signal=USR2", job)
    await_that(lambda: int(facts(job).get("Restarts", 0)) == 1 or ended(job), "back in the queue", out)
    check("the time is up: saved to" in shown(out), "saved", shown(out))
    await_that(lambda: ended(job), "the job's end", out)
    check(facts(job)["JobState"] == "COMPLETED" and "resumed from " + file in shown(out), "resumed", facts(job), shown(out))
    status, text = run("srun", "--mpi=pmix", "--nodes=2", "--ntasks=4", TRAIN, *arguments)
    check(status == 0 and parameters(text) != [] and parameters(shown(out))[-1:] == parameters(text), "the same parameters",
          shown(out), text)


def sweep():
    """The sweep takes hosts and ranks from the allocation, and srun starts them."""
    folder = os.path.join(SHARED, "results")
    command = ["salloc", "--quiet", "--nodes=2", "--ntasks-per-node=2", os.path.join(SOURCE, "scripts", "bench", "sweep"),
               "--build", BUILD, "--sizes", "8", "--rounds", "1", "--no-gauge", "--yield", "--out", folder]
    status, text = run(*command)
    check(status == 0 and "2 host(s), 4 slots" in text, "status %d" % status, text)
    with open(os.path.join(folder, "sweep.json"), encoding="utf-8") as source:
        found = {(record["hosts"], record["ranks"]) for record in json.load(source)}
    check(found == {(1, 1), (1, 2), (2, 2), (2, 4)}, "what was measured", found, text)
    with open(os.path.join(folder, "hosts.json"), encoding="utf-8") as source:
        named = [one["host"] for one in json.load(source)]
    check(named == hosts(), "what the hosts are", named, hosts())


globals()[CASE]()
print("%s: all well" % CASE)
