"""What the pages and the comments of public headers name exists: settings and their defaults, functions, statuses, files, options of
programs, and the places that links lead to. The guide's first table has every public header. Every field of an options struct has a
comment.

Usage: docs.py GENERATED_INCLUDE_DIR
"""
import os
import re
import sys

from common import LAYERS, ROOT, public_headers, read, tree_files, verdict

PAGES = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"] + [f for f in tree_files(".md") if f.startswith(("docs/", "tests/", *LAYERS))]
problems = []


def complain(path, text, at, what):
    problems.append("%s:%d: %s" % (path, text.count("\n", 0, at) + 1, what))


# ---- names ----

sources = {f: read(f) for f in tree_files(".c", ".h", ".cu", ".f90", ".F90", ".py", ".sh", ".cmake", ".def", ".in", "CMakeLists.txt", "CMakePresets.json")
           if f.startswith(LAYERS + ("tests/", "examples/", "bindings/", "cmake/", "CMake")) and f != "tests/checks/docs.py"}
for folder, _, names in os.walk(os.path.join(ROOT, "scripts")):
    for name in names:
        path = os.path.relpath(os.path.join(folder, name), ROOT)
        if not name.endswith(".pyc"):
            sources[path] = read(path)
for path in (".ci/run", "packaging/deb", "packaging/try"):
    sources[path] = read(path)
code = "\n".join(re.sub(r"/\*.*?\*/", " ", text, flags=re.S) if path.endswith((".c", ".h", ".cu")) else text
                 for path, text in sources.items())
known = set(re.findall(r"\b(?:dtr|DTR)_\w+", code))  # whole words of the code: a name that only comments have is none
known |= {"DTR_" + name for name in re.findall(r"\bdtr_(?:optional_package|find_optional)\((\w+)", code)}
headers = {os.path.relpath(path, ROOT): read(path) for _, path in public_headers(sys.argv[1])}
public = set(re.findall(r"\b(?:dtr|DTR)_\w+", "\n".join(re.sub(r"/\*.*?\*/", " ", text, flags=re.S) for text in headers.values())))

defaults = dict(re.findall(r'^X\(\w+, "(\w+)",\s*\w+,\s*"([^"]*)"', read("runtime/base/options.def"), flags=re.M))
FOREIGN = {"dtr__name"}  # stands for any
checked = 0


def look_at_names(path, text, names):
    global checked
    for match in re.finditer(r"(?<![\w/-])((?:dtr|DTR)_\w+)", text):
        checked += 1
        name = match.group(1)
        if name not in names and name not in FOREIGN and not name.endswith("_"):  # "DTR_PARAM_...", "dtr_zero_*", "dtr_<object>"
            complain(path, text, match.start(), "%s is in no header and no source" % name)


for page in PAGES:
    look_at_names(page, read(page), known | public)
for path, text in headers.items():
    comments = re.sub(r"(?:\A|\*/).*?(?:/\*|\Z)", lambda m: re.sub(r"[^\n]", " ", m.group(0)), text, flags=re.S)
    look_at_names(path, comments, public | set(defaults))

# ---- defaults: "`DTR_STALL_WARN` (60 s, 0: off)" ----

UNITS = {"s": 1, "ms": 1, "": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def value(text):
    match = re.fullmatch(r"([0-9.]+) ?(\w*)", text.strip())
    return float(match.group(1)) * UNITS[match.group(2)] if match and match.group(2) in UNITS else None


stated = 0
for page in ("README.md", "docs/user-guide.md", "CHANGELOG.md"):
    text = read(page)
    for match in re.finditer(r"`(DTR_\w+)`\s+\(([0-9.]+(?: (?:s|ms|KiB|MiB|GiB))?)[,)]", text):
        name, given = match.groups()
        stated += 1
        if name in defaults and value(defaults[name]) not in (None, 0) and value(given) != value(defaults[name]):
            complain(page, text, match.start(), "%s is %s by default, not %s" % (name, defaults[name], given))

# ---- files, folders and options of programs ----

files = tree_files()
bases = {os.path.basename(f) for f in files}
folders = {os.path.dirname(f) for f in files}
folders |= {"/".join(f.split("/")[:n]) for f in folders for n in range(1, f.count("/") + 2)}
everything = "\n".join(sources.values())
program_options = set(re.findall(r"(?<![\w-])(--[a-z][a-z0-9-]+)", everything))
program_options |= {"--" + name for name in re.findall(r'\{ ?"([a-z][a-z0-9-]+)"', everything)}  # of getopt_long
OTHER_TOOLS = {"--bind-to", "--prefix", "--install", "--component", "--target", "--test-dir", "--enable-recovery", "--output-on-failure", "--cflags",
               "--libs", "--recurse-submodules", "--mpi", "--no-build-isolation", "--nproc-per-node"}

for page in PAGES:
    text = read(page)
    here = os.path.dirname(page)
    for match in re.finditer(r"`([\w./*-]+)`", text):
        name = match.group(1).removeprefix("./")
        if re.search(r"\.(c|h|cu|py|def|cmake|md)$", name) and "*" not in name and "NAME" not in name:
            checked += 1
            if "/" not in name:
                exists = name in bases or name in ("nccl.h", "mpi.h", "dlpack.h", "train.c", "app.c") or "/* %s: " % name in text
            else:
                exists = any(f == name or f.endswith("/" + name) for f in [*files, *headers]) or os.path.normpath(os.path.join(here, name)) in files
            if not exists:
                complain(page, text, match.start(), "there is no file %s" % name)
        elif re.match(r"(scripts|examples|tests|docs|\.ci)/", name) and "*" not in name:
            checked += 1
            if name.rstrip("/") not in folders and name not in files:
                complain(page, text, match.start(), "there is no %s" % name)
    for match in re.finditer(r"(?<![\w-])--[a-z][a-z0-9-]+", text):
        checked += 1
        if match.group(0) not in program_options and match.group(0) not in OTHER_TOOLS:
            complain(page, text, match.start(), "no program has an option %s" % match.group(0))

# ---- links ----


def anchors(path):
    found = set()
    for line in re.findall(r"^#+ +(.*)$", re.sub(r"^```.*?^```", "", read(path), flags=re.M | re.S), flags=re.M):
        found.add(re.sub(r"[^\w -]", "", line.strip().lower()).replace(" ", "-"))
    return found


for page in PAGES:
    text = read(page)
    for match in re.finditer(r"\]\(([^)\s]+)\)", text):
        target = match.group(1)
        if re.match(r"\w+:", target):
            continue
        checked += 1
        path, _, anchor = target.partition("#")
        path = os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page
        if path not in files and path not in folders:
            complain(page, text, match.start(), "the link leads to %s, which is not there" % path)
        elif anchor and anchor not in anchors(path):
            complain(page, text, match.start(), "%s has no heading #%s" % (path, anchor))

# ---- the guide's table of headers ----

guide = read("docs/user-guide.md")
rows = re.findall(r"^\| (`dtr/.*?) \|", guide, flags=re.M)
listed = [name for row in rows for name in re.findall(r"`dtr/(\w+\.h)`", row)]
for name in sorted({os.path.basename(path) for path in headers} - set(listed)):
    complain("docs/user-guide.md", guide, guide.index("| header |"), "the table of headers lacks dtr/%s" % name)
for name in sorted({n for n in listed if listed.count(n) > 1}):
    complain("docs/user-guide.md", guide, guide.index("| header |"), "the table of headers has dtr/%s twice" % name)

# ---- fields of options ----

fields = 0
for path, text in headers.items():
    for struct in re.finditer(r"typedef struct \w+_options \{\n(.*?)\n\} \w+;", text, flags=re.S):
        before = ""
        inside = False  # a comment that has begun on an earlier line
        for offset, line in enumerate(struct.group(1).split("\n")):
            declares = re.match(r"\s+(?!\*|/\*)[\w ]+[ *(].*;", line) and not inside
            if declares and not re.search(r"\b(has|n)_\w+;", line):
                fields += 1
                if "/*" not in line and not before.strip().endswith("*/"):
                    complain(path, text, struct.start(1) + sum(len(l) + 1 for l in struct.group(1).split("\n")[:offset]),
                             "a field of an options struct has no comment: %s" % line.strip())
            inside = (inside or "/*" in line) and "*/" not in line.split("/*")[-1]
            before = line if line.strip().startswith(("/*", "*")) else ""

if checked < 500 or fields < 50 or stated < 5:
    problems.append("only %d names, %d fields and %d defaults looked at: is the check broken?" % (checked, fields, stated))
verdict(problems, "%d names, files, options and links of %d pages, %d fields, %d defaults" % (checked, len(PAGES), fields, stated))
