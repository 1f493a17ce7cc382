"""No source file carries marks of unfinished work or of a merge or names a private path. (words.py: none is too long.) No shell
script lets a program write to a reader that leaves early: under pipefail that is a failure, if the program is slow."""
import os
import re

from common import read, tree_files, verdict

CODE = (".c", ".h", ".cu", ".f90", ".F90", ".py", ".sh", ".cmake", "CMakeLists.txt")
# Put together here so that this file does not contain them.
WORDS = ["TO" + "DO", "FIX" + "ME", "X" * 3, "HA" + "CK", "not implem" + "ented", "unimplem" + "ented", "st" + "ub",
         "place" + "holder"]
PATHS = ["/wo" + "rk/", "/fa" + "rm/", "/tmp/w" + "t"]
MERGE = ["^<{7} ", "^>{7} "]  # what an unfinished merge leaves
FORBIDDEN = re.compile("|".join([r"\b%s\b" % w for w in WORDS] + [re.escape(p) for p in PATHS] + MERGE))

LEAVES_EARLY = re.compile(r"\|\s*grep -\w*q")

problems = []
files = [f for f in tree_files() if f.endswith(CODE + (".md", ".def", ".map", ".in", ".json"))
         or os.path.dirname(f) in ("scripts", ".ci")]
for path in files:
    text = read(path)
    for number, line in enumerate(text.splitlines(), 1):
        match = FORBIDDEN.search(line) or ("set -" in text and "pipefail" in text and LEAVES_EARLY.search(line))
        if match:
            problems.append("%s:%d: \"%s\"" % (path, number, match.group(0)))
if len(files) < 20:
    problems.append("only %d files looked at: is the check broken?" % len(files))
verdict(problems, "%d files, no forbidden word" % len(files))
