"""The live view of dtr-top in a terminal (tmux), over train_gpt: sorting, filter, help, pause, a stopped and a killed rank.

top_live.py MPIEXEC TRAIN_GPT TOP FOLDER
"""
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile

from job import Job, table, until
from tool import expect, verdict

mpiexec, program, top, base = sys.argv[1:]
if not shutil.which("tmux"):
    print("skipped: there is no tmux")
    sys.exit(77)
RANKS = 3
sockets = tempfile.mkdtemp(prefix="top-")  # of a server of its own, whose path must be short
env = {k: v for k, v in os.environ.items() if k not in ("TMUX", "TMUX_PANE")}
env["TERM"] = "xterm-256color"


def tmux(*arguments):
    return subprocess.run(["tmux", "-S", os.path.join(sockets, "s"), "-f", "/dev/null", *arguments], env=env, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, universal_newlines=True, check=False)


def screen():
    return tmux("capture-pane", "-p", "-t", "top").stdout


def keys(*names):
    tmux("send-keys", "-t", "top", *names)


def shows(pattern, absent=None):
    text = []

    def look():
        text[:] = [screen()]
        return re.search(pattern, text[0], flags=re.M) and not (absent and re.search(absent, text[0], flags=re.M))
    good = until("the screen has \"%s\"" % pattern, look)
    expect(good, "the screen was:\n%s", text[0])
    return text[0]


def order():
    return [int(n) for n in re.findall(r"^ +([0-2]) (?:running|stopped|died)", screen(), flags=re.M)]


def session():
    shows(r"^job [0-9a-f]{16}, 3 ranks, .*train_gpt")
    shows(r"^3 ranks: 3 running")
    shows(r"^ +0 running .* [0-9]+\.[0-9]+ .* %")  # rates are there
    keys(">")
    shows(r"^sorted by rank")
    until("ranks in order", lambda: order() == [0, 1, 2])
    keys("I")
    shows(r"^sorted by rank, reversed")
    until("ranks the other way round", lambda: order() == [2, 1, 0])
    keys("I", "F6")
    shows(r"^exposed\s*$", absent=r"^ +0 running")
    keys("Down", "Down", "Enter")
    shows(r"^sorted by steps")
    keys("<", "<")
    shows(r"^sorted by rank")
    keys("End")
    shows(r"^rank 2 \(host \S+, pid %d\): it is " % job.pids[2])
    keys("Up")
    shows(r"^rank 1 \(host \S+, pid %d\): it is " % job.pids[1])
    keys("F1")
    shows(r"^Any key goes back")
    keys("x")
    shows(r"^sorted by rank")
    keys("Space")
    shows(r"PAUSED")
    keys("Space")
    shows(r"^sorted by rank", absent="PAUSED")
    stopped()
    keys("/", "died", "Enter")
    shows(r"only lines with died", absent=r"^ +\d running")
    killed()
    tmux("resize-window", "-t", "top", "-x", "60", "-y", "12")
    shows(r"^ +2 died")
    keys("Escape")
    shows(r"^ +\d running|^ +\d ended")
    keys("q")
    shows(r"ended with 0")


def stopped():
    keys("<")
    shows(r"^sorted by held")
    job.signal(1, signal.SIGSTOP)
    # Rank 2 may wait for it at another place than rank 0 does, and hold rank 0 up meanwhile.
    shows(r"^3 ranks: 2 running, 1 stopped; rank [12] holds up [12], for ")
    shows(r"^ +1 stopped +[12] - ")
    shows(r"^ +0 running +- +1")
    job.signal(1, signal.SIGCONT)
    shows(r"^3 ranks: 3 running")


def killed():
    job.signal(2, signal.SIGKILL)
    shows(r"^3 ranks: .*1 died")
    shows(r"^ +2 died ")


job = Job(mpiexec, RANKS, base, "top-live", [program, "--steps", "100000", "--layers", "1", "--width", "32", "--heads", "2",
                                             "--context", "32", "--batch", "4"])
try:
    until("every rank trains", lambda: all((r["steps_per_s"] or 0) > 0 for r in (table(top, job) or {"ranks": [{"steps_per_s": 0}]})["ranks"])
          and len(job.pids) == RANKS)
    command = "%s --interval 0.3 %s; echo ended with $?; exec cat" % (top, job.recordings)
    started = tmux("new-session", "-d", "-s", "top", "-x", "150", "-y", "30", "sh", "-c", command)
    if expect(started.returncode == 0, "tmux: %s", started.stdout):
        session()
        tmux("respawn-pane", "-k", "-t", "top", "sh", "-c", "TERM=nonesuch %s %s; echo ended with $?; exec cat" % (top, job.recordings))
        shows(r'the terminal "nonesuch" \(TERM\) is not known')
        shows(r"ended with 2")
finally:
    tmux("kill-server")
    shutil.rmtree(sockets, ignore_errors=True)
    job.process.terminate()
    job.end()
shutil.rmtree(job.folder, ignore_errors=True)
verdict()
