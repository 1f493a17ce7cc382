"""What the measuring scripts share: build folders, launchers, running a program and reading its JSON."""
import argparse
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
INSTALLED = not os.path.exists(os.path.join(ROOT, "CMakePresets.json"))  # in PREFIX/share/dtr; programs are in PREFIX/bin
SKIPPED = 77
DEBIAN_PYTHON = "/usr/bin/python3"


def need(module, package):
    """Go on where `module` is there, else under Debian's Python if it is there, else end with status 77; --help shows what it can."""
    if importlib.util.find_spec(module) is not None:
        return
    if os.path.realpath(sys.executable) != os.path.realpath(DEBIAN_PYTHON) and os.path.exists(DEBIAN_PYTHON):
        found = subprocess.run([DEBIAN_PYTHON, "-c", "import " + module], stderr=subprocess.DEVNULL, check=False)
        if found.returncode == 0:
            os.execv(DEBIAN_PYTHON, [DEBIAN_PYTHON, "-B"] + sys.argv)
    if {"-h", "--help"} & set(sys.argv[1:]):
        print("%s\n\nIts options are shown where Python has the module %s (Debian: %s)." %
              (sys.modules["__main__"].__doc__.strip(), module, package))
        sys.exit(0)
    print("skipped: Python has no module %s (Debian: %s)" % (module, package))
    sys.exit(SKIPPED)


def torch_python():
    """The Python that has torch (DTR_TORCH_PYTHON, else Debian's, else this one), or None."""
    python = os.environ.get("DTR_TORCH_PYTHON") or (DEBIAN_PYTHON if os.path.exists(DEBIAN_PYTHON) else sys.executable)
    found = subprocess.run([python, "-c", "import torch.distributed"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return python if found.returncode == 0 else None


def cached(build, name):
    """A value from a build folder's CMake cache, or None."""
    path = os.path.join(build, "CMakeCache.txt")
    if INSTALLED and not os.path.exists(path):
        return None
    if not os.path.exists(path):
        sys.exit("%s is no build folder; run ./scripts/run or cmake first, or give --build" % build)
    with open(path, encoding="utf-8") as source:
        for line in source:
            if line.startswith(name + ":"):
                return line.rstrip("\n").split("=", 1)[1]
    return None


def is_openmpi(launcher):
    told = subprocess.run([launcher, "--version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          universal_newlines=True, check=False)
    return "Open MPI" in told.stdout or "OpenRTE" in told.stdout


def launch(build, ranks, pin=False, yielding=False):
    """(command, environment) that start ranks of this machine. Open MPI's own defaults, but for what root and too few
    cores need; `yielding` makes its waits give the core away."""
    launcher = cached(build, "DTR_MPIEXEC") or os.environ.get("MPIEXEC", "mpiexec")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_MCA_", "PRTE_MCA_"))}
    if not is_openmpi(launcher):
        environment.update({} if pin else {"I_MPI_PIN": "off"})  # Intel MPI pins unasked
        return [launcher, "-n", str(ranks)] + (["-bind-to", "core"] if pin else []), environment
    environment.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                       OMPI_MCA_rmaps_base_oversubscribe="1", PRTE_MCA_rmaps_default_mapping_policy="slot:oversubscribe",
                       OMPI_MCA_mpi_yield_when_idle="1" if yielding else "0", OMPI_MCA_orte_abort_on_non_zero_status="1")
    return [launcher, "-n", str(ranks), "--bind-to", "core" if pin else "none"], environment


def tool(build, name):
    if INSTALLED and not os.path.exists(os.path.join(build, "CMakeCache.txt")):
        return os.path.join(os.path.dirname(os.path.dirname(ROOT)), "bin", name)
    folder = "ddp" if "ddp" in name else "collectives"
    return os.path.join(build, folder, "tools", name)


class Failed(Exception):
    """A program ended otherwise than well."""


def run_json(command, environment=None, timeout=600, statuses=(0,), echo=None, folder=None):
    """Run a program that writes JSON to the file named by --json, and return what it wrote. `folder` is for that file, where
    rank 0 may run on another host."""
    with tempfile.TemporaryDirectory(prefix="dtr-bench-", dir=folder) as place:
        out = os.path.join(os.path.abspath(place), "out.json")
        try:
            done = subprocess.run(command + ["--json", out], env=environment, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, universal_newlines=True, timeout=timeout, check=False)
        except subprocess.TimeoutExpired:
            raise Failed("%s: not finished after %d s" % (" ".join(command), timeout)) from None
        if echo:
            echo.write(done.stdout)
        if done.returncode not in statuses or not os.path.exists(out):
            raise Failed("%s: status %d\n%s" % (" ".join(command), done.returncode, done.stderr[-2000:]))
        with open(out, encoding="utf-8") as source:
            return json.load(source)


def parse_size(text):
    """Bytes of 8, 4K, 1MiB, 2G."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([KMG]?)(?:iB)?", text, re.IGNORECASE)
    if not found:
        raise argparse.ArgumentTypeError("the size '%s'; expected bytes, as 512, 4K or 25M" % text)
    return int(float(found.group(1)) * (1 << {"": 0, "K": 10, "M": 20, "G": 30}[found.group(2).upper()]))


def sizes(text):
    """For options: the same with commas between them."""
    return [parse_size(word) for word in text.split(",")]


def size_text(nbytes):
    for unit, bits in (("G", 30), ("M", 20), ("K", 10)):
        if nbytes >= 1 << bits and nbytes % (1 << bits) == 0:
            return "%d %siB" % (nbytes >> bits, unit)
    return "%d B" % nbytes


def numbers(text):
    """For options: whole numbers from 1 on, with commas between them."""
    if not re.fullmatch(r"0*[1-9][0-9]*(,0*[1-9][0-9]*)*", text):
        raise argparse.ArgumentTypeError("'%s'; expected whole numbers from 1 on, as 1,2,4" % text)
    return [int(word) for word in text.split(",")]


def folder_for_results(text):
    """For options: a folder, made if need be, that can be written to; known before anything is measured."""
    try:
        os.makedirs(text, exist_ok=True)
    except OSError as problem:
        raise argparse.ArgumentTypeError("cannot make the folder %s: %s" % (text, problem.strerror)) from None
    if not os.access(text, os.W_OK):
        raise argparse.ArgumentTypeError("the folder %s cannot be written to" % text)
    return text


def median(values):
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else 0.5 * (ordered[half - 1] + ordered[half])


def mpi_name(report):
    """"Open MPI 5.0.11", of what MPI itself says."""
    return " ".join(re.sub(r"Version:|\(R\)|Library| for .*|(?<=MPI )v", "", report.get("mpi", "")).split())


def short(command):
    """Without folders."""
    return " ".join(os.path.relpath(word, ROOT) if word.startswith(ROOT) else os.path.basename(word)
                    if word.startswith("/") else word for word in command)


def update(path, name, text):
    """Replace what is between the two marks of this name in a file."""
    with open(path, encoding="utf-8") as source:
        old = source.read()
    begin, end = old.find("<!-- %s begin -->\n" % name), old.find("<!-- %s end -->" % name)
    if begin < 0 or end < begin:
        sys.exit("%s: %s lacks the lines <!-- %s begin --> and <!-- %s end -->" % (name, path, name, name))
    begin = old.index("\n", begin) + 1
    with open(path, "w", encoding="utf-8") as out:
        out.write(old[:begin] + "\n" + text + "\n" + old[end:])
