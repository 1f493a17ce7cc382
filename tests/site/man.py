"""Every public function and every tool has a manual page that mandoc takes without an error and man shows.

Usage: man.py MAN_DIR GENERATED_INCLUDE_DIR XML_OR_EMPTY PROGRAM...
"""
import os
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../checks"))
from common import prototypes, public_headers, read, verdict  # noqa: E402

folder, generated, xml, *programs = sys.argv[1:]
if not shutil.which("mandoc"):
    print("skipped: mandoc is not there")
    sys.exit(77)


def shown(page, form="utf8"):
    return subprocess.run(["mandoc", "-T", form, page], capture_output=True, text=True, check=False).stdout


problems, pages = [], []
for program in programs:
    name = os.path.basename(program)
    page = os.path.join(folder, "man1", name + ".1")
    pages.append(page)
    text = subprocess.run([program, "--help"], capture_output=True, text=True, check=True).stdout
    there = " ".join(shown(page, "ascii").replace("\b", "").split()) if os.path.exists(page) else ""
    for line in text.strip().split("\n")[2:]:
        if " ".join(line.split()) not in there:
            problems.append("%s(1) lacks the line of its --help: %s" % (name, line))
            break
if xml:
    for _, header in public_headers(generated):
        for function in prototypes(header):
            page = os.path.join(folder, "man3", function.name + ".3")
            if not os.path.exists(page):
                problems.append("%s has no manual page" % function.where)
            else:
                pages.append(page)
                text = read(page)
                for part in (".SH SYNOPSIS", ".SH DESCRIPTION", ".SH ERRORS", ".SH HISTORY"):
                    if part not in text:
                        problems.append("%s(3) has no section %s" % (function.name, part[4:]))
    pages += [os.path.join(folder, "man3", name) for name in os.listdir(os.path.join(folder, "man3"))]
pages = sorted({page for page in pages if os.path.exists(page)})
for line in subprocess.run(["mandoc", "-T", "lint", "-W", "error", *pages], capture_output=True, text=True, check=False).stdout.splitlines():
    problems.append(line)
if len(pages) < (250 if xml else 5):
    problems.append("only %d pages found: is the check broken?" % len(pages))
verdict(problems, "%d manual pages" % len(pages))
