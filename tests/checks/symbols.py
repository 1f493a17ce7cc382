"""libdtr does not end the process or take over its signals (reliability:M3): it refers to no function that does. It can be loaded into
a running program, which has little thread-local storage left for it.

Usage: symbols.py LIBDTR.so NM
"""
import ctypes
import re
import subprocess
import sys

from common import LAYERS, read, tree_files, verdict

FORBIDDEN = {"exit", "_exit", "_Exit", "quick_exit", "raise", "__assert_fail", "MPI_Abort", "PMPI_Abort",
             "signal", "sigprocmask", "sigaltstack", "atexit", "at_quick_exit", "__cxa_atexit", "execve",
             "fork", "vfork", "setenv", "putenv", "unsetenv"}

# Allowed in one file, which does it only where a setting asks for it, or in the one way that leaves programs alone.
ONE_PLACE = {"sigaction": "runtime/diagnosis/signal.c", "abort": "runtime/diagnosis/abort.c",
             "pthread_create": "runtime/base/thread.c", "hwloc_topology_init": "runtime/topology/topology.c"}

library, nm = sys.argv[1:]
lines = subprocess.run([nm, "-D", "--undefined-only", library], check=True, capture_output=True, text=True).stdout
used = {line.split()[-1].split("@")[0] for line in lines.splitlines()}
problems = []
for name, place in ONE_PLACE.items():
    others = [f for f in tree_files(".c") if f.startswith(LAYERS) and "/tools/" not in f and f != place
              and re.search(r"\b%s\(" % name, read(f))]
    problems += ["%s mentions %s(), which belongs into %s alone" % (f, name, place) for f in others]
problems += ["the library refers to %s()" % name for name in sorted(used & FORBIDDEN)]
if not any(name.startswith("MPI_") for name in used):
    problems.append("no MPI function among the %d symbols the library refers to: is the check broken?" % len(used))
try:
    ctypes.CDLL(library)
except OSError as error:
    problems.append("cannot be loaded at run time: %s" % error)
verdict(problems, "%d outside symbols used, none ends the process, forks, or changes signals or environment" % len(used))
