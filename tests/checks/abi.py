"""The binary interface is that of the kept description, abi/libdtr.abi, or that and more (docs/abi.md): functions may be added, options
and statistics may get fields at their end, enumerators may be added; whatever else differs is an error.

Usage: abi.py CC [--update]
What is compared is a library of empty functions made from the public headers alone, so it depends neither on the MPI nor on how the
library is built; that the real one exports the same functions is the check of prototypes. Numbers that programs compile in
(enumerators without a type, macros) are members of one more type there.
"""
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

from common import LAYERS, ROOT, prototypes, public_headers, read, verdict

KEPT = os.path.join(ROOT, "abi", "libdtr.abi")
MPI = "typedef struct mpi_communicator *MPI_Comm;\n"  # any MPI's
# Compared here, name by name: abidiff takes enums of the same set of numbers for equal, and cannot tell growth at the end from others.
OURS = """[suppress_type]
  type_kind = enum
  name_regexp = .*
[suppress_type]
  type_kind = struct
  name_regexp = ^(%s)$
"""


class Description:
    """Enums and structs in a file of abidw."""

    def __init__(self, path):
        root = xml.etree.ElementTree.parse(path).getroot()
        self.types = {node.get("id"): node for node in root.iter() if node.get("id")}
        named = [node for node in self.types.values() if (node.get("name") or "").startswith("dtr_")]
        self.enums = {node.get("name"): {e.get("name"): e.get("value") for e in node.iter("enumerator")}
                      for node in named if node.tag == "enum-decl"}
        self.structs = {node.get("name"): [(member.get("layout-offset-in-bits"), member.find("var-decl").get("name"),
                                            self.text(member.find("var-decl").get("type-id"))) for member in node.iter("data-member")]
                        for node in named if node.tag == "class-decl" and node.get("is-declaration-only") is None}
        self.sizes = {node.get("name"): int(node.get("size-in-bits") or 0) for node in named if node.tag == "class-decl"}

    def text(self, type_id):
        """The type in words, with every name on the way to it."""
        node = self.types[type_id]
        inner = [node.get("type-id")] + [part.get("type-id") for part in node if part.tag in ("parameter", "return")]
        inner = [] if node.tag in ("typedef-decl", "class-decl", "enum-decl", "type-decl") else [self.text(i) for i in inner if i]
        length = [part.get("length") for part in node.iter("subrange")]
        qualifiers = "const " if node.get("const") else ""
        return "%s%s(%s)" % (qualifiers, node.get("name") or node.tag, ", ".join(inner + length))


def compare(old, new, grows):
    """What of enums and of structs that may grow is no longer as it was."""
    for name, values in sorted(old.enums.items()):
        for enumerator, value in values.items():
            now = new.enums.get(name, {}).get(enumerator)
            if now != value:
                yield "%s is %s, and was %s" % (enumerator.replace("number_", ""), now or "not there", value)
    for name in sorted(grows & set(old.structs)):
        was, now = old.structs[name], new.structs.get(name, [])
        for k, member in enumerate(was):
            if k >= len(now) or now[k] != member:
                yield "%s: field %d is %s, and was %s" % (name, k, "not there" if k >= len(now) else "%s at bit %s, %s" % (
                    now[k][1], now[k][0], now[k][2]), "%s at bit %s, %s" % (member[1], member[0], member[2]))
                break
        for offset, field, _ in now[len(was):]:
            if int(offset) < old.sizes[name]:
                yield "%s: the new field %s lies where programs have padding, which nobody has set" % (name, field)


def added(old, new, grows):
    for name, values in sorted(new.enums.items()):
        yield from (e.replace("number_", "") for e in values if e not in old.enums.get(name, {}))
    for name in sorted(grows):
        yield from ("%s.%s" % (name, field) for _, field, _ in new.structs.get(name, [])[len(old.structs.get(name, [])):])


def make(cc, folder, headers):
    """libdtr.so of empty functions; also the names of the structs that begin with struct_size."""
    include = os.path.join(folder, "include", "dtr")
    os.makedirs(include)
    with open(os.path.join(folder, "include", "mpi.h"), "w", encoding="utf-8") as file:
        file.write(MPI)
    version = re.search(r"^project\(dtr VERSION (\d+)\.(\d+)\.(\d+)", read("CMakeLists.txt"), flags=re.M)
    text = read("runtime/include/dtr/version.h.in")
    for name, number in zip(("MAJOR", "MINOR", "PATCH"), version.groups()):
        text = text.replace("@dtr_VERSION_%s@" % name, number)
    with open(os.path.join(include, "version.h"), "w", encoding="utf-8") as file:
        file.write(text)
    headers = headers + [os.path.join(include, "version.h")]
    functions, numbers, grows = [], [], []
    for path in headers:
        text = re.sub(r"/\*.*?\*/", " ", read(path), flags=re.S)
        functions += [f.text[f.text.index("DTR_API"):] for f in prototypes(path)]
        for body in re.findall(r"^enum \{(.*?)\};", text, flags=re.M | re.S):
            numbers += re.findall(r"\b(DTR_\w+) *=", body)
        numbers += [name for name in re.findall(r"^#define (DTR_[A-Z_]+) \(?-?[0-9]", text, flags=re.M) if "VERSION" not in name
                    and name != "DTR_CALL_SITES"]
        grows += re.findall(r"typedef struct (\w+) \{\s*size_t struct_size;", text)
    source = os.path.join(folder, "libdtr.c")
    with open(source, "w", encoding="utf-8") as file:
        file.write("#include <dtr/dtr.h>\n#include <dtr/mpi.h>\n")
        file.write("typedef enum dtr_numbers {\n%s} dtr_numbers;\n" % "".join("    number_%s = %s,\n" % (n, n) for n in numbers))
        file.write("void dtr_numbers_of_headers(dtr_numbers numbers);\nvoid dtr_numbers_of_headers(dtr_numbers numbers) { (void)numbers; }\n")
        for name in sorted(grows):  # those that no function of the library takes as well
            file.write("void %s_of_headers(%s *p);\nvoid %s_of_headers(%s *p) { (void)p; }\n" % (name, name, name, name))
        for text in functions:
            file.write(text.rstrip().rstrip(";") + " {\n    __builtin_trap();\n}\n")
    library = os.path.join(folder, "libdtr.so")
    run = subprocess.run([cc, "-std=c11", "-g", "-O0", "-shared", "-fPIC", "-DDTR_NO_CALL_SITE", "-I" + os.path.join(folder, "include")] +
                         ["-I" + os.path.join(ROOT, layer, "include") for layer in LAYERS] + ["-o", library, os.path.basename(source)],
                         cwd=folder, capture_output=True, text=True)  # no path of this machine is written
    if run.returncode != 0:
        verdict(["the empty library does not compile:\n" + run.stderr], "nothing")
    return library, grows, len(functions)


cc, update = sys.argv[1], sys.argv[2:] == ["--update"]
if platform.machine() != "x86_64":
    print("skipped: the kept description is of x86_64, this is %s" % platform.machine())
    sys.exit(77)
for tool in ("abidiff", "abidw"):
    if shutil.which(tool) is None:
        print("skipped: there is no %s (Debian: abigail-tools)" % tool)
        sys.exit(77)
with tempfile.TemporaryDirectory() as folder:
    library, grows, count = make(cc, folder, [path for _, path in public_headers()])
    if update:
        os.makedirs(os.path.dirname(KEPT), exist_ok=True)
        subprocess.run(["abidw", "--no-corpus-path", "--no-comp-dir-path", "--no-show-locs", "--out-file", KEPT, library], check=True)
        verdict([], "%s describes %d functions" % (os.path.relpath(KEPT, ROOT), count))
    suppressions = os.path.join(folder, "may_grow")
    with open(suppressions, "w", encoding="utf-8") as file:
        file.write(OURS % "|".join(sorted(grows)))
    now = os.path.join(folder, "now.abi")
    subprocess.run(["abidw", "--no-show-locs", "--out-file", now, library], check=True)
    old, new = Description(KEPT), Description(now)
    problems = list(compare(old, new, set(grows)))
    additions = list(added(old, new, set(grows)))
    run = subprocess.run(["abidiff", "--no-show-locs", "--suppressions", suppressions, KEPT, library], capture_output=True, text=True)
    summary = re.search(r"^Functions changes summary: (\d+) Removed, (\d+) Changed(?: \([^)]*\))?, (\d+) Added", run.stdout, flags=re.M)
if run.returncode == 0 and run.stdout.strip() == "":
    pass  # the same
elif run.returncode & 3 or summary is None:
    problems.append("abidiff failed with status %d: %s%s" % (run.returncode, run.stdout, run.stderr))
elif int(summary.group(1)) + int(summary.group(2)) > 0:
    problems.append(run.stdout)
if problems:
    problems.append("programs that were built before would go wrong. Where that is meant (before 1.0, see docs/abi.md): say it in "
                    "CHANGELOG.md, and run scripts/abi --update")
else:  # additions are no fault
    print("".join("added: %s\n" % name for name in additions + re.findall(r"^  \[A\] '(.*?)'", run.stdout, flags=re.M)), end="")
if count < 200 or len(grows) < 10:
    problems.append("found %d functions and %d structs: is the check broken?" % (count, len(grows)))
verdict(problems, "%d functions, and all that they take, as abi/libdtr.abi has them" % count)
