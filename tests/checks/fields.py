"""The four structs that every room sees stay facts plus one entry per subsystem: none has more than 30 fields of its own, and none
holds a struct without a name, whose members would be its own too."""
import re

from common import read, verdict

MOST = 30
STRUCTS = {
    "dtr_group": "collectives/core/team.h",
    "dtr_work": "collectives/core/work.h",
    "dtr_world": "runtime/base/world.h",
    "dtr_ddp": "ddp/core/ddp_internal.h",
}
problems = []
counts = {}
for name, path in STRUCTS.items():
    text = re.sub(r"/\*.*?\*/", " ", read(path), flags=re.S)
    match = re.search(r"^struct %s \{\n(.*?)^\};" % name, text, flags=re.M | re.S)
    if match is None:
        problems.append("%s: struct %s is not there" % (path, name))
        continue
    if "{" in match.group(1):
        problems.append("%s: struct %s holds a struct without a name; define it above, as the others" % (path, name))
    body = re.sub(r"\([^()]*\)", "", re.sub(r"\{[^{}]*\}", "", match.group(1)))
    fields = [declarator for line in body.split(";") if line.strip() for declarator in line.split(",")]
    counts[name] = len(fields)
    if len(fields) > MOST:
        problems.append("%s: struct %s has %d fields of its own, %d at most: let a subsystem keep them, behind a pointer" %
                        (path, name, len(fields), MOST))
if any(count < 10 for count in counts.values()):
    problems.append("found %s: is the check broken?" % counts)
verdict(problems, ", ".join("%s has %d fields" % item for item in counts.items()))
