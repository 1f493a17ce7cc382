"""Kills whole jobs whose shared memory has names, and looks for what they leave in /dev/shm (CP9).

segments.py MPIEXEC PROGRAM FOLDER
"""
import os
import shutil
import subprocess
import sys

mpiexec, program, base = sys.argv[1:]
problems = []


def job(what):
    """Runs two ranks; their exit status and the names they made."""
    folder = os.path.join(base, what)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    done = subprocess.run([mpiexec, "-n", "2", program, what, folder], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    names = []
    for note in os.listdir(folder):
        with open(os.path.join(folder, note)) as f:
            names += f.read().split()
    return done.returncode, names, done.stdout.decode(errors="replace")


def gone(names, when):
    for name in names:
        if os.path.exists(name):
            problems.append("%s is there %s" % (name, when))


code, killed, text = job("die_in_creation")
if code == 0 or not killed:
    problems.append("the ranks were to die with their names there; exit status %d, names %s:\n%s" % (code, killed, text))
code, names, text = job("next")
if code != 0:
    problems.append("the job after a killed one ended with %d:\n%s" % (code, text))
gone(killed + names, "after the next job")
code, names, text = job("die_later")
if code == 0 or len(names) < 2:
    problems.append("the ranks were to die in a running world; exit status %d, names %s:\n%s" % (code, names, text))
gone(names, "after a job that was killed while it ran")
for problem in problems:
    print("failed:", problem)
print("segments: %d problems" % len(problems))
sys.exit(1 if problems else 0)
