"""Translate the PTX of kernels to C, one statement an instruction, for a library that the stand-in for CUDA runs in their place.
What is not known here ends the process when it is run, so that another compiler breaks tests and not the build.

Usage: ptx_to_c.py KERNELS.ptx KERNELS.c
"""
import re
import sys

from ptx_registers import unwritten

BITS = {"8": 8, "16": 16, "32": 32, "64": 64}
COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "lo": "<", "ls": "<=", "hi": ">", "hs": ">="}
UNORDERED = {"neu": "==", "ltu": ">=", "leu": ">", "gtu": "<=", "geu": "<"}
ROUNDING = {"rz": "FE_TOWARDZERO", "rm": "FE_DOWNWARD", "rp": "FE_UPWARD"}
WHOLE = {"rni": "rint", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}
SPECIAL = {"%tid.x": "t->number", "%ctaid.x": "t->block", "%ntid.x": "t->launch->threads", "%nctaid.x": "t->launch->blocks"}
ARITHMETIC = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
BITWISE = {"and": "&", "or": "|", "xor": "^"}


class Unknown(Exception):
    pass


def width(kind):
    return int(kind[1:])


def c_type(kind):
    if kind in ("f32", "f64"):
        return "float" if kind == "f32" else "double"
    if kind[0] not in "bsu" or kind[1:] not in BITS:
        raise Unknown
    return "%sint%s_t" % ("" if kind[0] == "s" else "u", kind[1:])


def arguments(text):
    """Operands, of which vectors are lists."""
    found = re.findall(r"\{[^}]*\}|\[[^]]*\]|[^,\s]+", text)
    return [re.findall(r"[^,\s{}]+", one) if one.startswith("{") else one for one in found]


class Kernel:
    def __init__(self, name, parameter, nbytes, n_threads, lines):
        self.name, self.parameter, self.nbytes, self.n_threads, self.lines = name, parameter, nbytes, n_threads, lines
        self.registers, self.symbols, self.shared, self.local, self.stops = {}, {parameter: 0}, 0, 0, 0
        self.waits = any(re.search(r"\b(shfl|bar)\.", line) for _, line in lines)

    # ---- operands ----

    def register(self, name):
        if name not in self.registers:
            raise Unknown
        return ("k->" if self.waits else "") + name.replace("%", "R_").replace("$", "_")

    def bits(self, x):
        if x in self.registers:
            return self.register(x)
        if x in SPECIAL:
            return SPECIAL[x]
        if x in self.symbols:
            return "%dull" % self.symbols[x]
        if re.fullmatch(r"0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}", x):
            return "0x%sull" % x[2:]
        if re.fullmatch(r"-?(0[xX][0-9a-fA-F]+|\d+)U?", x):
            return "((uint64_t)%sll)" % x.rstrip("U") if x.startswith("-") else "%sull" % x.rstrip("U")
        raise Unknown

    def value(self, x, kind):
        if kind == "pred":
            return str(int(x != "0")) if re.fullmatch(r"-?\d+", x) else self.register(x)
        if kind in ("f32", "f64"):
            return "ptx_%s(%s)" % (kind, self.bits(x))
        return "((%s)%s)" % (c_type(kind), self.bits(x))

    def assign(self, to, kind, value):
        if to == "_":
            return "(void)(%s);" % value
        if kind == "pred":
            return "%s = %s;" % (self.register(to), value)
        if kind in ("f32", "f64"):
            value = "ptx_of_%s(%s)" % (kind, value)
        return "%s = (uint%d_t)(%s);" % (self.register(to), self.registers[to], value)

    def address(self, x):
        found = re.fullmatch(r"\[([^+\]]+?)(?:\+(-?\d+))?\]", x)
        if not found:
            raise Unknown
        return "(uint64_t)%s + (uint64_t)(%sll)" % (self.bits(found.group(1)), found.group(2) or 0)

    # ---- instructions ----

    def memory(self, op, args, what, store):
        """A load or store of one element, or of a vector's."""
        kind, spaces = op[-1], [part for part in op[1:-1] if part not in ("v2", "v4", "volatile")]
        space = spaces[0] if spaces else "global"
        if len(spaces) > 1 or space not in ("global", "shared", "param", "local"):
            raise Unknown
        where, what_data = (args[0], args[1]) if store else (args[1], args[0])
        cells = what_data if isinstance(what_data, list) else [what_data]
        size, own = "%d" % (len(cells) * width(kind) // 8), "k->" if self.waits else ""
        use = "PTX_WRITE" if store else "PTX_READ"
        if space == "param":
            place = "ptx_within(t, t->launch->argument, %d, %s, %s, %s)" % (self.nbytes, self.address(where), size, what)
        elif space == "local":
            place = "ptx_local(t, %slocal, %sknown, %d, %s, %s, %s, %s)" % (own, own, self.local, self.address(where), size, use, what)
        else:
            if store and "volatile" in op:
                raise Unknown
            use = "PTX_ATOMIC" if "volatile" in op else use
            place = "ptx_%s(t, %s, %s, %s, %s)" % (space, self.address(where), size, use, what)
        n, lines = width(kind), ["void *at = %s;" % place]
        for i, cell in enumerate(cells):
            if store:
                lines.append("ptx_store%d(at, %d, (uint%d_t)%s);" % (n, i, n, self.bits(cell)))
            else:
                signed = "(int%d_t)" % n if kind[0] == "s" else ""
                lines.append("%s = (uint%d_t)%sptx_load%d(at, %d);" % (self.register(cell), self.registers[cell], signed, n, i))
        return "{ %s }" % " ".join(lines)

    def compute(self, to, kind, mode, expression, operands):
        """A float that is rounded as `mode` says: rn is how everything here is compiled."""
        if mode in ("rn", ""):
            return self.assign(to, kind, expression % tuple(operands))
        if mode not in ROUNDING:
            raise Unknown
        names = ["v%d" % i for i in range(len(operands))]
        held = " ".join("volatile __typeof__(%s) %s = %s;" % (x, name, x) for name, x in zip(names, operands))
        return "{ %s fesetround(%s); volatile %s v = (%s)(%s); fesetround(FE_TONEAREST); %s }" % (
            held, ROUNDING[mode], c_type(kind), c_type(kind), expression % tuple(names), self.assign(to, kind, "v"))

    def convert(self, op, args):
        to, source, mode = op[-2], op[-1], ".".join(op[1:-2])
        x = self.value(args[1], source)
        if to[0] != "f" and source[0] != "f":
            if mode:
                raise Unknown
            return self.assign(args[0], to, "(%s)%s" % (c_type(to), x))
        if mode in WHOLE:
            whole = "%s%s(%s)" % (WHOLE[mode], "f" if source == "f32" else "", x)
            if to[0] == "f":
                if to != source:
                    raise Unknown
                return self.assign(args[0], to, whole)
            return self.assign(args[0], to, "ptx_whole_%s(%s)" % (to, whole))
        if to[0] != "f" or mode not in ("", "rn", "rz", "rm", "rp"):
            raise Unknown
        return self.compute(args[0], to, mode, "(%s)%%s" % c_type(to), [x])

    def arithmetic(self, op, args):
        base, kind, mods = op[0], op[-1], op[1:-1]
        values = [self.value(x, kind) for x in args[1:]]
        sign = ARITHMETIC[base]
        if kind in ("f32", "f64"):
            if len(mods) > 1:
                raise Unknown
            return self.compute(args[0], kind, "".join(mods), "%s " + sign + " %s", values)
        if base == "mul" and mods == ["wide"]:
            wide = "%s%d" % (kind[0], 2 * width(kind))
            return self.assign(args[0], wide, "(%s)%s * %s" % (c_type(wide), values[0], values[1]))
        if mods != (["lo"] if base == "mul" else []):
            raise Unknown
        if base == "div":
            text = "ptx_div_%s(%s, %s)" % (kind, values[0], values[1]) if kind[0] == "s" else "%s / %s" % tuple(values)
            return self.assign(args[0], kind, text)
        return self.assign(args[0], kind, "(%s)((uint64_t)%s %s (uint64_t)%s)" % (c_type(kind), values[0], sign, values[1]))

    def compare(self, op, args):
        if len(op) != 3:
            raise Unknown
        how, kind = op[1:]
        a, b = self.value(args[1], kind), self.value(args[2], kind)
        if how in UNORDERED:
            text = "!(%s %s %s)" % (a, UNORDERED[how], b)
        elif how in ("nan", "num"):
            text = "%s(%s == %s && %s == %s)" % ("!" if how == "nan" else "", a, a, b, b)
        elif how == "ne" and kind[0] == "f":
            text = "(%s < %s || %s > %s)" % (a, b, a, b)
        elif how in COMPARE:
            text = "%s %s %s" % (a, COMPARE[how], b)
        else:
            raise Unknown
        return self.assign(args[0], "pred", text)

    def stop(self, state, before, after):
        self.stops += 1
        return "%s t->at = %d; return %s; AT_%d:; %s" % (before, self.stops, state, self.stops, after)

    def shuffle(self, op, args, what):
        if op[1:] != ["sync", "bfly", "b32"]:
            raise Unknown
        to, _, in_range = args[0].partition("|")
        operands = " ".join("t->%s = %s;" % (name, self.value(x, "b32"))
                            for name, x in zip(("value", "b", "c", "members"), args[1:]))
        after = "%s = t->value; %s" % (self.register(to), "%s = t->in_range;" % self.register(in_range) if in_range else "")
        return self.stop("PTX_SHUFFLE", "t->what = %s; %s" % (what, operands), after)

    def move(self, kind, args):
        if isinstance(args[0], list):
            part = self.registers[args[0][1]]
            return " ".join(self.assign(x, "b%d" % part, "%s >> %d" % (self.value(args[1], "b" + kind[1:]), i * part))
                            for i, x in enumerate(args[0]) if x != "_")
        if isinstance(args[1], list):
            part = width(kind) // len(args[1])
            return self.assign(args[0], "b" + kind[1:], " | ".join("(uint64_t)%s << %d" % (self.value(x, "b%d" % part), i * part)
                                                                  for i, x in enumerate(args[1])))
        if kind == "pred":
            return self.assign(args[0], kind, self.value(args[1], kind))
        return self.assign(args[0], "b" + kind[1:], self.value(args[1], "b" + kind[1:]))

    def simple(self, op, args):
        """What is one expression of C."""
        base, kind = op[0], op[-1]
        if base in BITWISE and kind == "pred":
            return self.assign(args[0], kind, "%s %s %s" % (self.value(args[1], kind), BITWISE[base], self.value(args[2], kind)))
        if base == "not" and kind == "pred":
            return self.assign(args[0], kind, "!" + self.value(args[1], kind))
        values = [self.value(x, kind) for x in args[1:] if not isinstance(x, list) and self.registers.get(x) != 1]
        if base in BITWISE:
            return self.assign(args[0], kind, "%s %s %s" % (values[0], BITWISE[base], values[1]))
        if base == "not":
            return self.assign(args[0], kind, "~" + values[0])
        if base == "selp":
            bits = "b" + kind[1:]
            return self.assign(args[0], bits, "%s ? %s : %s" % (self.register(args[3]), self.value(args[1], bits),
                                                                self.value(args[2], bits)))
        if base in ("min", "max"):
            if kind[0] == "f":
                return self.assign(args[0], kind, "ptx_%s_%s(%s, %s)" % (base, kind, values[0], values[1]))
            return self.assign(args[0], kind, "%s %s %s ? %s : %s" % (values[0], "<" if base == "min" else ">", values[1],
                                                                      values[0], values[1]))
        if base in ("shl", "shr"):
            shift = "shl%d" % width(kind) if base == "shl" else "shr_%s%d" % (kind[0].replace("b", "u"), width(kind))
            return self.assign(args[0], kind, "ptx_%s(%s, %s)" % (shift, values[0], self.value(args[2], "u32")))
        if base in ("neg", "abs") and kind[0] == "f":
            sign = "0x8%sull" % ("0" * (width(kind) // 4 - 1))
            value = self.value(args[1], "b" + kind[1:])
            return self.assign(args[0], "b" + kind[1:], "%s ^ %s" % (value, sign) if base == "neg" else "%s & ~%s" % (value, sign))
        if base == "neg":
            return self.assign(args[0], kind, "(%s)(0 - (uint64_t)%s)" % (c_type(kind), values[0]))
        if base == "mad" and op[1] == "lo":
            return self.assign(args[0], kind, "(%s)((uint64_t)%s * (uint64_t)%s + (uint64_t)%s)" % ((c_type(kind),) + tuple(values)))
        if base == "sqrt" and op[1] in ("rn", "rz", "rm", "rp"):
            return self.compute(args[0], kind, op[1], "sqrt%s(%%s)" % ("f" if kind == "f32" else ""), values)
        if base == "fma" and op[1] in ("rn", "rz", "rm", "rp"):
            return self.compute(args[0], kind, op[1], "fma%s(%%s, %%s, %%s)" % ("f" if kind == "f32" else ""), values)
        if base in ("bfi", "bfe"):
            fields = [self.value(x, "u32") for x in args[-2:]]
            name = "bfi%d" % width(kind) if base == "bfi" and kind[0] == "b" else "bfe_" + kind
            return self.assign(args[0], kind, "ptx_%s(%s)" % (name, ", ".join(values[:-2] + fields)))
        if base == "prmt" and kind == "b32" and len(op) == 2:
            return self.assign(args[0], kind, "ptx_prmt(%s, %s, %s)" % tuple(values))
        raise Unknown

    def instruction(self, op, args, what):
        base = op[0]
        if base in ("ld", "st"):
            return self.memory(op, args, what, base == "st")
        if base == "bra":
            return "goto %s;" % args[0].replace("$", "_")
        if base in ("ret", "exit"):
            return "return PTX_DONE;"
        if base == "setp":
            return self.compare(op, args)
        if base == "cvt":
            return self.convert(op, args)
        if base == "cvta" and op[1:] in (["to", "global", "u64"], ["global", "u64"]):
            return self.assign(args[0], "u64", self.value(args[1], "u64"))
        if base == "mov":
            return self.move(op[-1], args)
        if base in ARITHMETIC:
            return self.arithmetic(op, args)
        if base == "shfl":
            return self.shuffle(op, args, what)
        if base in ("bar", "barrier") and op[1:] == ["sync"] and len(args) == 1:
            return self.stop("PTX_BARRIER", "t->what = %s; t->id = (uint32_t)%s;" % (what, self.bits(args[0])), "")
        if base == "atom" and op[1:] in (["global", "min", "u64"], ["global", "add", "u64"]):
            new = "was + by" if op[2] == "add" else "by < was ? by : was"
            return "{ void *at = ptx_global(t, %s, 8, PTX_ATOMIC, %s); const uint64_t was = ptx_load64(at, 0), by = %s; %s %s }" % (
                self.address(args[1]), what, self.value(args[2], "u64"), "ptx_store64(at, 0, %s);" % new,
                self.assign(args[0], "u64", "was"))
        return self.simple(op, args)

    def declare(self, text):
        space, _, kind, names = re.fullmatch(r"\.(reg|shared|local)\s+(\.align \d+\s+)?\.(\w+)\s+(.*)", text).groups()
        if space == "reg":
            bits = 1 if kind == "pred" else width(kind)
            for name in names.split(","):
                name, _, count = name.strip().rstrip(">").partition("<")
                every = ["%s%d" % (name, i) for i in range(1, int(count))] if count else [name]
                self.registers.update((one, bits) for one in every)
            return
        name, size = re.fullmatch(r"([\w$]+)\[(\d+)\]", names).groups()
        held = getattr(self, space) + 15 & ~15
        self.symbols[name] = held
        setattr(self, space, held + int(size) * width(kind) // 8)

    def statement(self, number, line):
        label = re.fullmatch(r"(\$?[\w$]+):", line)
        if label:
            return label.group(1).replace("$", "_") + ":;"
        if line.startswith(".pragma") or line in "{}":
            return ""
        line = line.rstrip(";").rstrip()
        if line.startswith("."):
            self.declare(line)
            return ""
        guard, negated, op, rest = re.fullmatch(r"(?:@(!?)(%\w+)\s+)?([\w.:]+)\s*(.*)", line).group(2, 1, 3, 4)
        what = '"line %d: %s"' % (number, re.sub(r"\s+", " ", line))
        try:
            done = self.instruction(op.split(".") if op != "bra.uni" else ["bra"], arguments(rest), what)
            condition = "if (%s%s) " % (negated, self.register(guard)) if guard else ""
        except (Unknown, KeyError, IndexError, TypeError):
            done, condition = 't->launch->die(t, %s, "an instruction that ptx_to_c.py does not know");' % what, ""
        return condition + ("{ %s }" % done if condition else done)

    def text(self):
        body = []
        for (number, line), new in zip(self.lines, unwritten(self.lines)):
            if new:
                body.append('t->launch->die(t, "line %d", "reads %s, which not every path here has written");' % (number, new[0]))
            body.append(self.statement(number, line))
        names = ["uint%d_t %s" % (max(bits, 8), name.replace("%", "R_")) for name, bits in self.registers.items()]
        local = ["_Alignas(16) unsigned char local[%d]" % self.local, "unsigned char known[%d]" % self.local] if self.local else []
        held = "".join("    %s;\n" % name for name in names + local)
        out = []
        if self.waits:
            out += ["typedef struct registers_%s {\n%s} registers_%s;" % (self.name, held, self.name)]
        out += ["static ptx_state run_%s(ptx_thread *t) {" % self.name]
        if self.waits:
            out += ["    registers_%s *k = t->registers;" % self.name, "    switch (t->at) {"]
            out += ["    case %d: goto AT_%d;" % (i, i) for i in range(1, self.stops + 1)] + ["    }"]
        else:
            out += [held] + (["    memset(known, 0, sizeof known);"] if self.local else [])
        return "\n".join(out + ["    " + line for line in body if line] + ["    return PTX_DONE;", "}"])

    def row(self):
        return '    { "%s", %d, %d, %d, %s, run_%s },' % (self.name, self.nbytes, self.n_threads, self.shared,
                                                       "sizeof(registers_%s)" % self.name if self.waits else "0", self.name)


def scope(line):
    """A line with a register of its own, in braces, is a declaration and an instruction."""
    found = re.fullmatch(r"\{ \.reg \.(\w+) (\w+); (.*;) \}", line)
    if not found:
        return [line]
    kind, name, rest = found.groups()
    return [".reg .%s %s_%s;" % (kind, name, kind), re.sub(r"\b%s\b" % name, "%s_%s" % (name, kind), rest)]


def kernels(text):
    """Of each entry its kernel, with the numbers of its lines."""
    lines = [re.sub(r"//.*", "", line).strip() for line in text.split("\n")]
    starts = [i for i, line in enumerate(lines) if ".entry" in line]
    for start in starts:
        head_end = lines.index("{", start)
        head = " ".join(lines[start:head_end])
        name, parameter, nbytes = re.search(r"\.entry (\w+)\(\s*\.param \.align \d+ \.b8 (\w+)\[(\d+)\]", head).groups()
        n_threads = int(re.search(r"\.maxntid (\d+)", head).group(1))
        end = lines.index("}", head_end)
        body = [(i + 1, part) for i in range(head_end + 1, end) if lines[i] for part in scope(lines[i])]
        yield Kernel(name, parameter, int(nbytes), n_threads, body)


def main():
    with open(sys.argv[1], encoding="utf-8") as source:
        found = list(kernels(source.read()))
    with open(sys.argv[2], "w", encoding="utf-8") as out:
        out.write('/* Made by ptx_to_c.py. */\n#include "ptx.h"\n\n')
        out.write("\n\n".join(kernel.text() for kernel in found))
        out.write("\n\nconst ptx_kernel ptx_kernels[] = {\n%s\n    { 0 }\n};\n" % "\n".join(k.row() for k in found))


main()
