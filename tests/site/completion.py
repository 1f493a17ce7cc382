"""Bash completes every option that a tool's --help names, and the calls of dtr-bench; the scripts are good bash.

Usage: completion.py COMPLETION_DIR PROGRAM...
"""
import os
import re
import subprocess
import sys

folder, *programs = sys.argv[1:]
ASK = """source "$1"; COMP_WORDS=("$2" "$3" "$4"); COMP_CWORD=2; [ -n "$4" ] || { COMP_WORDS=("$2" "$3"); COMP_CWORD=1; }
spec=$(complete -p "$2") || exit 3; [[ $spec =~ -F\\ ([^ ]+) ]] && "${BASH_REMATCH[1]}"; printf '%s\\n' "${COMPREPLY[@]}" """


def answers(program, word, before=""):
    name = os.path.basename(program)
    words = [before, word] if before else [word, ""]
    run = subprocess.run(["bash", "-c", ASK, "ask", os.path.join(folder, "bash", name), name, *words], capture_output=True, text=True, check=False)
    return run.stdout.split(), run.stderr


problems, options = [], 0
for program in programs:
    name = os.path.basename(program)
    text = subprocess.run([program, "--help"], capture_output=True, text=True, check=True).stdout
    text = "\n".join(line for line in text.split("\n") if not line.strip().startswith("mpirun"))
    wanted = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", text))
    got, error = answers(program, "--")
    options += len(wanted)
    problems += ["%s: %s is in --help, but is not completed" % (name, option) for option in sorted(wanted - set(got))]
    problems += ["%s: %s is completed, but is not in --help" % (name, option) for option in sorted(set(got) - wanted)]
    if error:
        problems.append("%s: bash says: %s" % (name, error))
    zsh = open(os.path.join(folder, "zsh", "_" + name), encoding="utf-8").read()
    problems += ["%s: zsh lacks %s" % (name, option) for option in sorted(wanted) if "'%s" % option not in zsh]
bench = next(program for program in programs if program.endswith("dtr-bench") and "ddp" not in program)
if "reduce_scatterv" not in answers(bench, "reduce_s")[0]:
    problems.append("dtr-bench: reduce_s is not completed to reduce_scatterv")
if answers(bench, "all", "--rounds")[0]:
    problems.append("dtr-bench: behind --rounds comes a number, no call")
if options < 30:
    problems.append("only %d options found: is the check broken?" % options)
print("\n".join(problems) if problems else "ok: %d options of %d programs" % (options, len(programs)))
sys.exit(bool(problems))
