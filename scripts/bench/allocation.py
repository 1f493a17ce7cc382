"""Where a sweep may start ranks: the allocation of a scheduler, a file with hosts, or this machine."""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

from benchlib import ROOT, cached, is_openmpi, launch

BED = os.path.join(ROOT, "scripts", "testbed", "run")


def spread(ranks, hosts):
    """Ranks of each host, the first ones having one more where it is uneven."""
    return [ranks // hosts + (1 if host < ranks % hosts else 0) for host in range(hosts)]


class ThisMachine:
    """Several hosts are network namespaces of this machine (scripts/testbed/run)."""
    name = "this machine"

    def __init__(self, rate=None):
        self.rate = rate
        self.slots = [os.cpu_count() or 1]

    def start(self, build, ranks, hosts, yielding):
        if hosts == 1:
            return launch(build, ranks, yielding=yielding)
        launcher = cached(build, "DTR_MPIEXEC")
        options = (["--mpiexec", launcher] if launcher else []) + (["--rate", self.rate] if self.rate else [])
        return ([BED, "--hosts", str(hosts), "--ranks", ",".join(map(str, spread(ranks, hosts)))] + options + ["--"],
                dict(os.environ))

    def has_room(self, ranks, hosts):
        return ranks >= hosts

    def each_host(self, build):
        return []  # the sweep itself runs there


class Allocated:
    """So many ranks on each host and no more."""
    slots = ()

    def has_room(self, ranks, hosts):
        return ranks >= hosts and all(share <= there for share, there in zip(spread(ranks, hosts), self.slots))


class Slurm(Allocated):
    """An allocation of Slurm: srun starts the ranks."""

    def __init__(self):
        self.name = "Slurm job " + os.environ["SLURM_JOB_ID"]
        self.slots = []
        for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", os.environ.get("SLURM_TASKS_PER_NODE", "")):
            self.slots += [int(count)] * int(times or 1)
        self.slots = self.slots or [1] * int(os.environ.get("SLURM_JOB_NUM_NODES", "1"))

    def srun(self, ranks, hosts, *more):
        return ["srun", "--quiet", "--nodes=%d" % hosts, "--ntasks=%d" % ranks, "--distribution=block",
                "--ntasks-per-node=%d" % max(spread(ranks, hosts))] + list(more)

    def start(self, build, ranks, hosts, yielding):
        launcher = cached(build, "DTR_MPIEXEC") or os.environ.get("MPIEXEC", "mpiexec")
        speaks = os.environ.get("DTR_SLURM_MPI", "pmix" if is_openmpi(launcher) else "pmi2")
        environment = {k: v for k, v in os.environ.items() if not k.startswith("OMPI_MCA_")}
        environment["OMPI_MCA_mpi_yield_when_idle"] = "1" if yielding else "0"
        return self.srun(ranks, hosts, "--mpi=" + speaks), environment

    def each_host(self, build):
        return self.srun(len(self.slots), len(self.slots))


class Hostfile(Allocated):
    """Hosts as in lines of "name slots=2", "name:2", or one line for each rank: what mpirun and PBS write."""

    def __init__(self, path, name=None):
        self.name = name or "hosts of " + path
        counts = {}
        with open(path, encoding="utf-8") as source:
            for line in source:
                words = re.sub(r"#.*", "", line).replace(":", " ").replace("slots=", " ").split()
                if words:
                    if len(words) > 2 or (len(words) == 2 and not words[1].isdigit()):
                        raise ValueError("%s: \"%s\"; expected a name and perhaps slots=N" % (path, line.strip()))
                    counts[words[0]] = counts.get(words[0], 0) + (int(words[1]) if len(words) == 2 else 1)
        if not counts:
            raise ValueError("%s names no host" % path)
        self.hosts, self.slots = list(counts), list(counts.values())
        self.file = None

    def start(self, build, ranks, hosts, yielding):
        start, environment = launch(build, ranks, yielding=yielding)
        openmpi = is_openmpi(start[0])
        self.file = tempfile.NamedTemporaryFile("w", prefix="dtr-hosts-", encoding="utf-8")  # until the next start
        for host, count in zip(self.hosts, spread(ranks, hosts)):
            self.file.write("%s%s%d\n" % (host, " slots=" if openmpi else ":", count))
        self.file.flush()
        return [start[0], "--hostfile" if openmpi else "-f", self.file.name] + start[1:], environment

    def each_host(self, build):
        return self.start(build, len(self.hosts), len(self.hosts), False)[0]


def find(hostfile=None, rate=None):
    """The place. ValueError and OSError say what is wrong with a file of hosts."""
    if hostfile:
        return Hostfile(hostfile)
    if os.environ.get("SLURM_JOB_ID") and shutil.which("srun"):
        return Slurm()
    if os.environ.get("PBS_NODEFILE"):
        return Hostfile(os.environ["PBS_NODEFILE"], "PBS job " + os.environ.get("PBS_JOBID", "without a number"))
    return ThisMachine(rate)


# ---- what the hosts are ----

FACTS = r'''
import glob, json, os, platform, time
def read(path):
    try:
        return open(path).read().strip()
    except OSError:
        return ""
cpu = [l.split(":", 1)[1].strip() for l in read("/proc/cpuinfo").splitlines() if l.startswith("model name")]
memory = [int(l.split()[1]) // 1024 for l in read("/proc/meminfo").splitlines() if l.startswith("MemTotal")]
block = memoryview(bytearray(1 << 26))
best = 1e9
for _ in range(5):
    begin = time.perf_counter()
    block[: 1 << 25] = block[1 << 25 :]
    best = min(best, time.perf_counter() - begin)
links = {os.path.basename(os.path.dirname(p)): read(p) for p in glob.glob("/sys/class/net/*/speed")}
print("dtr-facts " + json.dumps({
    "host": platform.node(), "cpu": cpu[0] if cpu else platform.machine(), "cores": os.cpu_count(),
    "usable": len(os.sched_getaffinity(0)), "governor": read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor") or "unknown",
    "memory_mib": memory[0] if memory else None, "copy_gbs": round((1 << 25) / best / 1e9, 2), "kernel": platform.release(),
    "links_mbits": {name: int(speed) if speed.lstrip("-").isdigit() else None for name, speed in links.items() if name != "lo"}}))
'''


def facts(place, build):
    """One record of each host: names, processors, memory and what one core copies, links."""
    done = subprocess.run(place.each_host(build) + [sys.executable, "-c", FACTS], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          universal_newlines=True, check=False)
    found = [json.loads(line.split("dtr-facts ", 1)[1]) for line in done.stdout.splitlines() if "dtr-facts " in line]
    if done.returncode != 0 or not found:
        raise ValueError("the hosts could not be asked: status %d\n%s" % (done.returncode, done.stderr[-1000:]))
    return sorted(found, key=lambda each: each["host"])
