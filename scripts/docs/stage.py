"""The folder that Sphinx reads: links to all pages of the tree where they are in the tree, and the reference, which is written here.

Usage: stage.py XML_FOLDER OUT_FOLDER TOOL...
"""
import os
import re
import shutil
import sys

import reference
from man import help_of, write

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SKIPPED = re.compile(r"^(build.*|\..*|__pycache__)$")


def link_pages(out):
    """Pages and pictures, and whatever else a page links to."""
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [f for f in folders if not SKIPPED.match(f)]
        for name in names:
            if name.endswith((".md", ".svg", ".json")) or name == "LICENSE":
                path = os.path.join(folder, name)
                at = os.path.join(out, os.path.relpath(path, ROOT))
                os.makedirs(os.path.dirname(at), exist_ok=True)
                if name.endswith(".md"):
                    with open(path, encoding="utf-8") as file:
                        page = without_sources(file.read(), os.path.dirname(path))
                    if not os.path.relpath(path, ROOT).startswith(("docs/", "CHANGELOG", "CONTRIBUTING")):
                        page = "---\norphan: true\n---\n\n" + page  # reached by links, in no list of contents
                    with open(at, "w", encoding="utf-8") as file:
                        file.write(page)
                else:
                    os.symlink(path, at)


def without_sources(page, folder):
    """A link to a page stays; one to a source file or a folder, which the site does not have, becomes its text."""

    def keep(match):
        path = match.group(2).partition("#")[0]
        if not path or re.match(r"\w+:", path) or path.endswith((".md", ".svg", ".json", "LICENSE")):
            return match.group(0)
        return match.group(1) if os.path.exists(os.path.join(folder, path)) else match.group(0)

    return re.sub(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)", keep, page)


class Writer:
    """Markdown of entries; names of the interface become links to their headings."""

    def __init__(self, headers):
        self.at = {entry.name: header.name for header in headers for entry in header.entries}

    def inline(self, spans):
        text = ""
        for style, piece, target in spans:
            lead, body, tail = re.fullmatch(r"(\s*)(.*?)(\s*)", piece, flags=re.S).groups()
            if target in self.at:
                body = "[`%s`](%s)" % (body, self.link(target))
            elif style == "code":
                body = "`%s`" % body if body else ""
            else:
                body = re.sub(r"([\\`*<>|\[\]_#])", r"\\\1", body)
            text += lead + body + tail
        return text.strip()

    def link(self, name):
        return "%s.md#%s" % (self.at[name][:-2], name.lower())

    def blocks(self, blocks, indent=""):
        lines = []
        for block in blocks:
            if block[0] == "p":
                lines += [indent + self.inline(block[1]), ""]
            elif block[0] == "list":
                for item in block[1]:
                    body = self.blocks(item, indent + "  ")
                    lines += [indent + "- " + body[0].strip(), *body[1:]]
            elif block[0] == "code":
                lines += [indent + "```c", *(indent + line for line in block[1].strip("\n").split("\n")), indent + "```", ""]
            elif block[0] == "table":
                rows = [indent + "| " + " | ".join(self.inline(cell) for cell in row) + " |" for row in block[1]]
                lines += [rows[0], indent + "|" + "---|" * len(block[1][0]), *rows[1:], ""]
            else:
                lines += [indent + "**%s.** " % block[1], "", *self.blocks(block[2], indent)]
        return lines

    def entry(self, entry):
        lines = ["## %s" % entry.name, "", "```c", entry.text, "```", "", *self.blocks(entry.body())]
        if entry.fields:
            lines += ["| %s | |" % ("field" if entry.kind == "struct" else "value"), "|---|---|"]
            lines += ["| `%s` | %s |" % (f.text.replace("|", "\\|"), " ".join(self.blocks(f.docs)).strip()) for f in entry.fields] + [""]
        contract = entry.contract()
        if contract:
            lines += ["| | |", "|---|---|"]
            lines += ["| %s | %s |" % (title, " ".join(" ".join(self.blocks(docs)).split())) for title, docs in contract] + [""]
        return lines

    def header(self, header):
        lines = ["# dtr/%s" % header.name, "", *self.blocks(header.docs)]
        for entry in header.entries:
            lines += self.entry(entry)
        return "\n".join(lines) + "\n"


def settings():
    """The table of options as a page."""
    with open(os.path.join(ROOT, "runtime/base/options.def"), encoding="utf-8") as file:
        rows = re.findall(r'^X\(\w+, "(\w+)",\s*(\w+),\s*"([^"]*)",\s*"([^"]*)"', file.read(), flags=re.M)
    lines = ["# Settings", "", "Environment variables. Options in code take precedence over them; `dtr-info --options` prints the values that are in",
             "use, and who set them.", ""]
    for name, kind, default, text in rows:
        shown = "`%s`" % default if default else "empty"
        text = re.sub(r"([\\`*<>\[\]_])", r"\\\1", text)
        lines += ["## %s" % name, "", "%s. %s, by default %s." % (text[0].upper() + text[1:].rstrip("."), kind.lower(), shown), ""]
    return "\n".join(lines), len(rows)


def contents(headers, writer):
    lines = ["# Reference", "", "Every function says who has to call it, whether it blocks, what it does with device memory, and its errors. The same",
             "text is in the headers and in the manual pages (`man 3 dtr_allreduce`).", "", "```{toctree}", ":hidden:", "", "settings", "tools",
             *(header.name[:-2] for header in headers), "```", "", "- [Settings](settings.md), the environment variables `DTR_*`",
             "- [Tools](tools.md), what they print for `--help`", ""]
    for header in headers:
        lines += ["## %s" % header.name, ""]
        for kinds, title in ((("function",), "Functions"), (("struct", "enum", "typedef"), "Types"), (("define",), "Macros")):
            found = header.of(*kinds)
            if found:
                lines += ["%s: %s" % (title, ", ".join("[`%s`](%s)" % (e.name, writer.link(e.name)) for e in found)), ""]
    return "\n".join(lines) + "\n"


def tools_page(tools):
    lines = ["# Tools", "", "What each prints for `--help`, which is also its manual page.", ""]
    for tool in tools:
        lines += ["## %s" % os.path.basename(tool), "", "```", help_of(tool).strip("\n"), "```", ""]
    return "\n".join(lines)


def main():
    xml, out, *tools = sys.argv[1:]
    shutil.rmtree(out, ignore_errors=True)
    link_pages(out)
    headers = [h for h in reference.load(xml) if h.entries]
    writer = Writer(headers)
    folder = os.path.join(out, "docs/site/reference")
    for header in headers:
        write(folder, header.name[:-2] + ".md", writer.header(header))
    page, n = settings()
    if n < 30:
        sys.exit("stage: only %d settings found in options.def" % n)
    write(folder, "settings.md", page)
    write(folder, "tools.md", tools_page(tools))
    write(folder, "index.md", contents(headers, writer))


main()
