"""Every public function is documented by the fixed tags and exported by libdtr, and nothing else is exported.

Usage: prototypes.py GENERATED_INCLUDE_DIR LIBDTR.so NM
"""
import re
import subprocess
import sys

from common import prototypes, public_headers, verdict

TAGS = ("@collective", "@blocking", "@gpu", "@errors", "@since")

generated, library, nm = sys.argv[1:]
problems = []
declared = {}
for layer, path in public_headers(generated):
    for function in prototypes(path):
        if function.name in declared:
            problems.append("%s is declared in %s as well" % (function.where, declared[function.name].where))
        declared[function.name] = function
        if "DTR_API" not in function.text.split("(")[0]:
            problems.append(function.where + " has no DTR_API")
        if function.comment is None:
            problems.append(function.where + " has no /** comment of its own")
            continue
        if re.match(r"\s*(\*|@|$)", function.comment):
            problems.append(function.where + " does not begin its comment with the effect")
        for tag in TAGS:
            value = re.search(re.escape(tag) + r"\s+([^@\s*][^@]*)", function.comment)
            if not value:
                problems.append("%s: the comment has no %s" % (function.where, tag))

lines = subprocess.run([nm, "-D", "--defined-only", library], check=True, capture_output=True, text=True).stdout
exported = set()
for line in lines.splitlines():
    kind, name = line.split()[-2:]
    if kind != "A":  # the version node itself
        exported.add(name.split("@")[0])
if not declared or not exported:
    problems.append("found %d prototypes and %d exported symbols: is the check broken?" % (len(declared), len(exported)))
problems += [declared[n].where + " is not exported by the library" for n in sorted(set(declared) - exported)]
problems += ["%s is exported, but no public header declares it" % n for n in sorted(exported - set(declared))]
verdict(problems, "%d public functions, each documented by %s and exported" % (len(declared), " ".join(TAGS)))
