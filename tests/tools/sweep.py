"""scripts/bench: a tiny sweep of each program, its CSV and JSON, the pictures drawn of it, and what is refused."""
import csv
import html.parser
import json
import os
import subprocess
import sys
import tempfile

from tool import expect, problems, refuses, run, verdict

root, build = sys.argv[1:3]
scripts = os.path.join(root, "scripts", "bench")
folder = tempfile.TemporaryDirectory(prefix="dtr-sweep-")
SKIPPED = 77


def script(name, *arguments):
    return [sys.executable, "-B", os.path.join(scripts, name)] + list(arguments)


def start(name, *arguments):
    return run(script("sweep", "--build", build, "--ranks", "1,2", "--rounds", "2", "--no-gauge", "--yield", "--out",
                      os.path.join(folder.name, name), *arguments), (0,))


def sweep(name, *arguments):
    out = os.path.join(folder.name, name)
    start(name, *arguments)
    path = os.path.join(out, "sweep.json")
    if not expect(os.path.exists(path), "no %s", path):
        return path, []
    with open(path, encoding="utf-8") as source:
        records = json.load(source)
    with open(os.path.join(out, "sweep.csv"), encoding="utf-8", newline="") as source:
        lines = list(csv.DictReader(source))
    expect(len(lines) == len(records), "%d lines in the CSV, %d records in the JSON", len(lines), len(records))
    return path, records


def plot(path, *names):
    """False where there is no matplotlib."""
    done = subprocess.run(script("plot", path, "--out", folder.name, "--format", "png,svg"), stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, universal_newlines=True, check=False)
    if done.returncode == SKIPPED:
        print(done.stdout)
        return False
    expect(done.returncode == 0, "plot: status %d\n%s", done.returncode, done.stdout)
    for name in names:
        for suffix, begin in (("png", b"\x89PNG"), ("svg", b"<?xml")):
            file = os.path.join(folder.name, "%s.%s" % (name, suffix))
            if expect(os.path.exists(file), "no picture %s", file):
                with open(file, "rb") as source:
                    expect(source.read(len(begin)) == begin, "%s is no %s", file, suffix)
    return True


coll, found = sweep("coll", "--sizes", "8,1K", "--scaling", "strong")
expect(sorted({(r["ranks"], r["bytes"]) for r in found}) == [(1, 8), (1, 1024), (2, 4), (2, 512)],
       "strong scaling: %s", [(r["ranks"], r["bytes"]) for r in found])
with open(os.path.join(folder.name, "model"), "w", encoding="utf-8") as model:
    model.write("a 100 30\nb 30\n")
ddp, found = sweep("ddp", "--program", "ddp", "--model", model.name, "--compute-ms", "2", "--scaling", "strong")
expect([(r["ranks"], r["compute_ms"]) for r in found] == [(1, 2), (2, 1)], "strong scaling of DDP: %s", found)
# What is there is not measured again; another sweep does not get mixed with it.
told = start("coll", "--sizes", "8,1K", "--scaling", "strong")
expect(told.count("there already") == 2 and "8 records" in told, "a second start: %s", told)
with open(coll, encoding="utf-8") as source:
    kept = json.load(source)
with open(coll, "w", encoding="utf-8") as shortened:
    json.dump([record for record in kept if record["ranks"] == 1], shortened)
told = start("coll", "--sizes", "8,1K", "--scaling", "strong")
expect(told.count("there already") == 1 and told.count("done") == 1 and "8 records" in told, "a sweep goes on: %s", told)
refuses(script("sweep", "--build", build, "--out", os.path.join(folder.name, "coll")), "--sizes", "--new")

# Hosts of a file, as PBS and mpirun write it: both lines are this machine.
with open(os.path.join(folder.name, "nodes"), "w", encoding="utf-8") as nodes:
    nodes.write("localhost\nlocalhost slots=1  # the same\n")
_, found = sweep("both", "--sizes", "8", "--program", "coll,ddp", "--scaling", "weak,strong", "--model", model.name,
                 "--compute-ms", "2", "--hostfile", nodes.name, "--ranks", "2")
expect({(r["program"], r["scaling"], r["hosts"], r["ranks"]) for r in found} ==
       {(p, s, 1, 2) for p in ("coll", "ddp") for s in ("weak", "strong")}, "both programs: %s", found)
with open(os.path.join(folder.name, "both", "hosts.json"), encoding="utf-8") as source:
    hosts = json.load(source)
expect(len(hosts) == 1 and hosts[0]["cores"] >= 1 and hosts[0]["copy_gbs"] > 0, "what the hosts are: %s", hosts)


class Page(html.parser.HTMLParser):
    """Pictures, rows of tables, and what would be fetched from elsewhere."""

    def __init__(self):
        super().__init__()
        self.pictures, self.rows, self.elsewhere, self.open = [], 0, [], []

    def handle_starttag(self, tag, attrs):
        source = dict(attrs).get("src") or dict(attrs).get("href")
        if tag == "img" and source.startswith("data:image/svg+xml;base64,"):
            self.pictures.append(dict(attrs)["alt"])
        elif source:
            self.elsewhere.append(source)
        self.rows += tag == "tr"
        if tag not in ("img", "meta"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        expect(self.open and self.open.pop() == tag, "</%s> ends nothing", tag)


def report(name):
    with open(os.path.join(folder.name, name, "report.html"), encoding="utf-8") as source:
        text = source.read()
    page = Page()
    page.feed(text)
    expect(not page.open and not page.elsewhere, "open %s, from elsewhere %s", page.open, page.elsewhere)
    return page, text


page, text = report("both")
expect(page.rows >= 3 + len(found) and "--hostfile" in text and hosts[0]["host"] in text, "a report of %d rows:\n%s", page.rows,
       text[:2000])
if not page.pictures:
    expect("No pictures" in text and "matplotlib" in text, "no word on why there are no pictures")
else:
    expect({"weak-allreduce-time", "strong-ddp-efficiency"} <= set(page.pictures), "pictures: %s", page.pictures)
refuses(script("sweep", "--out", folder.name, "--hostfile", os.path.join(folder.name, "none")), "--hostfile", "No such file")
with open(os.path.join(folder.name, "odd"), "w", encoding="utf-8") as odd:
    odd.write("a b c\n")
refuses(script("sweep", "--out", folder.name, "--hostfile", odd.name), "--hostfile", "a b c")

drawn = plot(os.path.join(folder.name, "both", "sweep.json"), "weak-allreduce-time", "strong-ddp-scaling") and plot(coll, "allreduce-time", "allreduce-bandwidth", "allreduce-ratio", "allreduce-scaling") and plot(ddp, "ddp-scaling",
                                                                                     "ddp-efficiency")
for name in ("sweep", "goals", "syscalls"):
    interpreter = [os.path.join(scripts, name)] if name == "syscalls" else script(name)
    expect("--build" in run(interpreter + ["--help"], (0,)), "--help of %s", name)
refuses(script("sweep", "--out", folder.name, "--scaling", "odd"), "--scaling", "'odd'")
refuses(script("sweep", "--out", folder.name, "--ranks", "0"), "--ranks", "'0'")
refuses(script("sweep", "--out", folder.name, "--sizes", "8,8Q"), "--sizes", "'8Q'")
refuses(script("sweep", "--out", os.path.join(model.name, "in-a-file")), "--out", "in-a-file")
if drawn:
    refuses(script("plot", os.path.join(folder.name, "missing")), "cannot draw", "No such file")
    refuses(script("plot", model.name), "cannot draw", model.name)
refuses([os.path.join(scripts, "syscalls"), "--bogus"], "--bogus")
refuses(script("goals", "--build", build, "--only", "everything"), "everything")
if not problems and not drawn:
    sys.exit(SKIPPED)
verdict()
