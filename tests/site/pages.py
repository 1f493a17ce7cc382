"""The pages do what they show: every block of code is compiled and run, every command is run, and its output compared.

Usage: pages.py SOURCE_DIR BUILD_DIR MPIEXEC PAGE|FOLDER...; DTR_PREFIX is an installation, else one is made

A page's blocks are run in one folder, one after the other, with what they have exported. By language:
  console   commands, which begin with "$ ", and the output of each; a line "..." stands for any lines
  sh        commands alone, which must succeed
  (none)    output of the command that a mark names
  others    a file, which a mark names, or the block itself in its first line, /* app.c: ...
A block of C without main is a piece: pieces.py makes programs of a page's pieces.
Marks are comments, each on a line of its own directly before the block:
  file: NAME            as which the block is saved; the piece NAME.c becomes the program NAME
  numbers vary          every number then fits every other; so do names of hosts and jobs
  wrapped               the page breaks lines where the output does not
  run as: COMMAND       in place of the command that the block shows, or does not show
  if: COMMAND           where this fails, the block is left out
  fails                 the last command's status is not 0
  run by: TEST          another test runs this block and compares
  not run: REASON       nothing does; NOT_RUN counts these
"""
import glob
import os
import re
import shlex
import subprocess
import sys
import tempfile

import pieces

BLOCK = re.compile(r"^((?:<!-- [^\n]+ -->\n)*)```(\{?\w*\}?)\n(.*?)^```$", flags=re.M | re.S)
MARK = re.compile(r"<!-- (file|numbers vary|wrapped|fails|run as|if|run by|not run)(?:: ([^\n]+))? -->\n")
# How many blocks of a page nothing runs. Another one needs a reason why no test can; one less is a success.
NOT_RUN = {"README.md": 1, "docs/user-guide.md": 18, "docs/site/howto/slurm.md": 1, "docs/site/tutorials/cluster.md": 1}
LIMIT = 120  # seconds for one command
source, build, mpiexec, *pages = sys.argv[1:]


class Page:
    """A page whose blocks run in a folder; what is wrong with it, and how much of it was run."""

    def __init__(self, path, folder, environment):
        with open(path, encoding="utf-8") as file:
            self.text = file.read()
        self.name, self.folder, self.environment = os.path.relpath(path, source), folder, environment
        self.problems, self.programs, self.ran, self.not_run, self.left_out = [], 0, 0, 0, []

    def complain(self, line, text):
        self.problems.append("%s:%d: %s" % (self.name, line, text))

    def command(self, command):
        """Run a command of the page with what earlier ones have exported."""
        script = "set -o pipefail; [ ! -f .exported ] || . ./.exported; %s\nstatus=$?; export -p >.exported; exit $status" % command
        return subprocess.run(["bash", "-c", script], cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=LIMIT)

    def compare(self, line, command, wanted, marks, fails=False):
        """A command prints what is wanted, None for anything, and does or does not fail."""
        self.ran += 1
        run = self.command(command)
        compiles = re.match(r"(mpicc|cc|c\+\+|gfortran) ", command)
        fine = (run.returncode != 0) == fails and not (compiles and run.stderr)
        if not fine or wanted is not None and not fits(lines_of(wanted, marks), lines_of(run.stdout, marks)):
            self.complain(line, "$ %s\nwanted:\n%s\ngot (status %d):\n%s%s" %
                          (command, "success" if wanted is None else wanted, run.returncode, run.stdout, run.stderr))

    def block(self, line, marks, language, body):
        first = re.match(r"/\* (\w+\.c): ", body)
        if language == "console" or not language:
            if "run as" in marks:
                self.compare(line, marks["run as"], re.sub(r"^\$ .*\n", "", body), marks, "fails" in marks)
            elif language:
                begin, *parts = re.split(r"^\$ ", body, flags=re.M)
                if begin or not parts:
                    self.complain(line, "a console block begins with a command, $ ...")
                for part in parts:
                    command, _, output = re.sub(r"\\\n\s*", "", part).partition("\n")
                    self.compare(line, command, output, marks, "fails" in marks and part is parts[-1])
            else:
                self.complain(line, "output of what? Its command belongs into the block, as console, or into a mark, run as: COMMAND")
        elif language == "sh":
            self.compare(line, marks.get("run as") or "set -e\n" + body, None, marks)
        elif "file" in marks or first:
            self.programs += 1
            with open(os.path.join(self.folder, marks.get("file") or first.group(1)), "w", encoding="utf-8") as out:
                out.write(body)
        else:
            self.complain(line, "this block of %s needs a mark, file: NAME" % language)

    def run(self):
        made = []  # the pieces
        blocks = []
        for block in BLOCK.finditer(self.text):
            marks, language, body = dict(MARK.findall(block.group(1))), *block.groups()[1:]
            line = self.text.count("\n", 0, block.start(3)) + 1
            if len(marks) != block.group(1).count("\n"):
                self.complain(line, "the comments before it are no marks, or come twice: %s" % block.group(1))
            if "not run" in marks:
                self.not_run += 1
            elif language.startswith("{") or "run by" in marks:
                continue
            elif "if" in marks and self.command(marks["if"]).returncode:
                self.left_out.append("%s:%d: %s" % (self.name, line, marks["if"]))
            elif language == "c" and "int main(" not in body:
                made.append(pieces.Piece(marks.get("file", "").removesuffix(".c"), line, body))
            else:
                blocks.append((line, marks, language, body))
        if made:
            self.programs += len(made)
            pieces.write(made, self.name, os.path.join(self.folder, "pieces.c"))
            self.compare(1, pieces.COMPILE, "", {})
            if self.problems:
                return self
            for piece in made:
                if piece.name:
                    os.symlink("pieces", os.path.join(self.folder, piece.name))
            self.compare(1, "mpirun -n 2 ./pieces", None, {})
        for block in blocks:
            self.block(*block)
        if self.not_run != NOT_RUN.get(self.name, 0):
            self.complain(1, "%d blocks are not run, and NOT_RUN in tests/site/pages.py says %d" % (self.not_run, NOT_RUN.get(self.name, 0)))
        return self


def lines_of(text, marks):
    if "wrapped" in marks:
        text = " ".join(text.split())
    if "numbers vary" in marks:
        text = re.sub(r"\bhost [\w.-]+", "host N", re.sub(r"\b([0-9a-f]{16}|0x[0-9a-f]+)\b", "N", text))
        text = re.sub(r"[-+]?[0-9]+(\.[0-9]+)?(e[-+][0-9]+)?", "N", re.sub(r" +", " ", text))
    return [line.rstrip() for line in text.strip("\n").split("\n")] if text.strip() else []


def fits(wanted, got):
    if not wanted:
        return not got
    if wanted[0] == "...":
        return any(fits(wanted[1:], got[i:]) for i in range(len(got) + 1))
    return bool(got) and wanted[0] == got[0] and fits(wanted[1:], got[1:])


def environment_of(scratch):
    """The installed library's tools and examples, and the launcher and compiler of its MPI, first in PATH."""
    prefix = os.environ.get("DTR_PREFIX") or os.path.join(scratch, "prefix")
    if "DTR_PREFIX" not in os.environ:
        subprocess.run(["cmake", "--install", build, "--prefix", prefix], check=True, stdout=subprocess.DEVNULL)
    tools = os.path.join(scratch, "bin")
    os.makedirs(tools)
    for name, real in (("mpirun", mpiexec), ("mpicc", os.environ.get("MPICC", ""))):
        if real:
            with open(os.path.join(tools, name), "w", encoding="utf-8") as file:
                file.write('#!/bin/sh\nexec %s "$@"\n' % shlex.quote(real))
            os.chmod(os.path.join(tools, name), 0o755)
    package = os.path.dirname(glob.glob(os.path.join(prefix, "**/dtr.pc"), recursive=True)[0])
    path = ":".join([os.path.join(prefix, "bin"), tools, os.path.join(build, "examples"), os.path.join(build, "tests/site"),
                     os.path.dirname(os.path.realpath(mpiexec)), os.environ["PATH"]])
    # UCX, below MPICH, prints its warnings to standard output, where an operation has passed its limit.
    environment = dict(os.environ, PATH=path, PKG_CONFIG_PATH=package, LC_ALL="C", UCX_LOG_LEVEL="error", prefix=prefix, source=source,
                       build=build)
    environment.pop("DTR_PREFIX", None)  # no setting of the library, which would warn
    return environment


def main():
    if os.environ.get("DTR_TEST_SKIP"):
        print("skipped: " + os.environ["DTR_TEST_SKIP"])
        return 77
    with tempfile.TemporaryDirectory() as scratch:
        environment = environment_of(scratch)
        done = []
        for page in (page for named in pages for page in (sorted(glob.glob(named + "/*.md")) if os.path.isdir(named) else [named])):
            folder = os.path.join(scratch, "run", os.path.relpath(page, source).replace("/", "-"))
            os.makedirs(folder)
            done.append(Page(page, folder, environment).run())
    problems = [problem for page in done for problem in page.problems]
    programs, ran = sum(page.programs for page in done), sum(page.ran for page in done)
    if programs < 5 or ran < 15:
        problems.append("only %d programs and %d commands found: is the check broken?" % (programs, ran))
    for reason in (reason for page in done for reason in page.left_out):
        print("skipped: %s" % reason)
    print("\n".join(problems) if problems else "ok: %d programs and %d commands of %d pages, %d blocks are not run" %
          (programs, ran, len(done), sum(page.not_run for page in done)))
    return bool(problems)


sys.exit(main())
