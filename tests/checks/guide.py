"""The C code that the user guide shows compiles without a warning, as C11 with the public headers.

Usage: guide.py GENERATED_INCLUDE_DIR CC MPI_INCLUDE_DIR...
What a piece uses and does not declare is declared here.
"""
import os
import re
import subprocess
import sys
import tempfile

from common import LAYERS, ROOT, read, verdict

PAGE = "docs/user-guide.md"
FIRST = """#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <dtr/dtr.h>
#include <dtr/mpi.h>
"""
GIVEN = """extern float *values, rate;
extern size_t n;
extern int steps;
extern dtr_tensor *weight, *bias;
extern MPI_Comm my_comm, grid;
void compute_something_else(void), forward(void), optimizer_step(void), backward_bias(void *), backward_weight(void *);
"""
# What an earlier piece of the guide has made, where a piece does not declare it itself.
MADE = {"world": "dtr_world *world", "group": "dtr_group *group", "ddp": "dtr_ddp *ddp", "zero": "dtr_zero *zero",
        "optim": "dtr_optim *optim", "sampler": "dtr_sampler *sampler", "up": "int up", "down": "int down", "step": "int step", "loss": "float loss"}

generated, cc, *mpi_folders = sys.argv[1:]
flags = ["-std=c11", "-Wall", "-Wextra", "-Wno-unused", "-Wno-missing-field-initializers", "-Werror", "-fsyntax-only", "-x", "c", "-I" + generated]
flags += ["-I" + os.path.join(ROOT, layer, "include") for layer in LAYERS] + ["-isystem" + folder for folder in mpi_folders]
text = read(PAGE)
problems = []
compiled = 0
for block in re.finditer(r"^```c\n(.*?)^```$", text, flags=re.M | re.S):
    piece, line = block.group(1), text.count("\n", 0, block.start(1)) + 1
    if "<<<" in piece:
        continue  # CUDA's own language
    includes = "".join(re.findall(r"^#include .*\n", piece, flags=re.M))
    body = re.sub(r"^#include .*$", "", piece, flags=re.M)
    functions = re.findall(r"^static [^;{]*\) \{\n.*?^\}\n", body, flags=re.M | re.S)
    for function in functions:
        body = body.replace(function, "\n" * function.count("\n"))
    made = "".join("%s = 0; (void)%s;\n" % (declaration, name) for name, declaration in MADE.items()
                   if re.search(r"\b%s\b" % name, body) and not re.search(r"[\w*] \*?%s(?:\[\])? =|, %s =" % (name, name), body))
    source = (FIRST + includes + GIVEN + "".join(functions) + "int piece(void);\nint piece(void) {\n" + made +
              '#line %d "%s"\n' % (line, PAGE) + body + "    return 0;\n}\n")
    with tempfile.NamedTemporaryFile("w", suffix=".c", encoding="utf-8") as file:
        file.write(source)
        file.flush()
        run = subprocess.run([cc, *flags, file.name], capture_output=True, text=True)
    compiled += 1
    if run.returncode != 0:
        problems.append("%s:%d: this code does not compile; if it only uses a name that it need not declare, add that to GIVEN or MADE in "
                        "tests/checks/guide.py:\n%s" % (PAGE, line, run.stderr))
if compiled < 5:
    problems.append("only %d pieces of code found: is the check broken?" % compiled)
verdict(problems, "%d pieces of code in the user guide compile" % compiled)
