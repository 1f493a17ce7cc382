"""scripts/bench/loggp: it finds the parameters that made-up rings were made of, tells the allreduces that follow from them from
one that does not, counts messages as docs/scaling.md does, and refuses what is no input."""
import json
import os
import sys
import tempfile

from tool import expect, refuses, rows, run, verdict

LATENCY, WAIT, OVERHEAD, GAP, ASKED, TURN, CORES = 40.0, 3.0, 5.0, 0.002, 0.003, 1.5, 2  # us, and us a byte
root = sys.argv[1]
folder = tempfile.TemporaryDirectory(prefix="dtr-loggp-")
script = [sys.executable, "-B", os.path.join(root, "scripts", "bench", "loggp")]


def taken(nodes, rounds, messages, short, long=0):
    share = max(1, nodes / CORES)
    return rounds * (LATENCY + share * (share - 1) * TURN) + share * (rounds * WAIT + messages * OVERHEAD + short * GAP + long * ASKED)


def write(name, nodes, points, ranks=None):
    path = os.path.join(folder.name, name)
    with open(path, "w", encoding="utf-8") as out:
        json.dump({"ranks": ranks or nodes, "nodes": nodes,
                   "rows": [dict({"call": call, "bytes": n, "time_us": t}, **peer) for call, n, t, *peers in points
                            for peer in peers or [{}]]}, out)
    return path


def rings(nodes):
    return [("sendrecv", n, taken(nodes, 1, 1, n)) for n in (8, 4096)] + [("sendrecv", 1 << 20, taken(nodes, 1, 1, 0, 1 << 20))] + \
           [("waitall", n, taken(nodes, 1, 16, n)) for n in (64, 4096)] + [("waitall", 1 << 20, taken(nodes, 1, 16, 0, 1 << 20))]


# By doubling; by halves and back, of two ranks in ten segments, eight of which go at once, and of 16 in one.
good = [write("2", 2, rings(2) + [("allreduce", 8, taken(2, 1, 1, 8)), ("allreduce", 1 << 20, taken(2, 4, 20, 1 << 20))]),
        write("8", 8, rings(8) + [("allreduce", 1024, taken(8, 3, 3, 3 * 1024)), ("allreduce", 4096, taken(8, 3, 3, 3 * 4096))]),
        write("16", 16, rings(16) + [("allreduce", 512, taken(16, 4, 4, 4 * 512)),
                                     ("allreduce", 4096, taken(16, 4, 4, 4 * 4096)),
                                     ("allreduce", 1 << 20, taken(16, 8, 8, 0, 30 << 16))])]
# Of two files the lower time counts.
slow = write("slow", 2, [(call, n, 3 * t) for call, n, t in rings(2)])
# MPI's own messages count where they are known.
good.append(write("peer", 4, [(call, n, 2 * t, {"peer_us": t}) for call, n, t in rings(4)]))
told = run(script + ["--cores", str(CORES), "--within", "1"] + good + [slow], (0,))
expect("L 40 us, p 3 us, o 5 us, G 2 ns, Q 3 ns" in told, "the parameters are not found:\n%s", told)
expect("largest error 0 %" in told, "the allreduces are not told:\n%s", told)
odd = write("odd", 8, [("allreduce", 8, 2 * taken(8, 3, 3, 24))])
expect("-50%" in run(script + ["--cores", str(CORES), "--within", "30"] + good + [odd], (1,)), "half of the time is no error")

counts = {(line[0], line[1] + line[2]): line[-4] for line in rows(run(script + ["--assume", "1,0,1,0", "--nodes", "8,1000,10000",
                                                                               "--sizes", "8,1K,64M"], (0,)))[2:]}
for key, count in {("8", "8B"): "3", ("1000", "8B"): "10", ("10000", "8B"): "14", ("8", "1KiB"): "3", ("1000", "1KiB"): "10",
                   ("10000", "1KiB"): "14", ("8", "64MiB"): "3516"}.items():
    expect(counts.get(key) == count, "%s nodes, %s: %s messages, not %s", *key, counts.get(key), count)

refuses(script, "give either files or --assume")
refuses(script + ["--assume", "1,0,1,0", "--segment", "0"], "the least is 1K")
refuses(script + ["--assume", "1,2,3"], "expected four numbers")
refuses(script + ["--assume", "1,2,3,nan"], "expected numbers from 0 on")
expect(run(script + [write("uneven", 2, rings(2), ranks=4)], (1,)) == "", "two ranks a node are taken")
expect(run(script + [__file__], (1,)) == "", "a script is taken for JSON")
verdict()
