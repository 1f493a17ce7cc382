"""A job of test_steady or train_gpt that the tests of dtr-top and dtr-doctor look at: starting it so that one rank's end ends no
other, stopping and killing ranks, and waiting for what is to be seen."""
import atexit
import json
import os
import shutil
import signal
import subprocess
import time

from tool import expect

LIMIT_S = 60


def until(what, look):
    """Looks until it is true; what it was, or None and a problem after a minute."""
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        seen = look()
        if seen:
            return seen
        time.sleep(0.1)
    expect(False, "after %d s still not: %s", LIMIT_S, what)
    return None


class Job:
    def __init__(self, mpiexec, ranks, base, name, command, **env):
        """`command`: the program and its arguments, in which STOP is the file that ends it."""
        self.folder = os.path.join(base, name)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.recordings = os.path.join(self.folder, "recordings")
        self.stop_file = os.path.join(self.folder, "stop")
        os.makedirs(self.recordings)
        self.ranks = ranks
        env = dict(os.environ, DTR_RECORDER_DIR=self.recordings, DTR_TIMEOUT="600", **env)
        env.pop("OMPI_MCA_orte_abort_on_non_zero_status", None)
        version = subprocess.run([mpiexec, "--version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False).stdout
        # As in tests/fault/job.py: Hydra kills the others when a process that it started was ended by a signal.
        if b"Open MPI" in version or b"OpenRTE" in version:
            start = [mpiexec, "--enable-recovery", "-n", str(ranks)]
        else:
            start = [mpiexec, "-disable-auto-cleanup", "-n", str(ranks), "sh", "-c", 'trap "" USR1; "$@"; exit $?', "sh"]
        self.output = open(os.path.join(self.folder, "output"), "w+")
        command = [self.stop_file if word == "STOP" else word for word in command]
        self.process = subprocess.Popen(start + command, env=env, stdin=subprocess.DEVNULL, stdout=self.output,
                                        stderr=subprocess.STDOUT)
        self.pids = {}
        atexit.register(self.abandon)

    def abandon(self):
        """Where a test ends by an exception."""
        if self.process.poll() is None:
            self.end()

    def files(self):
        return sorted(os.path.join(self.recordings, f) for f in os.listdir(self.recordings) if f.endswith(".rec"))

    def text(self):
        self.output.seek(0)
        return self.output.read()

    def signal(self, rank, number):
        os.kill(self.pids[rank], number)

    def end(self):
        """Lets it end by itself, ranks that are stopped too."""
        open(self.stop_file, "w").close()
        for pid in self.pids.values():
            try:
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                pass
        try:
            status = self.process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            expect(False, "the job has not ended:\n%s", self.text())
            self.process.terminate()
            status = self.process.wait()
        self.output.close()
        return status


def table(top, job, *options):
    """The JSON of dtr-top, which also says the pids; None while there is none."""
    done = subprocess.run([top, "--once", "--json", *options, job.recordings], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          universal_newlines=True, check=False)
    if done.returncode != 0:
        return None
    seen = json.loads(done.stdout)
    job.pids.update((r["rank"], r["pid"]) for r in seen["ranks"])
    return seen


def of_rank(seen, rank):
    return next(r for r in seen["ranks"] if r["rank"] == rank)
