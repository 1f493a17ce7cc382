"""The Python programs in the user guide print what the guide shows.

Usage: guide.py PAGE FOLDER LAUNCHER
Behind a block of Python stands one with the command, "$ mpirun -n N python3 app.py", and the lines that it prints in any order.
"""
import os
import re
import subprocess
import sys

page, folder, launcher = sys.argv[1:]
with open(page, encoding="utf-8") as file:
    text = file.read()
os.makedirs(folder, exist_ok=True)
shown = re.findall(r"^```python\n(.*?)^```\n\n```\n\$ mpirun -n (\d+) python3 (\w+\.py)\n(.*?)^```", text, flags=re.M | re.S)
failed = len(shown) == 0
for program, ranks, name, output in shown:
    path = os.path.join(folder, name)
    with open(path, "w", encoding="utf-8") as file:
        file.write(program)
    run = subprocess.run([launcher, "-n", ranks, sys.executable, path], capture_output=True, text=True)
    got, want = sorted(run.stdout.split("\n")), sorted(output.split("\n"))
    if run.returncode != 0 or got != want:
        failed = True
        print("%s: exit status %d; it printed\n%s%s\nand the guide shows\n%s" % (name, run.returncode, run.stdout, run.stderr, output))
print("%d programs" % len(shown))
sys.exit(1 if failed else 0)
