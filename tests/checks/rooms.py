"""Rooms of the layers: every folder with code has a README of ten to 25 lines that names each of its .c and .cu files and none that
is not there, no code lies loose beside the rooms, a room refers to symbols of rooms below it only, and its headers declare only what
it defines itself. Its interface headers are named like the room or like one of its .c files, or by the README.

Usage: rooms.py NM ROOM=OBJECT,OBJECT,... (one per room, lowest first, as the build has them)
"""
import os
import re
import subprocess
import sys

from common import LAYERS, ROOT, prototypes, read, tree_files, verdict

LINES = range(10, 26)
problems = []
nm = sys.argv[1]
rooms = [(name, objects.split(",")) for name, objects in (text.split("=", 1) for text in sys.argv[2:])]


def symbols(objects):
    """(defined, undefined) external names of some object files."""
    text = subprocess.run([nm, "-g", "--format=posix", *objects], check=True, capture_output=True, text=True).stdout
    found = [line.split() for line in text.splitlines() if not line.endswith(":")]
    defined = {f[0] for f in found if len(f) > 1 and f[1] not in "Uw"}
    return defined, {f[0] for f in found if len(f) > 1 and f[1] in "Uw"} - defined


# ---- who refers to whom ----
tables = [(name, *symbols(objects)) for name, objects in rooms]
level = {name: i for i, (name, _, _) in enumerate(tables)}
home = {symbol: name for name, defined, _ in tables for symbol in defined}
if len(home) < 1000:
    problems.append("only %d symbols found: is the check broken?" % len(home))
for name, _, wanted in tables:
    problems += ["%s refers to %s of %s, which is above it: register a callback, or move the function" % (name, symbol, home[symbol])
                 for symbol in sorted(wanted & home.keys()) if level[home[symbol]] > level[name]]

# ---- what headers declare ----
declared = 0
for path in tree_files(".h"):
    parts = path.split(os.sep)
    own = [name for name in ("dtr_" + "_".join(parts[:n]) for n in range(len(parts) - 1, 1, -1)) if name in level]
    if parts[0] in LAYERS and own:
        found = [(f.where, f.name) for f in prototypes(os.path.join(ROOT, path))
                 if re.search(r"^(?!return\b)[^=(]+$", f.text.partition(f.name)[0].strip())]  # no call in an inline function
        found += [(path, name) for name in re.findall(r"^extern [^;(]*\b(dtr_\w+)[\[;]", read(path), flags=re.M)]
        declared += len(found)
        problems += ["%s: %s is defined in %s: declare it there, or register a callback" % (where.split(": ")[0], name, home[name])
                     for where, name in found if home.get(name, own[0]) != own[0]]
if declared < 500:
    problems.append("only %d declarations found: is the check broken?" % declared)

# ---- folders ----
sources = [path for path in tree_files(".c", ".cu") if path.split(os.sep)[0] in LAYERS]
of_room = {}  # its folder: its sources, from there
for path in sources:
    folder = os.path.dirname(path)
    if os.sep not in folder:
        problems.append("%s lies in no room" % path)
    elif os.path.exists(os.path.join(ROOT, os.path.dirname(folder), "README.md")):  # a folder inside a room
        of_room.setdefault(os.path.dirname(folder), []).append(os.path.relpath(path, os.path.dirname(folder)))
    else:
        of_room.setdefault(folder, []).append(os.path.basename(path))
for folder, names in sorted(of_room.items()):
    readme = os.path.join(folder, "README.md")
    if not os.path.exists(os.path.join(ROOT, readme)):
        problems.append("%s has no README.md" % folder)
        continue
    text = read(readme)
    if len(text.splitlines()) not in LINES:
        problems.append("%s has %d lines; %d to %d tell a newcomer enough" %
                        (readme, len(text.splitlines()), LINES[0], LINES[-1]))
    for name in re.findall(r"`([\w/]+\.(?:c|h|def|cu|py))`", text):
        if not any(os.path.exists(os.path.join(ROOT, base, name)) for base in (folder, folder.split(os.sep)[0], "")):
            problems.append("%s names %s, which is not there" % (readme, name))
    problems += ["%s does not name %s: say in a few words what it is for" % (readme, name)
                 for name in names if "`%s`" % name not in text]
# ---- interface headers ----
interfaces = 0
for layer in LAYERS:
    for room, headers in re.findall(r"^dtr_add_room\(%s (\S+)\s+INTERFACE ([^)]*?)(?:\)|\s+SOURCES)" % layer,
                                    read(os.path.join(layer, "CMakeLists.txt")), flags=re.M):
        readme = os.path.join(layer, room, "README.md")
        text = read(readme) if os.path.exists(os.path.join(ROOT, readme)) else ""
        for header in headers.split():
            interfaces += 1
            stem = header.partition(".")[0]
            if stem != os.path.basename(room) and "`%s.c`" % stem not in text and "`%s`" % header not in text:
                problems.append("%s names neither %s, which rooms above include, nor a .c file of that name" % (readme, header))
if len(of_room) < 30 or interfaces < 60:
    problems.append("only %d folders and %d interface headers found: is the check broken?" % (len(of_room), interfaces))
verdict(problems, "%d rooms, %d symbols, no upward reference, %d declarations at home" % (len(rooms), len(home), declared))
