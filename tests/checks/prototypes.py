"""Every public function is documented by the fixed tags and exported by libdtr, and nothing else is exported. Names use the words of
docs/abi.md for counting, and for the end of what there is.

Usage: prototypes.py GENERATED_INCLUDE_DIR LIBDTR.so NM
"""
import re
import subprocess
import sys

from common import prototypes, public_headers, read, verdict

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

# docs/abi.md, "Words of names".
ENDS = ("destroy", "release", "close", "free", "delete", "dispose", "discard", "drop", "fini", "finalize", "kill", "remove", "term", "unref")
RANKS = {"dtr_world_size", "dtr_world_local_size", "dtr_group_size", "dtr_dtype_size"}
for name, function in declared.items():
    if re.search(r"_(n|num|nr|number)_|_(num|nr|number|len|length)$", name) or (name.endswith("_size") and name not in RANKS):
        problems.append(function.where + " counts something: its name ends in THING_count")
handles = set()  # opaque, and those of them that the program is given to keep
for layer, path in public_headers(generated):
    handles |= set(re.findall(r"^typedef struct (dtr_\w+) \1;", read(path), flags=re.M))
given = {name for name in handles if any(re.search(r"\b%s \*\*" % name, f.text) for f in declared.values())}
for name, function in declared.items():
    end = re.fullmatch(r"(dtr(?:_\w+?)?)_(%s)" % "|".join(ENDS), name)
    if end:
        of, word = end.groups()
        fits = {"destroy": of in handles and of + "_retain" not in declared, "release": of in handles,
                "close": of in handles and of + "_open" in declared, "free": of not in handles}
        if not fits.get(word):
            problems.append("%s: a handle is ended by destroy, one with retain by release, a file by close, memory and what is no handle by "
                            "free; no other word is used" % function.where)
for name in sorted(given):
    if not any("%s_%s" % (name, word) in declared for word in ("destroy", "release", "close")):
        problems.append("%s is given to programs, and nothing ends it: there is no %s_destroy" % (name, name))
if len(given) < 8:
    problems.append("found only the handles %s: is the check broken?" % ", ".join(sorted(given)))

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
