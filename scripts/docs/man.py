"""Manual pages: of every function and options struct from Doxygen's XML, of every tool from what it prints for --help.

Usage: man.py 3 XML_FOLDER OUT_FOLDER VERSION
       man.py 1 OUT_FOLDER VERSION TOOL...
"""
import os
import re
import subprocess
import sys

import reference


def escape(text):
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")
    return re.sub(r"^\.", "\\\\&.", text, flags=re.M).replace("\u2026", "...")


def inline(spans):
    """Spans in one line of roff; code is bold."""
    text = "".join("\\fB%s\\fP" % escape(t) if style == "code" or target else escape(t) for style, t, target in spans).strip()
    return "\\&" + text if text.startswith((".", "'")) else text


def blocks(items, first=True):
    """Lines of roff; `first` says that a heading stands right before them."""
    lines = []
    for block in items:
        if block[0] == "p":
            lines += ([] if first else [".PP"]) + [inline(block[1])]
        elif block[0] == "list":
            for item in block[1]:
                lines += [".IP \\(bu 2", *blocks(item)]
        elif block[0] == "code":
            lines += ["." + ("PP" if not first else "br"), ".EX", escape(block[1].strip("\n")), ".EE"]
        elif block[0] == "table":
            widths = [max(len(reference.plain(row[i])) for row in block[1] if i < len(row)) for i in range(len(block[1][0]))]
            rows = ["  ".join(reference.plain(cell).strip().ljust(width) for cell, width in zip(row, widths)).rstrip() for row in block[1]]
            lines += [*([] if first else [".PP"]), ".EX", *map(escape, rows), ".EE"]
        else:
            lines += [".SS " + escape(block[1]), *blocks(block[2])]
        first = False
    return lines


def page(name, section, version, brief, lines):
    return "\n".join(['.TH "%s" %s "" "dtr %s" "dtr"' % (escape(name.upper()), section, version), ".SH NAME",
                      "%s \\- %s" % (escape(name), escape(brief)), *lines]) + "\n"


def see_also(name, header):
    """Neighbours: the functions around this one in its header."""
    names = [entry.name for entry in header.of("function")]
    at = names.index(name) if name in names else 0
    near = [n for n in names[max(0, at - 3):at + 4] if n != name]
    return [".SH SEE ALSO", ",\n".join([".BR %s (3)" % escape(n) for n in near] + [".BR dtr\\-info (1)"]).replace(",\n.BR", " ,\n.BR")]


def function_page(entry, header, version):
    lines = [".SH SYNOPSIS", ".EX", "#include <dtr/%s>" % header.name, "", escape(entry.text), ".EE", ".SH DESCRIPTION", *blocks(entry.body())]
    contract = dict(entry.contract())
    lines.append(".SH CALLING")
    for title in ("Collective", "Blocking", "GPU"):
        if title in contract:
            lines += [".TP", "." + "B " + title, *blocks(contract[title])]
    if lines[-1] == ".SH CALLING":
        lines.pop()
    if "Errors" in contract:
        lines += [".SH ERRORS", *blocks(contract["Errors"])]
    for block in header.docs:
        if block[0] == "part" and block[1].startswith("Errors of every"):
            lines += [".SS " + escape(block[1]), *blocks(block[2])]
    if "Since" in contract:
        lines += [".SH HISTORY", "Since version " + inline(contract["Since"][0][1]) + "."]
    return page(entry.name, 3, version, entry.brief(), lines + see_also(entry.name, header))


def struct_page(entry, header, version):
    lines = [".SH SYNOPSIS", ".EX", "#include <dtr/%s>" % header.name, "", "typedef struct %s %s;" % (entry.name, entry.name), ".EE", ".SH DESCRIPTION"]
    body = blocks(entry.docs)
    lines += body or ["Its fields:"]
    for field in entry.fields:
        lines += [".TP", ".B " + escape(field.text), *(blocks(field.docs) or ["\\&"])]
    return page(entry.name, 3, version, "fields of the struct" if not entry.docs else entry.brief(), lines + see_also(entry.name, header))


def write(folder, name, text):
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
        file.write(text)


def section_3(xml, out, version):
    for header in reference.load(xml):
        for entry in header.of("function"):
            write(out, entry.name + ".3", function_page(entry, header, version))
        for entry in header.of("struct"):
            if entry.fields:
                write(out, entry.name + ".3", struct_page(entry, header, version))


def help_of(tool):
    return subprocess.run([tool, "--help"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True, timeout=120).stdout


def section_1(out, version, tools):
    """The help text as it is: a first line "NAME - what" where it has one, and the lines that show how it is called."""
    briefs = {"dtr-doctor": "reads recordings of a job and says what is wrong", "dtr-info": "shows version, build, machine and settings"}
    names = [os.path.basename(tool) for tool in tools]
    for tool, name in zip(tools, names):
        text = help_of(tool).strip("\n").split("\n")
        brief = briefs.get(name, "a tool of dtr")
        first = re.match(r"%s - (.*)" % re.escape(name), text[0])
        if first:
            brief = first.group(1)
            text = text[1:]
        end = next((i for i, line in enumerate(text) if not line.strip()), len(text))
        synopsis = [re.sub(r"^usage: ", "       ", line)[2:] if line.startswith("  ") else re.sub(r"^usage: ", "", line).strip() for line in text[:end]]
        synopsis = [line.strip() for line in synopsis]
        lines = [".SH SYNOPSIS", ".EX", *map(escape, synopsis), ".EE", ".SH DESCRIPTION", ".EX",
                 *(escape(line) for line in text[end + 1:]), ".EE", ".SH ENVIRONMENT",
                 "Settings are variables named \\fBDTR_*\\fP;", ".B dtr\\-info \\-\\-options", "lists all of them."]
        others = [n for n in names if n != name]
        lines += [".SH SEE ALSO", "\n".join(".BR %s (1)%s" % (escape(n), " ," if n != others[-1] else "") for n in others)] if others else []
        write(out, name + ".1", page(name, 1, version, brief, lines))


if __name__ == "__main__":
    if sys.argv[1] == "3":
        section_3(*sys.argv[2:5])
    else:
        section_1(sys.argv[2], sys.argv[3], sys.argv[4:])
