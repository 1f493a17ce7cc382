"""No source file is longer than 700 lines, none carries words that mean unfinished work or names a private path."""
import os
import re

from common import read, tree_files, verdict

LONGEST = 700
CODE = (".c", ".h", ".cu", ".py", ".sh", ".cmake", "CMakeLists.txt")
# Put together here so that this file does not contain them.
WORDS = ["TO" + "DO", "FIX" + "ME", "X" * 3, "HA" + "CK", "not implem" + "ented", "unimplem" + "ented", "st" + "ub",
         "place" + "holder"]
PATHS = ["/wo" + "rk/", "/fa" + "rm/", "/tmp/w" + "t"]
FORBIDDEN = re.compile("|".join([r"\b%s\b" % w for w in WORDS] + [re.escape(p) for p in PATHS]))

problems = []
files = [f for f in tree_files() if f.endswith(CODE + (".md", ".def", ".map", ".in", ".json"))
         or os.path.dirname(f) in ("scripts", ".ci")]
for path in files:
    text = read(path)
    lines = text.splitlines()
    if path.endswith(CODE) and len(lines) > LONGEST:
        problems.append("%s has %d lines, %d are allowed: split it" % (path, len(lines), LONGEST))
    for number, line in enumerate(lines, 1):
        match = FORBIDDEN.search(line)
        if match:
            problems.append("%s:%d: \"%s\"" % (path, number, match.group(0)))
if len(files) < 20:
    problems.append("only %d files looked at: is the check broken?" % len(files))
verdict(problems, "%d files, none over %d lines, no forbidden word" % (len(files), LONGEST))
