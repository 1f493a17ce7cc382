"""Writes dtr.f90 from dtr.f90.in, whose lines with "@" stand for declarations that are all alike.

Usage: make_module.py IN OUT MAJOR.MINOR.PATCH

    @ reduce(group, in, out?, op?, root, ++)      the interface of dtr_reduce: a subroutine of C. "?" is optional; "++" stands
                                                  for work, label, timeout, stat and errmsg, "+" for the last four, "." for
                                                  the last two, all of them optional
    @ integer world_rank(world)                   of a function
    @ pointers alloc(world, ptr, extents, kind?)  a generic one, for pointers of each type
"""
import re
import sys

ENDINGS = {"++": "work?, label?, timeout?, stat?, errmsg?", "+": "label?, timeout?, stat?, errmsg?", ".": "stat?, errmsg?"}
INTEGER, REAL, TEXT = "integer(c_int)", "real(c_double)", "character(kind=c_char, len=*)"
ARRAY, READ, CHANGED = "type(*), asynchronous :: %s(..)", "type(*), intent(in) :: %s(..)", "type(*), intent(inout) :: %s(..)"
ARGUMENTS = {
    **dict.fromkeys("in out buf".split(), ARRAY),
    **dict.fromkeys("a b counts in_counts out_counts extents shared ranks keep_mpi deterministic reproducible".split(), READ),
    **dict.fromkeys("values index done".split(), CHANGED),
    **dict.fromkeys("op root peer to from tag comm color key kind group_rank world_rank local_rank".split(), INTEGER + ", intent(in) :: %s"),
    **dict.fromkeys("source first made".split(), INTEGER + ", intent(inout) :: %s"),
    **dict.fromkeys("timeout".split(), REAL + ", intent(in) :: %s"),
    **dict.fromkeys("result duration".split(), REAL + ", intent(inout) :: %s"),
    **dict.fromkeys("label backend name reason".split(), TEXT + ", intent(in) :: %s"),
    "stat": INTEGER + ", intent(out) :: %s",
    "errmsg": TEXT + ", intent(inout) :: %s",
    "world": "type(dtr_world), intent(in) :: %s",
    "new_world": "type(dtr_world), intent(inout) :: %s",
    "parent": "type(dtr_group), intent(in) :: %s",
    "group": "type(dtr_group), intent(in) :: %s",
    "new_group": "type(dtr_group), intent(inout) :: %s",
    "work": "type(dtr_work), intent(inout) :: %s",
    "works": "type(dtr_work), intent(inout) :: %s(:)",
}
POINTERS = [("i8", "integer(c_int8_t)"), ("i16", "integer(c_int16_t)"), ("i32", "integer(c_int32_t)"), ("i64", "integer(c_int64_t)"),
            ("r32", "real(c_float)"), ("r64", "real(c_double)"), ("c32", "complex(c_float_complex)"), ("c64", "complex(c_double_complex)")]


def split(arguments):
    """[(name, key, optional)]; "new_world" is a world that is made or ended, and called `world`."""
    for short, ending in ENDINGS.items():
        arguments = re.sub(r"(?<=[ ,(])%s$" % re.escape(short), ending, arguments)
    found = []
    for argument in re.findall(r"\w+\??", arguments):
        key = argument.rstrip("?")
        found.append((key.removeprefix("new_"), key, argument.endswith("?")))
    return found


def declare(arguments, extra=None):
    lines = []
    for name, key, optional in arguments:
        line = {**ARGUMENTS, **(extra or {})}[key] % name
        lines.append(line.replace(" ::", ", optional ::", 1) if optional else line)
    return lines


def wrapped(line):
    """A statement of at most 100 columns a line."""
    lines = []
    indent = re.match(r" *", line).group(0)
    while len(line) > 98:
        at = line.rindex(" ", 0, 97)
        lines.append(line[:at] + " &")
        line = indent + "    " + line[at + 1:]
    return [*lines, line]


def interface(head, name, public, arguments, extra=None):
    kind = "function" if "function" in head else "subroutine"
    yield from wrapped('    %s %s(%s) bind(c, name="dtr_f_%s")' % (head, public, ", ".join(name for name, _, _ in arguments), name))
    yield "      import"
    yield from ("      " + line for line in declare(arguments, extra))
    yield "    end " + kind


def expand(line):
    match = re.fullmatch(r"( *)@ (?:(integer|pointers) )?(\w+)\((.*)\)", line)
    if match:
        how, name, arguments = match.group(2), match.group(3), split(match.group(4))
        if how == "pointers":
            yield "    interface dtr_%s" % name
            for short, fortran in POINTERS:
                extra = {"ptr": fortran + ", pointer, intent(inout) :: %s(..)"}
                yield from ("  " + l for l in interface("subroutine", name, "dtr_f_%s_%s" % (name, short), arguments, extra))
            yield "    end interface"
        else:
            head = "integer(c_int) function" if how == "integer" else "subroutine"
            yield from interface(head, name, "dtr_" + name, arguments)
        return
    yield line


def main(source, target, version):
    with open(source, encoding="utf-8") as file:
        text = file.read()
    for part, number in zip(("MAJOR", "MINOR", "PATCH"), version.split(".")):
        text = text.replace("@%s@" % part, number)
    lines = [expanded for line in text.splitlines() for expanded in expand(line)]
    with open(target, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")


main(*sys.argv[1:])
