"""Static checks of the kernels, which need nvcc and no GPU: no register is spilled, nothing is kept in local memory, and every kernel that moves data reads
and writes 16 bytes at a time.

Usage: kernels.py NVCC SOURCE.cu INCLUDE_DIR
"""
import os
import re
import subprocess
import sys
import tempfile

nvcc, source, include = sys.argv[1:]
ONCE_PER_THREAD = ("largest_", "squares_", "nan_")  # write one number each; largest_ also reads one by one
WIDE = {kind: re.compile(r"%s\.global(\.\w+)*\.(v4\.[a-z]32|v2\.[a-z]64)" % kind) for kind in ("ld", "st")}
problems = []


def compile_to(name, *flags):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, name)
        run = subprocess.run([nvcc, "-arch=sm_90", "-fmad=false", "-I" + include, *flags, "-o", path, source],
                             capture_output=True, text=True)
        if run.returncode != 0:
            sys.exit("nvcc fails:\n" + run.stderr)
        with open(path, errors="replace") as f:
            return run.stderr, f.read()


report, _ = compile_to("kernels.o", "-c", "-Xptxas", "-v")
spills = [int(n) for n in re.findall(r"(\d+) bytes spill (?:stores|loads)", report)]
if not spills:
    problems.append("ptxas says nothing about spills: is the check broken?")
if any(spills):
    problems.append("registers are spilled: see nvcc -Xptxas -v " + source)

frames = re.findall(r"properties for dtr_kernel_(few|most)_.*\n +(\d+) bytes stack frame", report)
if len(frames) < 30 or any(int(n) for _, n in frames):
    problems.append("a table of stretches is copied to local memory: see nvcc -Xptxas -v " + source)

_, ptx = compile_to("kernels.ptx", "-ptx")
kernels = dict(re.findall(r"\.entry dtr_kernel_(\w+)\((.*?)\n}", ptx, re.S))
for name, text in sorted(kernels.items()):
    if name != "fill" and not name.startswith("largest_") and not WIDE["ld"].search(text):
        problems.append("%s has no load of 16 bytes" % name)
    if not name.startswith(ONCE_PER_THREAD) and not WIDE["st"].search(text):
        problems.append("%s has no store of 16 bytes" % name)
if len(kernels) < 60:
    problems.append("only %d kernels found: is the check broken?" % len(kernels))
if problems:
    sys.exit("\n".join(problems))
print("%d kernels: no spills, accesses of 16 bytes" % len(kernels))
