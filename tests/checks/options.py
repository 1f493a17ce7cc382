"""The table of settings is in alphabetical order, its names are well formed, and there are few."""
import re

from common import read, verdict

BUDGET = 45
TYPES = {"BOOL", "INT", "BYTES", "SECONDS", "TEXT", "ENUM"}

path = "runtime/base/options.def"
text = re.sub(r"/\*.*?\*/", "", read(path), flags=re.S)
text = re.sub(r'"\s*\n\s*"', "", text)
rows = re.findall(r'^X\((\w+), "(\w+)",\s*(\w+),\s*"([^"]*)",\s*"([^"]*)"\)$', text, flags=re.M)
problems = []
if len(rows) != len(re.findall(r"^X\(", text, flags=re.M)) or not rows:
    problems.append("%s: an entry is not X(ID, \"NAME\", TYPE, \"default\", \"help\")" % path)
names = [name for _, name, _, _, _ in rows]
for before, after in zip(names, names[1:]):
    if before >= after:
        problems.append("%s: %s must not come after %s" % (path, after, before))
for identifier, name, kind, default, help_text in rows:
    if name != "DTR_" + identifier:
        problems.append("%s: %s should be called DTR_%s" % (path, name, identifier))
    if kind not in TYPES:
        problems.append("%s: %s has the unknown type %s" % (path, name, kind))
    if not help_text:
        problems.append("%s: %s has no help" % (path, name))
    if kind == "ENUM" and default not in help_text.split(":")[0].split("|"):
        problems.append("%s: the default \"%s\" of %s is not among the words of its help" % (path, default, name))
if len(rows) > BUDGET:
    problems.append("%s: %d settings, at most %d are wanted" % (path, len(rows), BUDGET))
verdict(problems, "%d settings in alphabetical order" % len(rows))
