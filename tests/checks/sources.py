"""No source file carries marks of unfinished work or of a merge or names a private path. (words.py: none is too long.) All files
that git keeps are text. No shell script lets a program write to a reader that leaves early: under pipefail that is a failure, if
the program is slow."""
import os
import re
import subprocess

from common import ROOT, read, tree_files, verdict

CODE = (".c", ".h", ".cu", ".f90", ".F90", ".py", ".sh", ".cmake", "CMakeLists.txt")
# Put together here so that this file does not contain them.
WORDS = ["TO" + "DO", "FIX" + "ME", "X" * 3, "HA" + "CK", "not implem" + "ented", "unimplem" + "ented", "st" + "ub",
         "place" + "holder"]
PATHS = ["/wo" + "rk/", "/fa" + "rm/", "/tmp/w" + "t"]
MERGE = ["^<{7} ", "^>{7} "]  # what an unfinished merge leaves
FORBIDDEN = re.compile("|".join([r"\b%s\b" % w for w in WORDS] + [re.escape(p) for p in PATHS] + MERGE))

LEAVES_EARLY = re.compile(r"\|\s*grep -\w*q")


def kept_files():
    """What git keeps; where there is no git, nothing is known."""
    try:
        listed = subprocess.run(["git", "-C", ROOT, "ls-files", "-z"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    except (OSError, subprocess.CalledProcessError):
        return []
    return [path for path in os.fsdecode(listed.stdout).split("\0") if path]


def is_text(path):
    try:
        return not os.path.isfile(os.path.join(ROOT, path)) or "\0" not in read(path)
    except UnicodeDecodeError:
        return False


problems = ["%s: is no text" % path for path in kept_files() if not is_text(path)]
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
