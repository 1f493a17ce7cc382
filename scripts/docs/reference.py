"""The public interface as Doxygen's XML has it: headers, functions, structs, enums and macros with their comments.

load(FOLDER) gives the headers. A comment is a list of blocks: ("p", spans), ("list", [blocks, ...]), ("code", text),
("table", [[spans, ...], ...]), ("part", title, blocks). Spans are (style, text, target) with style text, code or bold, and the name
of a function, struct or macro as target where the comment speaks of one.
"""
import glob
import os
import re
import xml.etree.ElementTree as ElementTree

CONTRACT = ("Collective", "Blocking", "GPU", "Errors", "Since")  # the tags of every function, in this order


class Entry:
    """A function, macro, type or field."""

    def __init__(self, kind, name, text="", docs=(), fields=()):
        self.kind, self.name, self.text, self.docs, self.fields = kind, name, text, list(docs), list(fields)

    def brief(self):
        """The first sentence, as plain text."""
        text = plain(self.docs[0][1]) if self.docs and self.docs[0][0] == "p" else ""
        text = re.split(r"(?<=[^.]\.) (?=[A-Z])|: ", text, maxsplit=1)[0]
        return text.strip().rstrip(".:;") or self.name

    def body(self):
        return [block for block in self.docs if block[0] != "part" or block[1] not in CONTRACT]

    def contract(self):
        """The tags that this entry has: (title, blocks)."""
        found = {block[1]: block[2] for block in self.docs if block[0] == "part"}
        return [(title, found[title]) for title in CONTRACT if title in found]


class Header:
    def __init__(self, name, docs, entries):
        self.name, self.docs, self.entries = name, docs, entries

    def of(self, *kinds):
        return [entry for entry in self.entries if entry.kind in kinds]


def plain(spans):
    return "".join(text for _, text, _ in spans)


def spans_of(element, style="text"):
    found = []

    def add(text, target=None):
        text = re.sub(r"\s+", " ", text or "")
        if text:
            found.append((style, text, target))

    add(element.text)
    for child in element:
        if child.tag == "ref":
            add("".join(child.itertext()), "".join(child.itertext()).rstrip("()"))
        elif child.tag in ("computeroutput", "bold", "emphasis"):
            found.extend(spans_of(child, "bold" if child.tag == "bold" else "code"))
        elif child.tag not in BLOCKS:
            found.extend(spans_of(child, style))
        add(child.tail)
    return found


BLOCKS = {"simplesect", "itemizedlist", "orderedlist", "table", "programlisting", "verbatim", "parameterlist"}


def blocks_of(element):
    """The blocks of a description; text between two blocks is a paragraph."""
    if element is None:
        return []
    found = []
    for para in element.findall("para"):
        rest = ElementTree.Element("para")
        rest.text = para.text

        def flush():
            nonlocal rest
            spans = spans_of(rest)
            if plain(spans).strip():
                found.append(("p", spans))
            rest = ElementTree.Element("para")

        for child in para:
            if child.tag not in BLOCKS:
                rest.append(child)
                continue
            flush()
            if child.tag == "simplesect":
                title = child.findtext("title") or child.get("kind").capitalize()
                found.append(("part", title, blocks_of(child)))
            elif child.tag in ("itemizedlist", "orderedlist"):
                found.append(("list", [blocks_of(item) for item in child.findall("listitem")]))
            elif child.tag == "table":
                found.append(("table", [[[span for p in cell.findall("para") for span in spans_of(p)] for cell in row.findall("entry")]
                                        for row in child.findall("row")]))
            else:
                found.append(("code", "".join(child.itertext())))
            rest.text = child.tail
        flush()
    return found


def comment(member):
    return blocks_of(member.find("briefdescription")) + blocks_of(member.find("detaileddescription"))


def flat(element):
    return " ".join("".join(element.itertext()).split()) if element is not None else ""


def declaration(member):
    """One line of C, wrapped where it is long."""
    result = flat(member.find("type"))
    start = "%s%s%s(" % (result, "" if result.endswith("*") else " ", member.findtext("name"))
    params = []
    for param in member.findall("param"):
        kind, name = flat(param.find("type")), param.findtext("declname") or ""
        array = param.findtext("array") or ""
        if "(*" in kind:
            params.append(kind if name in kind else kind.replace("(*", "(*" + name, 1))
        else:
            params.append(kind + ("" if kind.endswith("*") or not name else " ") + name + array)
    line, lines = start, []
    for i, param in enumerate(params or ["void"]):
        piece = param + (", " if i + 1 < len(params) else ");")
        if len(line) + len(piece.rstrip()) > 78 and line.strip() and line != start:
            lines.append(line.rstrip())
            line = " " * min(len(start), 24)
        line += piece
    return "\n".join([*lines, line])


def entry_of(member, structs):
    kind, name = member.get("kind"), member.findtext("name")
    if kind == "function":
        return Entry(kind, name, declaration(member), comment(member))
    if kind == "enum":
        values = [Entry("value", v.findtext("name"), v.findtext("name"), comment(v)) for v in member.findall("enumvalue")]
        return Entry(kind, name, "enum " + name, comment(member), values)
    if kind == "define":
        params = [p.findtext("defname") or "" for p in member.findall("param")]
        return Entry(kind, name, name + ("(%s)" % ", ".join(params) if params else ""), comment(member))
    if kind == "typedef" and name in structs:
        fields = [Entry("field", v.findtext("name"), flat(v.find("definition")).replace(name + "::", "") + (v.findtext("argsstring") or ""),
                        comment(v)) for v in structs[name].iter("memberdef")]
        return Entry("struct", name, "struct " + name, comment(structs[name]) or comment(member), fields)
    return Entry(kind, name, flat(member.find("definition")) + (member.findtext("argsstring") or "" if kind == "variable" else ""), comment(member))


def load(folder):
    """The headers in the order of their names; internal marks and names of old versions' macros are left out."""
    structs = {}
    for path in glob.glob(os.path.join(folder, "struct*.xml")):
        compound = ElementTree.parse(path).getroot().find("compounddef")
        structs[compound.findtext("compoundname")] = compound
    headers = []
    for path in sorted(glob.glob(os.path.join(folder, "*_8h.xml"))):
        compound = ElementTree.parse(path).getroot().find("compounddef")
        entries, seen = [], set()
        for member in compound.iter("memberdef"):
            entry = entry_of(member, structs)
            if (entry.kind, entry.name) not in seen and (entry.docs or entry.fields) and entry.name.lower().startswith("dtr_"):
                seen.add((entry.kind, entry.name))
                entries.append(entry)
        for name, struct in structs.items():  # declared as "struct x { };", or forward-declared elsewhere
            if struct.findtext("includes") == compound.findtext("compoundname") and ("struct", name) not in seen:
                fields = [Entry("field", v.findtext("name"), flat(v.find("definition")).replace(name + "::", "") + (v.findtext("argsstring") or ""),
                                comment(v)) for v in struct.iter("memberdef")]
                entries.append(Entry("struct", name, "struct " + name, comment(struct), fields))
        headers.append(Header(compound.findtext("compoundname"), comment(compound), entries))
    return headers
