"""What every kernel of the library must be like, whether its PTX is looked at or the machine's code."""
import subprocess
import sys

# Write one number each; largest_ also reads one by one, and so does factor_orthogonal, whose columns are short and cached. Of the
# strided ones strided_u128 takes all that can be read by 16 bytes.
NARROW = ("strided_u8", "strided_u16", "strided_u32", "strided_u64", "strided_cast")
ONCE_PER_THREAD = ("largest_", "squares_", "few_exact_", "most_exact_", "nan_", "q8_range_", "factor_left", "factor_orthogonal") + NARROW
ONE_BY_ONE = ("fill", "largest_", "factor_orthogonal") + NARROW


def output(command, **more):
    run = subprocess.run(command, capture_output=True, text=True, check=False, **more)
    if run.returncode != 0:
        sys.exit("%s fails:\n%s" % (command[0], run.stderr))
    return run.stdout, run.stderr


def widths(kernels, wide, where):
    """What is wrong with {name: text}; wide: the patterns of a load and a store of 16 bytes."""
    for name, text in sorted(kernels.items()):
        if not name.startswith(ONE_BY_ONE) and not wide["ld"].search(text):
            yield "%s has no load of 16 bytes in %s" % (name, where)
        if not name.startswith(ONCE_PER_THREAD) and not wide["st"].search(text):
            yield "%s has no store of 16 bytes in %s" % (name, where)


def not_found(words, said, bad):
    """Of the faults of a source with bad kernels, a complaint for each that a check does not name."""
    return ["a bad kernel is not found (%s); of %s the check says:\n%s" % (text, bad, said) for text in words if text not in said]
