"""The library and the installed programs are hardened as docs/security.md says: no executable stack, relocations and the table of
functions read-only before the program starts, stack protectors, checked forms of the C library's functions.

Usage: hardening.py READELF OPTIMISED FILE... with OPTIMISED 1 where the compiler optimises
"""
import os
import subprocess
import sys

from common import verdict

readelf, optimised, files = sys.argv[1], sys.argv[2] == "1", sys.argv[3:]
problems = []
for path in files:
    def shown(*options, path=path):
        return subprocess.run([readelf, "-W", *options, path], check=True, capture_output=True, text=True).stdout

    name = os.path.basename(path)
    headers = {line.split()[0]: line for line in shown("-l").splitlines() if line.startswith("  GNU_")}
    dynamic = shown("-d")
    symbols = {line.split()[7].split("@")[0] for line in shown("--dyn-syms").splitlines() if len(line.split()) > 7}
    if " RWE " in headers.get("GNU_STACK", " RWE "):
        problems.append("%s: the stack is executable" % name)
    if "GNU_RELRO" not in headers:
        problems.append("%s: relocations stay writable (no RELRO)" % name)
    if "BIND_NOW" not in dynamic and "Flags: NOW" not in dynamic:
        problems.append("%s: functions are bound late, so their table stays writable (no -z now)" % name)
    if "__stack_chk_fail" not in symbols:
        problems.append("%s: no stack protector" % name)
    if optimised and not any(s.endswith("_chk") for s in symbols):
        problems.append("%s: no checked function of the C library (_FORTIFY_SOURCE)" % name)
verdict(problems, "%d files with RELRO, early binding, stack protectors and no executable stack" % len(files))
