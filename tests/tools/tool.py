"""What the tests of the measuring programs share: running them, and a list of what was wrong."""
import json
import subprocess
import sys

VOID = 3  # of --strict: the machine was not quiet, which a test machine need not be
problems = []


def expect(good, text, *values):
    if not good:
        problems.append(text % values)
    return good


def run(command, statuses):
    """Run a command; its standard output, empty where it ended with another status than expected."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True, check=False)
    if expect(done.returncode in statuses, "%s: status %d, expected one of %s\n%s%s", " ".join(command),
              done.returncode, statuses, done.stdout, done.stderr):
        return done.stdout
    return ""


def refuses(command, *texts):
    """A wrong option ends with status 2, and the message on stderr has all the texts."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True, check=False)
    expect(done.returncode == 2, "%s: status %d, expected 2", " ".join(command), done.returncode)
    for text in texts:
        expect(text in done.stderr, "%s: \"%s\" is not in the message\n%s", " ".join(command), text, done.stderr)


def strict(command, out, is_void):
    """--strict alone turns a void run, of which only the report tells, into a status."""
    done = subprocess.run(command + ["--strict"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    with open(out, encoding="utf-8") as source:
        void = is_void(json.load(source))
    expect(done.returncode == (VOID if void else 0), "%s --strict: status %d, void: %s", " ".join(command), done.returncode, void)


def versions(*programs):
    for program in programs:
        text = run([program, "--version"], (0,))
        expect(text.startswith("dtr ") and text.count("\n") == 1, "%s --version: %s", program, text)


def rows(output):
    """The lines of a table without its comments, split into words."""
    return [line.split() for line in output.splitlines() if line.strip() and not line.startswith("#")]


def number(text):
    try:
        return float(text)
    except ValueError:
        return None


def verdict():
    for problem in problems:
        print(problem)
    sys.exit(1 if problems else 0)
