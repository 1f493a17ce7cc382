"""Which instructions of a kernel's PTX may read a register that nothing has written, on some path from its beginning."""
import re

REGISTER = re.compile(r"%(?:p|rs|r|rd|f|fd)\d+|\b\w+_[bsuf]\d+\b")  # the others are special, or of a scope (ptx_to_c.py)
NO_RESULT = ("st", "bra", "ret", "exit", "bar", "barrier", "red")


def parse(lines):
    """[(guard, instruction, label that it jumps to, registers written, registers read)], and where labels are."""
    found, labels = [], {}
    for _, line in lines:
        label = re.fullmatch(r"(\$?[\w$]+):", line)
        if label:
            labels[label.group(1)] = len(found)
        if label or line.startswith(".") or line in "{}":
            found.append((None, "", None, [], []))  # as many as there are lines
            continue
        guard, op, rest = re.fullmatch(r"(?:@!?(%\w+)\s+)?([\w.:]+)\s*(.*)", line).groups()
        base = op.split(".")[0]
        result = "" if base in NO_RESULT else re.match(r"\{[^}]*\}|[^,]*", rest).group(0)
        target = rest.rstrip("; \t") if base == "bra" else None
        found.append((guard, base, target, REGISTER.findall(result),
                      REGISTER.findall(rest[len(result):]) + ([guard] if guard else [])))
    return found, labels


def unwritten(lines):
    """Of each line the registers that it may read before they are written. A write under a guard counts as one."""
    code, labels = parse(lines)
    number = {}
    for _, _, _, writes, reads in code:
        for name in writes + reads:
            number.setdefault(name, len(number))
    everything = (1 << len(number)) - 1
    before = [everything] * len(code)  # registers that all paths have written, as bits
    before[:1] = [0]
    todo = [0]
    while todo:
        at = todo.pop()
        guard, base, target, writes, _ = code[at]
        after = before[at]
        for name in writes:
            after |= 1 << number[name]
        falls = guard is not None or base not in ("bra", "ret", "exit")
        for to in ([labels[target]] if target in labels else []) + ([at + 1] if falls and at + 1 < len(code) else []):
            if before[to] & after != before[to]:
                before[to] &= after
                todo.append(to)
    return [[name for name in reads if not before[at] >> number[name] & 1] for at, (_, _, _, _, reads) in enumerate(code)]
