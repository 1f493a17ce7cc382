"""What the static checks share: the files of the tree, public headers and their prototypes, and the verdict."""
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LAYERS = ("runtime", "collectives", "tensor", "ddp")  # lowest first
SKIPPED_FOLDERS = re.compile(r"^(build.*|\.git|\.cache|__pycache__)$")


def tree_files(*suffixes):
    """Paths, relative to the root, of all files of the tree whose name ends with a suffix ('' for all)."""
    found = []
    for folder, folders, names in os.walk(ROOT):
        folders[:] = sorted(f for f in folders if not SKIPPED_FOLDERS.match(f))
        for name in sorted(names):
            if name.endswith(suffixes or ("",)):
                found.append(os.path.relpath(os.path.join(folder, name), ROOT))
    return found


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def public_headers(generated=None):
    """(layer, path) of every public header; `generated` is the folder of headers made by the build."""
    found = []
    for layer in LAYERS:
        folder = os.path.join(ROOT, layer, "include", "dtr")
        os.path.isdir(folder) or sys.exit("no public headers in %s" % folder)
        found += [(layer, os.path.join(folder, name)) for name in sorted(os.listdir(folder)) if name.endswith(".h")]
    if generated:
        folder = os.path.join(generated, "dtr")
        found += [("runtime", os.path.join(folder, name)) for name in sorted(os.listdir(folder))]
    return found


class Prototype:
    """A function that a public header declares."""

    def __init__(self, path, line, name, comment, text):
        self.path, self.line, self.name, self.comment, self.text = path, line, name, comment, text
        self.where = "%s:%d: %s" % (os.path.relpath(path, ROOT), line, name)


def blank(match):
    return re.sub(r"[^\n]", " ", match.group(0))


def prototypes(path):
    """The function declarations of a header. Inline functions and macros are not among them."""
    text = read(path)
    text = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", blank, text, flags=re.M)  # preprocessor lines
    text = re.sub(r"/\*(?!\*).*?\*/", blank, text, flags=re.S)  # comments that document nothing
    bare = re.sub(r"/\*.*?\*/", blank, text, flags=re.S)
    bare = re.sub(r"^template .*?\};$", blank, bare, flags=re.M | re.S)
    bare = re.sub(r"^static inline [^;]*?\{\n.*?^\}$", blank, bare, flags=re.M | re.S)  # inline functions call others
    found = []
    for match in re.finditer(r"\b(dtr_\w+)\s*\((?!\s*\*)", bare):  # not "dtr_status (*slot)(..."
        start = max(bare.rfind(c, 0, match.start()) for c in ";}{") + 1
        end = bare.find(";", match.start())
        statement = bare[start:end]
        if end < 0 or "{" in statement or "typedef" in statement or re.search(r"\(\s*\*\s*$", bare[:match.start()]):
            continue  # inline function, function type
        if statement.count("(", 0, match.start() - start) > statement.count(")", 0, match.start() - start):
            continue  # inside another declaration's parameters
        docs = re.findall(r"/\*\*(.*?)\*/", text[start:end], flags=re.S)
        line = text.count("\n", 0, match.start()) + 1
        found.append(Prototype(path, line, match.group(1), docs[-1] if docs else None, " ".join(statement.split())))
    return found


def verdict(problems, what):
    """Print the problems and exit: 1 where there are any."""
    for problem in problems:
        print(problem)
    if problems:
        print("%d problem(s); checked: %s" % (len(problems), what))
        sys.exit(1)
    print("ok: " + what)
    sys.exit(0)
