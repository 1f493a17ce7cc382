"""What every kernel of the library must be like, whether its PTX is looked at or the machine's code."""
import re
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


def needed(name):
    """Bytes that a kernel's loads and stores have: a conversion moves as many elements as are 16 bytes of the wider type."""
    types = re.match(r"(?:few_|most_)?[a-z]+(\d\d)_from_[a-z]+(\d\d)$", name)
    store, load = (int(bits) for bits in types.groups()) if types else (1, 1)
    return 16 * load // max(load, store), 16 * store // max(load, store)


def widths(kernels, moved, where):
    """What is wrong with {name: text}; moved: the bytes of each load ("ld") or store ("st") of device memory in a text."""
    for name, text in sorted(kernels.items()):
        load, store = needed(name)
        if not name.startswith(ONE_BY_ONE) and load not in moved(text, "ld"):
            yield "%s has no load of %d bytes in %s" % (name, load, where)
        if not name.startswith(ONCE_PER_THREAD) and store not in moved(text, "st"):
            yield "%s has no store of %d bytes in %s" % (name, store, where)


def not_found(words, said, bad):
    """Of the faults of a source with bad kernels, a complaint for each that a check does not name."""
    return ["a bad kernel is not found (%s); of %s the check says:\n%s" % (text, bad, said) for text in words if text not in said]
