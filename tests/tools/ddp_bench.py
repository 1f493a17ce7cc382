"""dtr-ddp-bench: built-in models, lists from files, table and JSON of a small run, refusals."""
import json
import os
import sys
import tempfile

from tool import expect, number, refuses, rows, run, strict, verdict, versions

mpiexec, program = sys.argv[1:3]
pair = [mpiexec, "-n", "2", program]
folder = tempfile.TemporaryDirectory(prefix="dtr-ddp-bench-")
MODELS = (("gpt2", 148, 124439808, "h.11.mlp.c_proj.weight 3072 768"),
          ("resnet50", 161, 25557032, "layer4.0.downsample.0.weight 2048 1024 1 1"))


def file(name, text):
    path = os.path.join(folder.name, name)
    with open(path, "w", encoding="utf-8") as out:
        out.write(text)
    return path


def elements(line):
    product = 1
    for size in line.split()[1:]:
        product *= int(size)
    return product


def check_models():
    for name, tensors, total, line in MODELS:
        lines = run([program, "--model", name, "--list"], (0,)).splitlines()
        expect(len(lines) == tensors, "%s has %d tensors, expected %d", name, len(lines), tensors)
        expect(sum(elements(text) for text in lines) == total, "%s: wrong number of elements", name)
        expect(line in lines, "%s lacks %s", name, line)
    path = file("small", "# a comment\nweight 30 4x5\n\n  scale  # a scalar\n")
    lines = run([program, "--model", path, "--list"], (0,)).splitlines()
    expect(lines == ["weight 30 4 5", "scale"], "list from a file: %s", lines)


def check_run():
    model = file("model", "".join("layer%d.weight 64 %d\n" % (i, 16 + i) for i in range(12)))
    out = os.path.join(folder.name, "out.json")
    common = ["--model", model, "--bucket", "16K", "--first-bucket", "4K", "--steps", "3", "--runs", "2"]
    text = run(pair + common + ["--compute-ms", "1", "--json", out], (0,))
    table = rows(text)
    expect(len(table) == 6, "%d rows, expected 3 in each of 2 runs:\n%s", len(table), text)
    for row in table:
        expect(number(row[-1]) is not None and number(row[-1]) > 0, "no ratio in the last column of %s", row)
    expect("allocations per steady step" in text or "san/" in program,
           "no count of allocations:\n%s", text)
    with open(out, encoding="utf-8") as source:
        report = json.load(source)
    expect(report["tensors"] == 12 and report["ranks"] == 2, "head of the JSON: %s", report)
    expect([one["run"] for one in report["runs"]] == [1, 2], "runs in the JSON: %s", report["runs"])
    for one in report["runs"]:
        for key in ("sync_ms", "mpi_sync_ms", "sync_ratio", "exposed_ms", "hidden", "exposed_ratio_inline"):
            expect(isinstance(one.get(key), (int, float)), "%s in the JSON: %s", key, one.get(key))
        expect(one["wrong"] == 0 and one["buckets"] > 1, "results or buckets: %s", one)
        expect(one["copied_in_bytes"] == one["copied_out_bytes"] == 0, "views are copied: %s", one)
    # Every way of giving and reducing gradients runs; only the sync phase without compute.
    for more in (["--grads", "copy"], ["--reduce-dtype", "bf16"], ["--hook", "fp16"], ["--hook", "q8"], ["--no-peer"]):
        text = run(pair + common + ["--runs", "1", "--compute", "none", "--no-gauge", "--json", out] + more, (0,))
        expect(len(rows(text)) == 1, "%s: rows of\n%s", more, text)
        with open(out, encoding="utf-8") as source:
            json.load(source)
    run(pair + common + ["--compute", "cpu", "--compute-ms", "1", "--no-gauge"], (0,))
    strict(pair + common + ["--compute", "none", "--runs", "1", "--json", out], out, lambda report: report["runs"][0]["void"])


def check_refusals():
    refuses([program] + ["--bucket", "many"], "--bucket", "\"many\"")
    refuses([program] + ["--steps", "0"], "--steps", "\"0\"")
    refuses([program] + ["--hook", "zip"], "--hook", "\"zip\"")
    refuses([program] + ["--grads", "view", "--reduce-dtype", "bf16"], "--grads copy")
    refuses([program] + ["--bogus"], "--bogus")
    refuses([program] + ["surplus"], "\"surplus\"")
    refuses([program] + ["--model", os.path.join(folder.name, "none")], "none", "No such file")
    refuses([program] + ["--list", "--model", file("bad", "a 3\nb 0\n")], "line 2")
    refuses([program] + ["--list", "--model", file("empty", "# nothing\n")], "no parameter")
    refuses([program] + ["--json", os.path.join(folder.name, "none", "out")], "cannot write")


versions(program)
check_models()
check_run()
check_refusals()
verdict()
