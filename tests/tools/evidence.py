"""Folders of ended jobs: which a new job removes, and what dtr-doctor lists (reliability:O13, DR1).

evidence.py PROGRAM DOCTOR: PROGRAM makes a world of one rank; "killed" and "wait" end it without dtr_world_destroy.
"""
import fcntl
import os
import pwd
import re
import shutil
import subprocess
import sys
import tempfile

from tool import expect, problems

program, doctor = sys.argv[1], sys.argv[2]
tmp = tempfile.mkdtemp(prefix="evidence-", dir=os.environ.get("TMPDIR", "/tmp"))
uid = os.getuid()
env = {k: v for k, v in os.environ.items() if not k.startswith("DTR_RECORDER")}
env["TMPDIR"] = tmp


def folders():
    return sorted(f for f in os.listdir(tmp) if re.fullmatch(r"dtr-%d-[0-9a-f]{16}" % uid, f))


def killed(**more):
    """A job that leaves evidence; the name of its folder."""
    before = set(folders())
    done = subprocess.run([program, "killed"], env=dict(env, **more), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          check=False)
    expect(done.returncode == -9, "status %d: %s", done.returncode, done.stderr)
    new = set(folders()) - before
    expect(len(new) == 1, "a killed job left %s", new)
    return new.pop() if new else ""


def older(name, seconds):
    """As if the job had started earlier: its number begins with the time."""
    prefix, job = name.rsplit("-", 1)
    other = "%s-%016x" % (prefix, int(job, 16) - (seconds << 32))
    os.rename(os.path.join(tmp, name), os.path.join(tmp, other))
    return other


def plant(name, file, age_s):
    path = os.path.join(tmp, name)
    os.mkdir(path)
    if file:
        with open(os.path.join(path, file), "w") as f:
            f.write("x")
        os.utime(os.path.join(path, file), (1, 1))
    if age_s:
        os.utime(path, (1, 1))
    return name


def number(k):
    return "dtr-%d-%016x" % (uid, k)


try:
    living = subprocess.Popen([program, "wait"], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    living.stdout.readline()
    oldest = older(folders()[0], 5000)
    elsewhere = plant("elsewhere", "dtr-x.rec", 0)
    os.symlink(os.path.join(tmp, elsewhere), os.path.join(tmp, number(1)))
    mine = plant(number(2), "mine.txt", 1)
    fresh = plant(number(3), "", 0)
    empty = plant(number(4), "", 1)
    foreign = plant("dtr-%d-%016x" % (uid + 1, 5), "dtr-x.rec", 1)
    another = plant(number(6), "dtr-x.rec", 1)
    if uid == 0:
        os.chown(os.path.join(tmp, another), 12345, 12345)
    else:
        shutil.rmtree(os.path.join(tmp, another))
    unlike = plant("dtr-%d-7" % uid, "dtr-x.rec", 1)

    ended = [older(killed(DTR_RECORDER_KEEP="0"), 1000 - 100 * i) for i in range(5)]  # oldest first
    expect(set(ended) <= set(folders()), "DTR_RECORDER_KEEP=0 has removed %s", set(ended) - set(folders()))
    held = open(os.path.join(tmp, ended[0], os.listdir(os.path.join(tmp, ended[0]))[0]))
    fcntl.flock(held, fcntl.LOCK_SH)  # as a process that cannot be seen from here
    subprocess.run([program], env=dict(env, DTR_RECORDER_DIR=os.path.join(tmp, "named"), DTR_RECORDER_KEEP="1"), check=True,
                   stdout=subprocess.DEVNULL)
    expect(set(ended) <= set(folders()), "a job with a folder of its own has removed others")

    newest = killed(DTR_RECORDER_KEEP="2")
    left = folders()
    expect(newest in left and ended[3] in left and ended[4] in left, "the newest are gone: %s", left)
    expect(ended[1] not in left and ended[2] not in left, "old folders are left: %s", left)
    expect(ended[0] in left, "a folder whose recording is locked is gone")
    expect(oldest in left, "the folder of a job that runs is gone")
    expect(empty not in left, "an old empty folder is left")
    for what, name in (("a file of the user's", mine + "/mine.txt"), ("a new empty folder", fresh), ("behind a link",
                       elsewhere + "/dtr-x.rec"), ("another user's number", foreign + "/dtr-x.rec"),
                       ("another name", unlike + "/dtr-x.rec")):
        expect(os.path.exists(os.path.join(tmp, name)), "%s is gone: %s", what, name)
    expect(uid != 0 or os.path.exists(os.path.join(tmp, another, "dtr-x.rec")), "another user's folder was emptied")

    done = subprocess.run([doctor], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True,
                          check=False)
    lines = done.stdout.splitlines()
    user = pwd.getpwuid(uid).pw_name
    expect(done.returncode == 0, "dtr-doctor alone: status %d\n%s", done.returncode, done.stdout)
    for name, state, command in ((newest, "died", "killed"), (ended[3], "died", "killed"), (oldest, "running", "wait")):
        row = [line for line in lines if line.rstrip().find(os.path.join(tmp, name)) >= 0]
        expect(len(row) == 1 and re.match(r"%s +1 +20\d\d-\d\d-\d\d \d\d:\d\d:\d\d +%s " % (user, state), row[0])
               and row[0].endswith(" %s %s" % (program, command)), "no row for %s (%s):\n%s", name, state, done.stdout)
    expect(done.stdout.find(newest) < done.stdout.find(ended[3]), "the newest is not the first:\n%s", done.stdout)
    done = subprocess.run([doctor, os.path.join(tmp, newest)], env=env, stdout=subprocess.PIPE, universal_newlines=True,
                          check=False)
    expect(re.match(r"job [0-9a-f]{16}, 1 rank, started 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC: %s killed\n"
                    % re.escape(program), done.stdout), "the job is not named first:\n%s", done.stdout)
    living.stdin.close()
    living.wait()
    held.close()

    shutil.rmtree(tmp, ignore_errors=True)  # launchers tidy up behind killed processes meanwhile
    os.makedirs(tmp, exist_ok=True)
    done = subprocess.run([doctor], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True,
                          check=False)
    expect(tmp + "/dtr-" not in done.stdout, "an empty folder has jobs:\n%s", done.stdout)
finally:
    shutil.rmtree(tmp, ignore_errors=True)
for problem in problems:
    print(problem)
sys.exit(1 if problems else 0)
