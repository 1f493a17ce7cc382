"""dtr-ddp-bench --device cuda: right averages through NCCL and through stage, the host's share, compute on the device, refusals.
Runs on the stand-ins, so times are never looked at."""
import json
import os
import sys
import tempfile

from tool import expect, refuses, rows, run, verdict

mpiexec, program = sys.argv[1:3]
folder = tempfile.TemporaryDirectory(prefix="dtr-ddp-bench-")
model, out = os.path.join(folder.name, "model"), os.path.join(folder.name, "out.json")
with open(model, "w", encoding="utf-8") as to:
    to.write("".join("layer%d.weight 64 %d\nlayer%d.bias 7\n" % (i, 16 + i, i) for i in range(8)))


def bench(ranks, backend, *options):
    """Rows and JSON of one run; its results were right, else it would have ended with status 1."""
    os.environ["DTR_BACKEND"] = backend
    text = run([mpiexec, "-n", str(ranks), program, "--device", "cuda", "--model", model, "--bucket", "16K", "--first-bucket",
                "4K", "--steps", "2", "--no-gauge", "--strict", "--json", out] + list(options), (0,))
    del os.environ["DTR_BACKEND"]
    if not text:
        return [], {"runs": [{}], "device": "", "backend": ""}
    with open(out, encoding="utf-8") as source:
        return rows(text), json.load(source)


for ranks, backend, more in ((1, "cuda:nccl", ["--grads", "copy"]), (2, "cuda:nccl", []), (2, "cuda:stage", ["--grads", "copy"])):
    table, report = bench(ranks, backend, *more)
    one = report["runs"][0]
    expect(report["backend"] == backend and "stand-in" in report["device"], "where it ran: %s", report)
    expect(len(table) == 2 and one.get("wrong") == 0 and one.get("buckets", 0) > 1, "rows and results: %s %s", table, one)
    expect((one.get("collectives", 0) > 0) == (ranks > 1), "collectives of %d ranks: %s", ranks, one)
    for key in ("host_us", "host_us_per_tensor", "sync_ms", "compute_ms", "alone_ms", "exposed_ms", "hidden"):
        expect(isinstance(one.get(key), (int, float)), "%s in the JSON: %s", key, one)
    expect(one.get("host_us", 0) > 0 and one.get("alone_ms", 0) > 0, "no time of the host or of compute: %s", one)
table, _ = bench(1, "cuda:nccl", "--compute", "none")
expect(len(table) == 1, "sync alone: %s", table)
refuses([program, "--device", "gpu"], "--device", "\"gpu\"")
os.environ["DTR_FAKE_CUDA_NDEV"] = "0"
run([mpiexec, "-n", "1", program, "--device", "cuda", "--model", model], (1,))
verdict()
