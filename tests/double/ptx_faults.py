"""Faults planted into the PTX of kernels, one at a time: each is found when the kernel runs beside its body in C.

Usage: ptx_faults.py KERNELS.ptx PTX_TO_C.py TEST_PROGRAM COMPILER...
"""
import os
import re
import subprocess
import sys
import tempfile

ptx, to_c, program, *compiler = sys.argv[1:]
DIFFERS, MISALIGNED, OUTSIDE = ", not 0x", "misaligned", "of a block of"
NO_BARRIER, BLOCKS_RACE, ATOMIC_RACE = "without a barrier between", "in the same launch", "uses it atomically"
NEW, NEW_SHARED = "of its allocation, which nobody has written", "of shared memory, which nobody has written"
NEW_LOCAL, NEW_REGISTER = "local memory which nobody has written", "which not every path here has written"
EACH, FIRST, OTHERS, LAST = slice(None), slice(1), slice(1, None), slice(-1, None)  # occurrences that are changed, one at a time
# Kernel, what is looked for, what takes its place, which occurrence, what is to be said.
FAULTS = [
    ("scale_f32", r"shl\.b64(.*), 5;", r"shl.b64\1, 3;", LAST, MISALIGNED),
    ("axpy_f64", r"(ld\.global\.v2\.f64.*\[%rd\d+)\+16\]", r"\1+8]", LAST, MISALIGNED),
    ("bf16_from_f32", r"setp\.lt\.u64", "setp.le.u64", LAST, OUTSIDE),
    ("divide_u8", r"setp\.lt\.u64", "setp.le.u64", LAST, OUTSIDE),
    ("factor_orthogonal", r"(st\.shared\.f64.*)\[(%\w+)\]", r"\1[\2+8]", LAST, "outside of shared memory"),
    ("factor_orthogonal", r"bar\.sync .*", "", FIRST, NEW_SHARED),
    ("factor_orthogonal", r"bar\.sync .*", "", OTHERS, NO_BARRIER),
    ("factor_orthogonal", r"(@%p\d+ )?st\.shared\.f64.*", "", FIRST, NEW_SHARED),
    ("strided_u16", r"(ld\.global\.u16.*\[%rd\d+)\]", r"\1+2]", LAST, NEW),
    ("squares_f32", r"(mov\.u32.*), %ctaid\.x", r"\1, 0", EACH, BLOCKS_RACE),
    ("squares_f32", r"(mov\.u32.*), %tid\.x", r"\1, 0", EACH, NO_BARRIER),
    ("factor_product", r"(ld\.global\.f32.*\[%rd\d+)\]", r"\1+-4]", EACH, NO_BARRIER),
    ("q8_range_f32", r"ld\.volatile\.", "ld.", EACH, ATOMIC_RACE),
    ("scale_f32", r"mov\.u32(.*), %tid\.x", r".local .align 8 .b8 own[8];\nld.local.u32 \1, [own];", LAST, NEW_LOCAL),
    ("axpy_bf16", r"mov\.u32.*%tid\.x;", "", LAST, NEW_REGISTER),
    ("factor_orthogonal", r"(mov\.u32.*), 16;", r"\1, 8;", LAST, DIFFERS),
    ("factor_left", r"(mov\.u32.*), -1;", r"\1, 65535;", LAST, "a lane that it does not name"),
    ("axpy_f32", r"add\.rn\.f32", "add.rz.f32", LAST, DIFFERS),
    ("scale_f32", r"mul\.rn\.f32", "mul.rp.f32", LAST, DIFFERS),
    ("f32_from_f64", r"cvt\.rn\.f32\.f64", "cvt.rz.f32.f64", EACH, DIFFERS),
    ("q8_encode_f32", r"cvt\.rni\.f32\.f32", "cvt.rzi.f32.f32", LAST, DIFFERS),
    ("q8_decode_f64", r"div\.rn\.f32", "div.rm.f32", FIRST, DIFFERS),
    ("divide_i32", r"div\.s32", "div.u32", LAST, DIFFERS),
    ("largest_f32", r"setp\.nan\.", "setp.num.", LAST, DIFFERS),
    ("fill", r"shr\.u64", "lop3.b64", LAST, "an instruction that ptx_to_c.py does not know"),
]


def said(folder, kernel, text):
    """(exit status, output) of the test of one kernel with this PTX."""
    source, made, library = (os.path.join(folder, name) for name in ("fault.ptx", "fault.c", "fault.so"))
    with open(source, "w", encoding="utf-8") as out:
        out.write(text)
    subprocess.run([sys.executable, "-B", to_c, source, made], check=True)
    subprocess.run(compiler + ["-O0", "-shared", "-o", library, made], check=True)
    run = subprocess.run([program, kernel], env=dict(os.environ, DTR_FAKE_CUDA_PTX=library), check=False, text=True,
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return run.returncode, run.stdout


with open(ptx, encoding="utf-8") as whole:
    entries = {name: ".visible .entry dtr_kernel_%s(%s" % (name, rest)
               for name, rest in re.findall(r"\.entry dtr_kernel_(\w+)\((.*?\n})", whole.read(), re.S)}
planted, wrong, absent = 0, [], []  # absent: another compiler may write a kernel without what is looked for
with tempfile.TemporaryDirectory() as temporary:
    for kernel, pattern, instead, which, expected in FAULTS:
        found = list(re.finditer(pattern, entries[kernel]))
        absent += [] if found else ["%s has no %s" % (kernel, pattern)]
        for one in found[which]:
            text = entries[kernel]
            status, output = said(temporary, kernel, text[:one.start()] + one.expand(instead) + text[one.end():])
            planted += 1
            if status == 0 or expected not in output:
                wrong.append("%s with %s for %s in line %d of it: status %d, without \"%s\":\n%s" % (
                    kernel, one.expand(instead), one.group(), text[:one.start()].count("\n"), status, expected, output[-300:]))
if planted < 24:
    wrong.append("only %d faults could be planted: %s" % (planted, ", ".join(absent)))
if wrong:
    sys.exit("\n".join(wrong))
print("\n".join(absent + ["%d faults in the PTX of kernels, each found" % planted]))
