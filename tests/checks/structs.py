"""Structs of public headers can grow as docs/abi.md says: one that begins with struct_size has an _INIT macro, every other one is named
in docs/abi.md as one of fixed size, and none that may grow lies inside of another.

Usage: structs.py GENERATED_INCLUDE_DIR
"""
import os
import re
import sys

from common import ROOT, public_headers, read, verdict

# The library makes these, for functions that the program has registered.
MADE_BY_THE_LIBRARY = {"dtr_backend_args", "dtr_backend_call", "dtr_op_report"}

page = read("docs/abi.md")
section = re.search(r"^## Structs of fixed size\n(.*?)(?=^## |\Z)", page, flags=re.M | re.S)
fixed = set(re.findall(r"`(dtr_\w+)`", section.group(1))) - {"dtr_ddp_options"} if section else set()
problems = []
grow = {}
found = {}
for _, path in public_headers(sys.argv[1]):
    text = read(path)
    name_of_file = os.path.relpath(path, ROOT)
    for match in re.finditer(r"typedef struct (\w+) \{\n(.*?)\n\} \w+;", text, flags=re.S):
        name, body = match.group(1), re.sub(r"/\*.*?\*/", "", match.group(2), flags=re.S)
        where = "%s: %s" % (name_of_file, name)
        found[name] = (where, body)
        first = re.match(r"\s*([\w ]+?)\s*(\w+);", body)
        if first and first.group(2) == "struct_size":
            grow[name] = where
            if name not in MADE_BY_THE_LIBRARY and not re.search(r"^#define %s_INIT\b" % name.upper(), text, flags=re.M):
                problems.append("%s begins with struct_size and has no macro %s_INIT" % (where, name.upper()))
        elif "struct_size" in body:
            problems.append("%s has struct_size, but not at its beginning" % where)
        elif name not in fixed:
            problems.append("%s can never grow: begin it with struct_size, or name it in docs/abi.md, \"Structs of fixed size\"" % where)
for name, (where, body) in found.items():
    for inner in re.findall(r"^\s*(?:const )?(dtr_\w+)\s+(?!\*)\w", body, flags=re.M):
        if inner in grow:
            problems.append("%s holds a %s, which may grow: let it hold a pointer" % (where, inner))
problems += ["docs/abi.md: %s is no struct of a public header" % name for name in sorted(fixed - set(found))]
problems += ["docs/abi.md: %s may grow" % name for name in sorted(fixed & set(grow))]
if len(grow) < 10 or len(found) < 20:
    problems.append("found %d structs, %d of them with struct_size: is the check broken?" % (len(found), len(grow)))
verdict(problems, "%d structs that may grow, %d of fixed size" % (len(grow), len(fixed)))
