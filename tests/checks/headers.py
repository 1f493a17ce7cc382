"""Each public header compiles alone as C11 and as C++17, with neither MPI nor CUDA, and so do its _INIT macros.

Usage: headers.py GENERATED_INCLUDE_DIR CC CXX MPI_INCLUDE_DIR...
Only dtr/mpi.h sees the MPI include folders. Both languages run with pedantic warnings as errors.
"""
import os
import re
import subprocess
import sys
import tempfile

from common import LAYERS, ROOT, public_headers, read, verdict

generated, cc, cxx, *mpi_folders = sys.argv[1:]
LANGUAGES = (("C11", [cc, "-x", "c", "-std=c11", "-Wstrict-prototypes"]), ("C++17", [cxx, "-x", "c++", "-std=c++17"]))
FLAGS = ["-Wall", "-Wextra", "-Wno-missing-field-initializers", "-pedantic-errors", "-Werror", "-fsyntax-only", "-H"]
# NCC18: and nothing of NCCL.
FOREIGN = re.compile(r"^\.+ .*/(mpi|cuda\w*|nccl)\.h$", re.M)

folders = [generated] + [os.path.join(ROOT, layer, "include") for layer in LAYERS]
problems = []
checked = 0

# dtr/dtr.h stands for all the others.
every = {"dtr/" + os.path.basename(path) for _, path in public_headers(generated)} - {"dtr/dtr.h", "dtr/mpi.h", "dtr/cuda.h"}
for name in sorted(every - set(re.findall(r"#include <(dtr/\w+\.h)>", read("ddp/include/dtr/dtr.h")))):
    problems.append("dtr/dtr.h does not include " + name)

with tempfile.TemporaryDirectory() as scratch:
    source = os.path.join(scratch, "alone")
    for layer, path in public_headers(generated):
        name = "dtr/" + os.path.basename(path)
        macros = re.findall(r"^#define (DTR_(\w+)_INIT)\b", read(path), flags=re.M)
        with open(source, "w", encoding="utf-8") as file:
            # Twice: the include guard counts too.
            file.write("#include <%s>\n#include <%s>\nint alone(void);\nint alone(void) {\n" % (name, name))
            for macro, stem in dict.fromkeys(macros):
                file.write("    dtr_%s %s = %s;\n" % (stem.lower(), stem.lower(), macro))
                file.write("    if (%s.struct_size != sizeof %s) return 1;\n" % (stem.lower(), stem.lower()))
            file.write("    return 0;\n}\n")
        for language, command in LANGUAGES:
            includes = ["-I" + folder for folder in folders]
            if name == "dtr/mpi.h":
                includes += ["-isystem" + folder for folder in mpi_folders]
            run = subprocess.run(command + FLAGS + includes + [source], capture_output=True, text=True)
            checked += 1
            if run.returncode != 0:
                errors = "\n".join(l for l in run.stderr.splitlines() if not re.match(r"\.+ ", l))
                problems.append("%s does not compile alone as %s:\n%s" % (name, language, errors))
            foreign = FOREIGN.search(run.stderr)
            if foreign and name not in ("dtr/mpi.h", "dtr/cuda.h"):
                problems.append("%s includes %s" % (name, foreign.group(0).split("/")[-1]))
verdict(problems, "%d compilations of public headers alone, as C11 and as C++17" % checked)
