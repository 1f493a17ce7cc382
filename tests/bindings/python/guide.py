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
shown = re.findall(r"^```python\n(.*?)^```\n\n(?:<!--[^\n]*-->\n)?```console\n\$ mpirun -n (\d+) python3 (\w+\.py)\n(.*?)^```", text, flags=re.M | re.S)
failed = len(shown) == 0
for program, ranks, name, output in shown:
    path = os.path.join(folder, name)
    with open(path, "w", encoding="utf-8") as file:
        file.write(program)
    run = subprocess.run([launcher, "-n", ranks, sys.executable, path], capture_output=True, text=True)
    lines = [line for line in output.split("\n") if line]
    # A launcher may write the ends of two ranks' lines after both of them.
    same = len(run.stdout) == len(output) and all(run.stdout.count(line) == lines.count(line) for line in lines)
    if run.returncode != 0 or not same:
        failed = True
        print("%s: exit status %d; it printed\n%s%s\nand the guide shows\n%s" % (name, run.returncode, run.stdout, run.stderr, output))
print("%d programs" % len(shown))
sys.exit(1 if failed else 0)
