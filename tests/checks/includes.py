"""A room cannot include what lies above it, nor what another room keeps to itself: every header of the tree is looked for with the
room's own include folders.

Usage: includes.py CC ROOM=INCLUDE_DIR,INCLUDE_DIR,... (one per room, lowest first, as the build passes them to the compiler)
"""
import os
import re
import subprocess
import sys

from common import LAYERS, ROOT, read, tree_files, verdict

compiler = sys.argv[1]
rooms = [(name, folders.split(",")) for name, folders in (text.split("=", 1) for text in sys.argv[2:])]
problems = []
tried = 0


def layer_of(room):
    return room.split("_")[1]


def interface(room, folders):
    """What other rooms may include of it: the build keeps a folder of links to just those headers."""
    own = [folder for folder in folders if os.path.basename(folder) == room]
    return {os.path.relpath(os.path.join(at, name), own[0]) for at, _, names in os.walk(own[0]) for name in names} if own else set()


def found(folders, names):
    """Those of some headers that the compiler finds."""
    source = "".join('#if __has_include("%s")\n%s\n#endif\n' % (name, name) for name in names)
    text = subprocess.run([compiler, "-E", "-P", "-x", "c", *["-I" + folder for folder in folders if folder], "-"],
                          input=source, capture_output=True, text=True, check=True).stdout
    return {line.replace(" ", "") for line in text.splitlines() if line}


public = {layer: {"dtr/" + n for n in os.listdir(os.path.join(ROOT, layer, "include", "dtr")) if n.endswith(".h")} for layer in LAYERS}
private = {os.path.relpath(f, layer) for layer in LAYERS for f in tree_files(".h", ".def")
           if f.startswith(layer + os.sep) and "include" + os.sep not in f}
below = set()
names = {name for name, _ in rooms}
for room, folders in rooms:
    lower = LAYERS[:LAYERS.index(layer_of(room)) + 1]
    headers_alone = {os.path.basename(folder) for folder in folders if os.path.basename(os.path.dirname(folder)) == "rooms"} - names
    below = below.union(interface(room, folders), *(interface(name, folders) for name in headers_alone))
    seen = found(folders, sorted(private | set().union(*public.values())))
    tried += len(private)
    problems += ["%s can include %s, which is above it or private to its room" % (room, name)
                 for name in sorted(seen - below - set().union(*(public[layer] for layer in lower)))]
    problems += ["%s cannot include %s: is the check broken?" % (room, name) for name in sorted(below - seen)]

# The one way around include folders.
for path in tree_files(".c", ".h"):
    if path.split(os.sep)[0] in LAYERS:
        for match in re.finditer(r'#\s*include\s+"(\.\./[^"]*)"', read(path)):
            problems.append("%s includes %s: name the header, the include folders find it" % (path, match.group(1)))
verdict(problems, "%d includes tried in %d rooms; none reaches up, none into another room" % (tried, len(rooms)))
