"""The tutorials do what they show: every program is compiled, every command is run, and its output compared.

Usage: tutorials.py SOURCE_DIR BUILD_DIR MPIEXEC [PAGE...]; DTR_PREFIX is an installation, else one is made

A block of C begins with its name, "/* app.c: ...". The commands of a console block begin with "$ "; what follows is their output,
where a line "..." stands for any lines. Before a block may stand <!-- numbers vary --> (every number then fits every other) or
<!-- not run: REASON -->. A page's blocks run in one folder, one after the other, with what they have exported.
"""
import glob
import os
import re
import subprocess
import sys
import tempfile

BLOCK = re.compile(r"^(?:<!-- (numbers vary|not run: [^\n]+) -->\n)?```(\w*)\n(.*?)^```$", flags=re.M | re.S)
source, build, mpiexec, *pages = sys.argv[1:]


def lines_of(text, vary):
    if vary:
        text = re.sub(r"[0-9]+(\.[0-9]+)?", "N", re.sub(r" +", " ", text))
    return [line.rstrip() for line in text.strip("\n").split("\n")] if text.strip() else []


def fits(wanted, got):
    if not wanted:
        return not got
    if wanted[0] == "...":
        return any(fits(wanted[1:], got[i:]) for i in range(len(got) + 1))
    return bool(got) and wanted[0] == got[0] and fits(wanted[1:], got[1:])


def commands(text):
    """(command, expected output) pairs."""
    for part in re.split(r"^\$ ", text, flags=re.M)[1:]:
        command, _, output = part.partition("\n")
        yield command, output


def run_page(page, folder, environment):
    """The problems of a page, and how many programs and commands it has."""
    with open(page, encoding="utf-8") as file:
        text = file.read()
    name, problems, programs, ran = os.path.relpath(page, source), [], 0, 0
    state = os.path.join(folder, ".exported")
    for block in BLOCK.finditer(text):
        mark, language, body = block.groups()
        where = "%s:%d" % (name, text.count("\n", 0, block.start(3)) + 1)
        if mark and mark.startswith("not run"):
            continue
        if language == "c":
            file = re.match(r"/\* (\w+\.c): ", body)
            if not file:
                problems.append("%s: a program begins with its name: /* app.c: ... */" % where)
                continue
            programs += 1
            with open(os.path.join(folder, file.group(1)), "w", encoding="utf-8") as out:
                out.write(body)
        elif language == "console":
            for command, wanted in commands(body):
                ran += 1
                script = "set -o pipefail; [ ! -f %s ] || . %s; %s\nstatus=$?; export -p >%s; exit $status" % (state, state, command, state)
                run = subprocess.run(["bash", "-c", script], cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True,
                                     text=True, timeout=120)
                vary = mark == "numbers vary"
                if run.stderr and "mpicc" in command or not fits(lines_of(wanted, vary), lines_of(run.stdout, vary)):
                    problems.append("%s: $ %s\nwanted:\n%s\ngot:\n%s%s" % (where, command, wanted, run.stdout, run.stderr))
        elif language:
            problems.append("%s: a tutorial has blocks of c and console only, this one is %s" % (where, language))
    return problems, programs, ran


def main():
    with tempfile.TemporaryDirectory() as scratch:
        prefix = os.environ.get("DTR_PREFIX") or os.path.join(scratch, "prefix")
        if "DTR_PREFIX" not in os.environ:
            subprocess.run(["cmake", "--install", build, "--prefix", prefix], check=True, stdout=subprocess.DEVNULL)
        tools = os.path.join(scratch, "bin")
        os.makedirs(tools)
        for name, real in (("mpirun", mpiexec), ("mpicc", os.environ.get("MPICC", ""))): # those of the library's MPI
            if real:
                with open(os.path.join(tools, name), "w", encoding="utf-8") as file:
                    file.write('#!/bin/sh\nexec %s "$@"\n' % real)
                os.chmod(os.path.join(tools, name), 0o755)
        package = os.path.dirname(glob.glob(os.path.join(prefix, "**/dtr.pc"), recursive=True)[0])
        path = ":".join([os.path.join(prefix, "bin"), tools, os.path.dirname(os.path.realpath(mpiexec)), os.environ["PATH"]])
        # UCX, below MPICH, prints its warnings to standard output, where an operation has passed its limit.
        environment = dict(os.environ, PATH=path, PKG_CONFIG_PATH=package, LC_ALL="C", UCX_LOG_LEVEL="error")
        problems, programs, ran = [], 0, 0
        for page in pages or sorted(glob.glob(os.path.join(source, "docs/site/tutorials/*.md"))):
            folder = os.path.join(scratch, os.path.basename(page)[:-3])
            os.makedirs(folder)
            found = run_page(page, folder, environment)
            problems, programs, ran = problems + found[0], programs + found[1], ran + found[2]
        if not pages and (programs < 5 or ran < 15):
            problems.append("only %d programs and %d commands found: is the check broken?" % (programs, ran))
        print("\n".join(problems) if problems else "ok: %d programs and %d commands of the tutorials" % (programs, ran))
        return bool(problems)


sys.exit(main())
