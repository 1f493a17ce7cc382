"""One HTML page of a sweep: what was run, on which machines, pictures, and the figures; nothing outside it is needed."""
import base64
import html
import os
import shlex
import subprocess
import sys

from benchlib import SKIPPED, median, size_text

STYLE = """
:root { color-scheme: light dark; --line: #8884; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .75rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
pre { padding: .75rem; border: 1px solid var(--line); overflow-x: auto; }
.pictures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 32rem), 1fr)); gap: 1rem; }
.pictures img { width: 100%; background: #fff; }
"""


def table(head, lines):
    def row(cell, values):
        return "<tr>%s</tr>" % "".join("<%s>%s</%s>" % (cell, html.escape(str(value)), cell) for value in values)
    return "<div class=wide><table>%s%s</table></div>" % (row("th", head), "".join(row("td", line) for line in lines))


def machines(facts):
    if not facts:
        return "<p>The hosts could not be asked what they are.</p>"
    return table(("host", "processor", "cores", "usable", "governor", "memory MiB", "copy GB/s", "kernel", "links Mbit/s"),
                 [(each["host"], each["cpu"], each["cores"], each["usable"], each["governor"], each["memory_mib"],
                   each["copy_gbs"], each["kernel"],
                   " ".join("%s %s" % link for link in each["links_mbits"].items() if link[1] and link[1] > 0) or "-")
                  for each in facts])


def figure(values):
    """Median, and from where to where where there are several runs."""
    if not values:
        return "-"
    text = "%.4g" % median(values)
    return text if len(values) == 1 else "%s (%.4g-%.4g)" % (text, min(values), max(values))


def of_runs(records, keys):
    """[(values of keys, records of all runs)] in the order of the sweep."""
    found = {}
    for record in records:
        found.setdefault(tuple(record.get(key) for key in keys), []).append(record)
    return list(found.items())


def values(records, key):
    return [record[key] for record in records if record.get(key) is not None]


def figures(records):
    coll = [record for record in records if record["program"] == "coll"]
    ddp = [record for record in records if record["program"] == "ddp"]
    parts = []
    if coll:
        keys = ("call", "scaling", "ranks", "hosts", "dtype", "who", "bytes")
        parts.append(table(("call", "scaling", "ranks", "hosts", "type", "memory", "bytes", "us", coll[0]["mpi"] + ", us", "ratio",
                            "bus GB/s"),
                           [key[:-1] + (size_text(key[-1]),) + tuple(figure(values(runs, name)) for name in
                                                                     ("time_us", "peer_us", "ratio", "busbw_gbs"))
                            for key, runs in of_runs(coll, keys)]))
    if ddp:
        keys = ("model", "scaling", "ranks", "hosts")
        parts.append(table(("model", "scaling", "ranks", "hosts", "backward, ms", "exposed, ms",
                            "exposed with %s after it, ms" % ddp[0]["mpi"], "sync alone, ms"),
                           [(os.path.basename(key[0]),) + key[1:] + tuple(figure(values(runs, name)) for name in (
                               "backward_ms", "exposed_ms", "mpi_after_exposed_ms", "sync_ms"))
                            for key, runs in of_runs(ddp, keys)]))
    return "".join(parts)


def warnings(records):
    wrong = sum(1 for record in records if record.get("wrong"))
    void = sum(1 for record in records if record.get("void"))
    texts = ["%d of %d rows have wrong results." % (wrong, len(records))] * (wrong > 0)
    texts += ["%d of %d rows are void: the memory bandwidth changed by more than 20 %% while they were taken."
              % (void, len(records))] * (void > 0)
    return "".join("<p><strong>%s</strong></p>" % html.escape(text) for text in texts)


def draw(folder):
    """(pictures, why there are none)"""
    plot = os.path.join(os.path.dirname(os.path.abspath(__file__)), "plot")
    done = subprocess.run([sys.executable, "-B", plot, os.path.join(folder, "sweep.json"), "--out",
                           os.path.join(folder, "pictures"), "--format", "svg"], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, universal_newlines=True, check=False)
    if done.returncode != 0:
        why = done.stdout.strip().splitlines() or ["status %d" % done.returncode]
        return [], why[-1].replace("skipped: ", "") if done.returncode == SKIPPED else "plot: " + why[-1]
    return done.stdout.split("\n")[:-1], None


def picture(path):
    with open(path, "rb") as source:
        data = base64.b64encode(source.read()).decode()
    name = html.escape(os.path.splitext(os.path.basename(path))[0])
    return "<img alt=\"%s\" src=\"data:image/svg+xml;base64,%s\">" % (name, data)


def write(folder, title, records, facts, commands):
    """Write FOLDER/report.html as a whole; its path."""
    drawn, why = draw(folder)
    shown = "<div class=pictures>%s</div>" % "".join(picture(path) for path in drawn)
    if why:
        shown = "<p>No pictures: %s.</p>" % html.escape(why)
    page = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>%s</title><style>%s</style></head><body>
<h1>%s</h1><p>%s</p>%s
<h2>Pictures</h2>%s
<h2>Machines</h2>%s
<h2>Figures</h2><p>Medians of the runs, and from the fastest to the slowest where there are several. Ratio: time of MPI over
time of dtr, so above 1 dtr is faster.</p>%s
<h2>Commands</h2><pre>%s</pre>
</body></html>
""" % (html.escape(title), STYLE, html.escape(title), html.escape(records[0]["version"]), warnings(records), shown, machines(facts),
       figures(records), html.escape("\n".join(shlex.join(command) for command in commands)))
    path = os.path.join(folder, "report.html")
    with open(path + ".new", "w", encoding="utf-8") as out:
        out.write(page)
    os.replace(path + ".new", path)
    return path
