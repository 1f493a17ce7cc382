"""dtr-doctor --watch, of a job with a stopped rank that goes on and one that is killed; and --html.

watch.py MPIEXEC PROGRAM DOCTOR FOLDER
"""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import xml.etree.ElementTree as xml

from job import Job, until
from tool import expect, refuses, run, verdict

mpiexec, program, doctor, base = sys.argv[1:]
SVG, HTML = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xhtml}"


class Watch:
    def __init__(self, job, name):
        self.path = os.path.join(job.folder, name)
        with open(self.path, "w") as out:
            self.process = subprocess.Popen([doctor, "--watch", "--interval", "0.3", job.recordings], stdout=out,
                                            stderr=subprocess.STDOUT)

    def lines(self):
        with open(self.path) as f:
            return f.read().splitlines()

    def until(self, pattern):
        until("--watch says \"%s\"" % pattern, lambda: any(re.search(pattern, line) for line in self.lines()))


def start(name, ranks):
    job = Job(mpiexec, ranks, base, name, [program, "STOP"])
    until("operations of %s" % name, lambda: len(job.files()) == ranks and works(job))
    return job


def works(job):
    """Every rank has called something; then the pids are known too."""
    done = subprocess.run([doctor, "--json", job.recordings], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    if done.returncode not in (0, 1):
        return False
    seen = json.loads(done.stdout)
    job.pids.update((r["rank"], r["pid"]) for r in seen["ranks"] if "pid" in r)
    return all(r.get("records", 0) > 40 for r in seen["ranks"])


def stopped():
    """It speaks of a rank that is stopped, then that it goes on, and of nothing else."""
    job = start("watch", 2)
    watch = Watch(job, "watched")
    job.signal(1, signal.SIGSTOP)
    watch.until(r"rank 1 .*(is stopped|never entered)")
    page(job)
    job.signal(1, signal.SIGCONT)
    watch.until(r"UTC over: rank 1 ")
    expect(job.end() == 0, "the job that was watched failed")
    status = watch.process.wait()
    lines = watch.lines()
    expect(status == 0 and re.match(r"\d\d:\d\d:\d\d UTC the job has ended$", lines[-1]), "status %d: %s", status, lines)
    expect(all(re.match(r"\d\d:\d\d:\d\d UTC ", line) for line in lines), "%s", lines)
    # How slow ranks are may be said in between, on a machine that is busy.
    about = [line for line in lines if "usually last" not in line]
    expect(len(about) <= 4, "lines of one rank that was stopped: %s", lines)
    shutil.rmtree(job.folder, ignore_errors=True)


def killed():
    job = start("watch-killed", 3)
    watch = Watch(job, "watched")
    job.signal(2, signal.SIGKILL)
    watch.until(r"rank 2 .* died or ended without dtr_world_destroy")
    job.end()
    status = watch.process.wait()
    expect(status == 1 and watch.lines()[-1].endswith("UTC the job has ended with that"), "status %d: %s", status,
           watch.lines())
    again = subprocess.run([doctor, "--watch", job.recordings], stdout=subprocess.PIPE, universal_newlines=True, check=False)
    expect(again.returncode == 1 and "rank 2" in again.stdout and "ended with that" in again.stdout, "of an ended job: %s", again)
    shutil.rmtree(job.folder, ignore_errors=True)


def page(job):
    """Well-formed, with the first sentence, a row and a lane per rank, and nothing that it would fetch."""
    path = os.path.join(job.folder, "page.html")
    with open(path, "w") as f:
        f.write("older")
    said = run([doctor, "--html", path, job.recordings], (1,))
    with open(path, encoding="utf-8") as f:
        text = f.read()
    tree = xml.fromstring(text)
    first = tree.find(".//%sp[@class='first']" % HTML).text
    expect(re.match(r"rank 1 \(", first) and re.sub(r"[0-9.]+ s", "", first) in re.sub(r"[0-9.]+ s", "", said), "%s\n%s", first, said)
    expect(len(tree.findall(".//%str" % HTML)) == 3, "rows of the table")
    expect(len(tree.findall(".//%sline[@class='lane']" % SVG)) == 2, "lanes of the picture")
    bars = tree.findall(".//%srect" % SVG)
    expect(len(bars) > 20 and any(b.get("class") == "open" for b in bars), "%d bars", len(bars))
    expect(all("allreduce" in b.find(SVG + "title").text or "#" in b.find(SVG + "title").text for b in bars), "bars without a title")
    for element in tree.iter():
        expect(not {"src", "href"} & set(element.attrib) and element.tag.split("}")[1] not in ("script", "link", "img", "iframe"),
               "%s %s", element.tag, element.attrib)
    rest = text.replace("http://www.w3.org/2000/svg", "").replace("http://www.w3.org/1999/xhtml", "")
    expect("://" not in rest and "url(" not in rest and "@import" not in rest, "the page refers to others")
    escaped(job, path)
    expect(not [f for f in os.listdir(job.folder) if f.endswith(".new")], "a page was left half done")


def escaped(job, path):
    """What a recording holds is text and nothing else."""
    copy = os.path.join(job.folder, "copy")
    shutil.copytree(job.recordings, copy)
    for name in os.listdir(copy):
        with open(os.path.join(copy, name), "r+b") as f:
            image = f.read()
            at = image.index(program.encode())
            f.seek(at)
            f.write(b"</h1><script>&\xff\"'\x01\0")
    subprocess.run([doctor, "--html", path, copy], stdout=subprocess.DEVNULL, check=False)
    with open(path, encoding="utf-8") as f:
        text = f.read()
    expect("<script" not in text and xml.fromstring(text).find(".//%sh1" % HTML).text.endswith("</h1><script>&?\"'?"),
           "not escaped: %s", text[:2000])


def refused():
    here = os.path.join(base, "watch-refused")
    shutil.rmtree(here, ignore_errors=True)
    os.makedirs(here)
    refuses([doctor, "--watch", here], "no recording could be read")
    for bad in ("0", "x", "-1", "3601"):
        refuses([doctor, "--watch", "--interval", bad, here], "--interval needs a number of seconds from 0.1 to 3600")
    refuses([doctor, "--interval", "1", here], "--interval is for --watch")
    for other in (["--json"], ["--html", "x.html"], ["--trace", "x"], ["--last", "3"], ["--trigger"]):
        refuses([doctor, "--watch"] + other + [here], "--watch goes with --interval only")
    refuses([doctor, "--trigger", "--json", here], "--trigger goes with no other option")
    refuses([doctor, "--html"], "--html needs a file to write")
    refuses([doctor, "--last", "many", here], "--last needs a number of operations")
    refuses([doctor, "--wach", here], 'cannot make sense of "--wach"')
    refuses([doctor, "--html", os.path.join(here, "page.html"), here], "no recording could be read")
    expect(os.listdir(here) == [], "written although nothing could be read: %s", os.listdir(here))
    job = start("watch-unwritable", 1)
    refuses([doctor, "--html", os.path.join(here, "no", "page.html"), job.recordings], "cannot write", "No such file or directory")
    expect(os.listdir(here) == [], "left behind: %s", os.listdir(here))
    job.end()
    shutil.rmtree(job.folder, ignore_errors=True)


stopped()
killed()
refused()
verdict()
