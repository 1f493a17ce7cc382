"""The scripts for a machine with a GPU, run on the stand-ins: their table, JSON, limit and exit status."""
import json
import os
import subprocess
import sys
import tempfile

scripts, build, launcher, sanitizers = sys.argv[1:5]
double = os.path.join(build, "tests", "double", "lib")
folder = tempfile.TemporaryDirectory(prefix="dtr-gpu-")
found = os.path.join(folder.name, "found.json")


def expect(condition, what, *values):
    if not condition:
        sys.exit("failed: " + what % values)


def make_bundle():
    """What scripts/gpu/bundle makes, of the programs as they lie in the build folder."""
    os.symlink(os.path.join(build, "tests", "gpu"), os.path.join(folder.name, "lib"))
    with open(os.path.join(folder.name, "env.sh"), "w", encoding="utf-8") as env:
        env.write("export DTR_GPU=%s PATH=%s:$PATH LD_LIBRARY_PATH=$DTR_GPU_LIBS:%s\n" % (folder.name, ":".join(
            os.path.join(build, path) for path in ("tests/gpu", "tests/double", "tests", "runtime/tools", "collectives/tools", "ddp/tools")), build))
        env.write("dtr_gpu_mpirun() { local n=$1; shift; %s -n $n \"$@\"; }\n" % launcher)


def run(script, *options, status=0, **settings):
    done = subprocess.run([sys.executable, "-B", os.path.join(scripts, script), "--bundle", folder.name, "--double", double,
                           "--json", found] + list(options), env=dict(os.environ, **settings), check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
    expect(done.returncode == status, "%s %s: status %s, not %d:\n%s", script, options, done.returncode, status, done.stdout)
    with open(found, encoding="utf-8") as source:
        report = json.load(source)
    return done.stdout, {row["step"]: row for row in report["rows"]}, report


def main():
    make_bundle()
    text, rows, report = run("facts")
    expect(report["on"] == "stand-ins" and "on stand-ins" in text, "a result that does not say where it is from: %s", text)
    expect(float(rows["copy d2h"]["value"].split()[0]) > 0, "no speed: %s", rows)
    expect(rows["NCCL, 2 ranks, a host id each"]["state"] == "passed", "NCCL: %s", rows)
    text, rows, _ = run("conformance", "--only", "CUDA runtime", "--limit", "200")
    expect(list(rows) == ["CUDA runtime"] and "1 of 1 steps passed, 0 skipped" in text, "one step: %s", text)
    text, rows, _ = run("conformance", "--only", "aborts, DDP, optimizers, 2", "--limit", "200", DTR_FAKE_CUDA_UUID="one")
    expect(len(rows) == 1 and "1 of 1 steps passed, 0 skipped" in text, "the library on one GPU: %s", text)
    text, rows, _ = run("conformance", "--only", "ddp delayed", "--limit", "200", DTR_FAKE_CUDA_UUID="one")
    expect(len(rows) == 3 and "3 of 3 steps passed, 0 skipped" in text, "programs that are watched: %s", text)
    expect(not any("cannot be preloaded" in row["output"] for row in rows.values()), "nobody watches: %s", rows)
    text, rows, _ = run("conformance", "--only", "device ready", status=1, DTR_FAKE_CUDA_NDEV="0")
    expect(rows["device ready"]["state"] == "FAILED" and "failed: device ready" in text, "a failure: %s", text)
    text, rows, _ = run("conformance", "--only", "CUDA runtime", "--limit", "1", status=1,
                        DTR_FAKE_CUDA_HANG="cudaMalloc:1")
    expect(rows["CUDA runtime"]["state"] == "too long", "a step that hangs: %s", text)
    if "thread" not in sanitizers:  # it reports MPI's own threads in the tools
        check_measure()


def check_measure():
    text, _, report = run("measure", "--limit", "120")
    expect("| 2 | host cost added to NCCL by allreduce" in text and report["on"] == "stand-ins", "the table: %s", text)
    shown = {row["value"] for row in report["rows"] if "floor" in row}
    expect(shown == {"dry run"}, "a figure from the stand-ins: %s", shown)
    steps = [row for row in report["rows"] if row["step"].startswith("PyTorch")]
    expect(len(steps) == 5 and all(row["state"] == "skipped" and "not measured: " in row["output"] for row in steps),
           "a baseline that does not say why it is not there: %s", text)
    left = [row["step"] for row in report["rows"] if "floor" in row and row["value"] == "not measured"]
    expect(not left, "not measured: %s in %s", left, text)


main()
