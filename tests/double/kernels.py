"""Static checks of the kernels, which need nvcc and no GPU: no register is spilled, nothing is kept in local memory, and every
kernel that moves data reads and writes 16 bytes at a time in PTX, a conversion those of the wider type; machine_code.py looks at
the machine's code. Every .cu of the layers is looked at, and a file with a bad kernel of each kind is, to see that it is found.

Usage: kernels.py NVCC TREE BAD.cu
"""
import glob
import os
import re
import sys
import tempfile

from kernel_rules import not_found, output, widths

nvcc, tree, bad = sys.argv[1:]
LAYERS = ("runtime", "collectives", "tensor", "ddp")


def moved(text, kind):
    found = re.findall(r"\b%s\.global(?:\.volatile)?(?:\.v(\d))?\.[a-z](\d+)" % kind, text)
    return {int(n or 1) * int(bits) // 8 for n, bits in found}


def compile_all(source):
    """What ptxas says, and PTX."""
    flags = [nvcc, "-arch=sm_90", "-fmad=false", "-I" + os.path.join(tree, "collectives")]
    with tempfile.TemporaryDirectory() as folder:
        cubin, ptx = os.path.join(folder, "kernels.cubin"), os.path.join(folder, "kernels.ptx")
        _, report = output(flags + ["-cubin", "-Xptxas", "-v", "-o", cubin, source])
        output(flags + ["-ptx", "-o", ptx, source])
        with open(ptx, encoding="utf-8") as text:
            return report, text.read()


def check(source):
    """(number of kernels, what is wrong with them)."""
    report, ptx = compile_all(source)
    problems = []
    spills = re.findall(r"properties for (\w+)\n +(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads",
                        report)
    if not spills:
        problems.append("ptxas says nothing about spills: is the check broken?")
    for name, frame, stores, loads in spills:
        if int(stores) or int(loads):
            problems.append("%s spills registers: see nvcc -Xptxas -v" % name)
        elif int(frame) and re.match("dtr_kernel_(few|most)_", name):
            problems.append("%s copies its table of stretches to local memory: see nvcc -Xptxas -v" % name)
    kernels = dict(re.findall(r"\.entry dtr_kernel_(\w+)\((.*?)\n}", ptx, re.S))
    problems += widths(kernels, moved, "PTX")
    return len(kernels), ["%s: %s" % (os.path.relpath(source, tree), problem) for problem in problems]


found, wrong = 0, []
for path in sorted(sum((glob.glob(os.path.join(tree, layer, "**", "*.cu"), recursive=True) for layer in LAYERS), [])):
    kernels_here, wrong_here = check(path)
    found, wrong = found + kernels_here, wrong + wrong_here
if found < 60:
    wrong.append("only %d kernels found: is the check broken?" % found)
said = "\n".join(check(bad)[1])
wrong += not_found(("narrow has no load", "narrow has no store", "f32_from_bf16 has no load of 8 bytes",
                    "dtr_kernel_spilling spills", "dtr_kernel_few_copied copies its table"), said, bad)
if wrong:
    sys.exit("\n".join(wrong))
print("%d kernels: no spills, accesses of 16 bytes in PTX" % found)
