"""The machine's code in libdtr_cuda, for every architecture that it is built for: registers, spills, accesses of 16 bytes. And the
PTX in it, which other cards compile for themselves, is the one that the stand-ins run (README.md). Needs no GPU, but the
disassembler that scripts/testbed/cuda-venv fetches.

Usage: machine_code.py LIBDTR_CUDA.so "ARCHITECTURES" NVCC BAD.cu TREE
"""
import os
import re
import sys
import tempfile

from kernel_rules import not_found, output, widths

library, architectures, nvcc, bad, tree = sys.argv[1:]
VENV = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "dtr", "cuda")
REGISTERS = 64  # of a thread: four blocks on a multiprocessor
MORE = ("few_adam_f64", "most_adam_f64")  # roots and quotients of doubles: 80, three blocks
# Bytes of a thread's stack: from 10.0 on two registers of the loop over groups, in which the loop over ranks is unrolled.
STACK = {("q8_decode_", arch): 8 for arch in ("sm_100", "sm_120")}


def moved(text, kind):
    found = re.findall(r"\b%s\.E(?:\.\w+)*?(?:\.[US]?(8|16|64|128|256))?(?:\.[A-Z]+)*\s" % {"ld": "LDG", "st": "STG"}[kind], text)
    return {int(bits or 32) // 8 for bits in found}


def disassembler():
    for folder, _, files in os.walk(os.path.join(VENV, "lib")):
        if "cuobjdump" in files:
            return folder
    print("skipped: no cuobjdump in %s; scripts/testbed/cuda-venv fetches it" % VENV)
    sys.exit(77)


folder_of_tools = disassembler()
tools = dict(os.environ, PATH=folder_of_tools + ":" + os.environ["PATH"])


def cuobjdump(path, *options, **more):
    return output([os.path.join(folder_of_tools, "cuobjdump")] + list(options) + [path], env=tools, **more)[0]


def by_architecture(text, function):
    """{architecture: {kernel: text}} of what cuobjdump writes; function: what stands before a kernel's name."""
    found = {}
    for part in re.split(r"^arch = ", text, flags=re.M)[1:]:
        kernels = re.split(r"^\s*%s ?dtr_kernel_" % function, part, flags=re.M)[1:]
        found.setdefault(part.split(None, 1)[0], {}).update((re.match(r"\w+", k).group(), k) for k in kernels)
    return {arch: kernels for arch, kernels in found.items() if kernels}


def limits(arch, kernels):
    for name, text in sorted(kernels.items()):
        registers, stack, local = (int(re.search(r"\b%s:(\d+)" % what, text).group(1)) for what in ("REG", "STACK", "LOCAL"))
        allowed = max((n for (start, at), n in STACK.items() if name.startswith(start) and at == arch), default=0)
        most = 80 if name in MORE else REGISTERS
        if registers > most:
            yield "%s uses %d registers on %s, more than %d" % (name, registers, arch, most)
        if stack > allowed or local > 0:
            yield "%s keeps %d bytes in local memory on %s, more than %d" % (name, stack + local, arch, allowed)


def check(path):
    """({architecture: {kernel: what it uses}}, what is wrong)."""
    used = by_architecture(cuobjdump(path, "-res-usage"), "Function")
    code = by_architecture(cuobjdump(path, "-sass"), "Function :")
    problems = []
    for arch, kernels in used.items():
        if set(code.get(arch, ())) != set(kernels):
            problems.append("no code found for some kernels of %s: is the check broken?" % arch)
        problems += limits(arch, kernels)
        problems += widths(code.get(arch, {}), moved, "code of " + arch)
    return used, problems


def same_names(text):
    """PTX without spaces and comments, and without what names of a file's own have of the place of the file."""
    text = re.sub(r"//.*", "", text)
    return re.sub(r"_INTERNAL_[0-9a-f]+_|_cu_[0-9a-f]{8}", "", re.sub(r"\s+", " ", text)).strip()


def check_ptx(folder):
    cuobjdump(os.path.abspath(library), "-xptx", "all", cwd=folder)
    found = [name for name in os.listdir(folder) if name.endswith(".ptx")]
    wanted = [arch for arch in architectures.split() if not arch.endswith("-real")]
    if [re.search(r"sm_(\d+)", name).group(1) for name in found] != wanted:
        return ["the library has %s, not the PTX of %s" % (found, wanted)]
    made = os.path.join(folder, "made")
    output([nvcc, "-arch=compute_" + wanted[0], "-fmad=false", "-I" + os.path.join(tree, "collectives"), "-ptx", "-o", made,
            os.path.join(tree, "collectives", "cuda", "device_kernels.cu")])
    texts = []
    for path in (os.path.join(folder, found[0]), made):
        with open(path, encoding="utf-8") as ptx:
            texts.append(same_names(ptx.read()))
    return [] if texts[0] == texts[1] else ["the PTX in the library is not what nvcc -ptx makes: %s" % found]


usage, wrong = check(library)
expected = {"sm_" + re.match(r"\d+", arch).group() for arch in architectures.split()}
if set(usage) != expected:
    wrong.append("the library has code for %s, not for %s" % (sorted(usage), sorted(expected)))
if min(map(len, usage.values()), default=0) < 60:
    wrong.append("fewer than 60 kernels found: is the check broken?")
with tempfile.TemporaryDirectory() as temporary:
    wrong += check_ptx(temporary)
    fatbin = os.path.join(temporary, "bad.fatbin")
    output([nvcc, "-arch=sm_90", "-I" + os.path.join(tree, "collectives"), "-fatbin", "-o", fatbin, bad])
    said = "\n".join(check(fatbin)[1])
wrong += not_found(("narrow has no load", "narrow has no store", "f32_from_bf16 has no load of 8 bytes", "spilling keeps",
                    "few_copied keeps"), said, bad)
if wrong:
    sys.exit("\n".join(wrong))
for arch, kernels in sorted(usage.items()):
    most = max(int(re.search(r"\bREG:(\d+)", text).group(1)) for text in kernels.values())
    print("%s: %d kernels, at most %d registers" % (arch, len(kernels), most))
