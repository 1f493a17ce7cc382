"""What libdtr_cuda needs of CUDA, with the version nodes, and the names that it and the programs look up, are in the real
libraries; and the stand-ins export nothing that these do not, but for what fake_cuda.h adds.

Usage: symbols.py READELF LIBRARIES STAND-INS LIBDTR_CUDA.so PROGRAM...   against those of the toolkit
       symbols.py READELF newest STAND-INS LIBDTR_CUDA.so PROGRAM...      against those of scripts/testbed/cuda-venv
"""
import glob
import os
import re
import subprocess
import sys

readelf, where, stand_ins, library, *programs = sys.argv[1:]
OURS = "dtr_fake_cuda_"
NEWEST = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "dtr", "cuda")
# Name in libraries and programs, and where it lies: the toolkit has of the driver's library what programs are linked with.
PLACES = {"libcudart.so.13": ("libcudart.so.13", "nvidia/cu13/lib/libcudart.so.13"),
          "libnccl.so.2": ("libnccl.so.2", "nvidia/nccl/lib/libnccl.so.2"),
          "libcublas.so.13": ("libcublas.so.13", ""),
          "libcuda.so.1": ("stubs/libcuda.so", "")}
ASKED = {"libcudart.so.13": "cuda[A-Z]", "libnccl.so.2": "nccl[A-Z]", "libcuda.so.1": "cu[A-Z]"}


def output(*options):
    return subprocess.run([readelf, "-W"] + list(options), check=True, capture_output=True, text=True,
                          errors="replace").stdout


def symbols(path):
    """({name: node} that are defined, those that are needed); the node is "" where there is none."""
    found = ({}, {})
    for line in output("--dyn-syms", path).splitlines():
        words = line.split()
        if len(words) > 7 and words[0].rstrip(":").isdigit() and words[4] != "LOCAL":
            name, _, node = words[7].partition("@")
            found[words[6] == "UND"][name] = node.lstrip("@")
    return found


def texts(path):
    """Strings that are a whole word, as the names of functions are that dlsym is asked for."""
    lines = (re.sub(r"^ *\[ *[0-9a-f]+\]  ", "", line) for line in output("-p", ".rodata", path).splitlines())
    return {line for line in lines if re.fullmatch(r"\w+", line)}


def real(soname):
    """The path of a real library, "" where there is none."""
    toolkit, wheel = PLACES[soname]
    if where != "newest":
        return os.path.join(where, toolkit) if os.path.exists(os.path.join(where, toolkit)) else ""
    found = glob.glob(os.path.join(NEWEST, "lib", "python*", "site-packages", wheel)) if wheel else []
    return found[0] if found else ""


def check(soname, there):
    """(number of names that were looked at, what is wrong with them)."""
    asked = [(name, path) for path in [library] + programs for name in texts(path)
             if soname in ASKED and re.match(ASKED[soname], name)]
    needed = {name: node for name, node in symbols(library)[1].items() if node == soname}
    offered = symbols(os.path.join(stand_ins, soname))[0] if os.path.exists(os.path.join(stand_ins, soname)) else {}
    offered = {name: node for name, node in offered.items() if not name.startswith(OURS)}
    problems = ["%s looks up %s, which %s does not have" % (os.path.basename(path), name, soname)
                for name, path in asked if name not in there]
    for who, names in ((os.path.basename(library) + " needs", needed), ("the stand-in exports", offered)):
        problems += ["%s %s@%s, but the real %s %s" % (who, name, node, soname, "has it as @" + there[name]
                                                       if name in there else "does not have it")
                     for name, node in names.items() if there.get(name) != node]
    return len({name for name, _ in asked} | set(needed) | set(offered)), problems


if where == "newest" and not os.path.exists(os.path.join(NEWEST, "whole")):
    print("skipped: no libraries of %s; scripts/testbed/cuda-venv fetches them" % NEWEST)
    sys.exit(77)
wrong, said = [], []
for lib in PLACES:
    path = real(lib)
    if path and os.path.exists(os.path.join(stand_ins, lib)):  # not every build has NCCL, or the example with cuBLAS
        count, problems = check(lib, symbols(path)[0])
        wrong += problems
        said.append("%d names of %s" % (count, lib))
        if count < 4 or lib == "libcudart.so.13" and count < 60:
            wrong.append("only %d names of %s found: is the check broken?" % (count, lib))
if not any("libcudart" in text for text in said):
    wrong.append("no real libcudart.so.13 found in %s" % where)
if wrong:
    sys.exit("\n".join(sorted(wrong)))
print("%s are in the real libraries" % ", ".join(said))
