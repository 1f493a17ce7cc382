"""Every script and every program that is installed shows its help, without starting MPI or installing anything.

Usage: help.py PROGRAM...
"""
import os
import subprocess
import sys

from common import ROOT, verdict

NOT_FOR_PEOPLE = {"enter", "torch_gpu.py"}  # started by other scripts

programs = sys.argv[1:] + [os.path.join(ROOT, "packaging", name) for name in ("deb", "try")]
for folder, folders, names in os.walk(os.path.join(ROOT, "scripts")):
    folders[:] = sorted(set(folders) - {"launch", "__pycache__"})  # those are templates to be copied
    for name in sorted(set(names) - NOT_FOR_PEOPLE):
        path = os.path.join(folder, name)
        if os.access(path, os.X_OK):
            programs.append(path)
problems = []
for program in programs:
    try:
        run = subprocess.run([program, "--help"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        problems.append("%s --help does not end" % program)
        continue
    if run.returncode != 0 or len(run.stdout.splitlines()) < 3 or run.stdout.startswith("skipped"):
        problems.append("%s --help ends with status %d and prints: %s%s" % (program, run.returncode, run.stdout[:200], run.stderr[:200]))
if len(programs) < 20:
    problems.append("only %d programs found: is the check broken?" % len(programs))
verdict(problems, "%d programs show their help" % len(programs))
