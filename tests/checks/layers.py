"""A layer cannot include what lies above it: such an include must not compile with the layer's own include folders.

Usage: layers.py CC LAYER=INCLUDE_DIR,INCLUDE_DIR,... (one per layer, as the build passes them to the compiler)
"""
import os
import re
import subprocess
import sys

from common import LAYERS, ROOT, read, tree_files, verdict

compiler = sys.argv[1]
folders = dict((name, value.split(",")) for name, value in (text.split("=", 1) for text in sys.argv[2:]))
problems = []
tried = 0


def compiles(layer, header):
    global tried
    tried += 1
    flags = ["-I" + folder for folder in folders[layer] if folder]
    run = subprocess.run([compiler, "-std=c11", "-D_GNU_SOURCE", "-x", "c", "-fsyntax-only", *flags, "-"],
                         input="#include <%s>\n" % header, capture_output=True, text=True)
    if run.returncode != 0 and "No such file" not in run.stderr:
        problems.append("%s: including %s fails for another reason than a missing file:\n%s" % (layer, header, run.stderr))
    return run.returncode == 0


def headers(layer):
    public = os.path.join(ROOT, layer, "include", "dtr")
    private = [f for f in tree_files(".h") if f.startswith(layer + os.sep) and "include" + os.sep not in f]
    return ["dtr/" + n for n in sorted(os.listdir(public)) if n.endswith(".h")] + [os.path.basename(f) for f in private]


for level, layer in enumerate(LAYERS):
    if layer not in folders:
        problems.append("no include folders given for the layer " + layer)
        continue
    if not compiles(layer, headers(layer)[0]):
        problems.append("%s cannot include its own %s: is the check broken?" % (layer, headers(layer)[0]))
    for upper in LAYERS[level + 1:]:
        for header in headers(upper):
            if compiles(layer, header):
                problems.append("%s can include %s of the higher layer %s" % (layer, header, upper))

# The one way around include folders.
for path in tree_files(".c", ".h"):
    if path.split(os.sep)[0] in LAYERS:
        for match in re.finditer(r'#\s*include\s+"(\.\./[^"]*)"', read(path)):
            problems.append("%s includes %s: name the header, the include folders find it" % (path, match.group(1)))
verdict(problems, "%d includes tried; no layer reaches a higher one" % tried)
