"""The program that README.md shows is examples/01_hello.c, word for word, and it is short."""
import re

from common import read, verdict

LONGEST = 25
program = read("examples/01_hello.c")
blocks = re.findall(r"^```c\n(.*?)^```$", read("README.md"), flags=re.M | re.S)
problems = []
if program not in blocks:
    problems.append("README.md has no C block equal to examples/01_hello.c")
if len(program.splitlines()) > LONGEST:
    problems.append("examples/01_hello.c has %d lines, the README promises %d" % (len(program.splitlines()), LONGEST))
verdict(problems, "README.md shows examples/01_hello.c")
