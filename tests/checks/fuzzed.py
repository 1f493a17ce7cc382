"""Every public function is called by a fuzz target with arguments out of the input, and every function that opens files is.

Usage: fuzzed.py GENERATED_INCLUDE_DIR
"""
import re
import sys

from common import LAYERS, prototypes, public_headers, read, tree_files, verdict

# What reads files that others may have written, and the target that feeds it. Files of /proc and of the tools' own
# arguments are not among them.
READERS = {"tensor/io/file.c": "dtr_tensor_load_npy", "tensor/io/safetensors.c": "dtr_safetensors_open",
           "ddp/zero/zero_index.c": "dtr_zero_load", "runtime/recorder/recording_reader.c": "dtr__recording_parse",
           "runtime/base/tune.c": "dtr__tune_", "runtime/diagnosis/remote_ranks.c": "dtr__remote_ranks_take"}
OTHERS = {"runtime/recorder/recorder_file.c", "runtime/base/clock.c", "runtime/control/peers.c", "runtime/memory/huge_pages.c",
          "runtime/bootstrap/bootstrap.c",
          "collectives/group/gpus.c",  # /proc and /sys, and what this process has made itself
          "runtime/recorder/evidence.c"}  # a header of fixed size, of the user's own files, whose process is asked for in /proc

problems = []
targets = {path: read(path) for path in tree_files(".c") if path.startswith("tests/fuzz/")}
every = re.sub(r"/\*.*?\*/", "", "\n".join(targets.values()), flags=re.S)
count = 0
for layer, path in public_headers(sys.argv[1]):
    for function in prototypes(path):
        count += 1
        if not re.search(r"\b%s\s*\(" % function.name, every):
            problems.append("%s is called by no fuzz target: add it to tests/fuzz/fuzz_calls*.c" % function.where)
for path in tree_files(".c"):
    if path.split("/")[0] not in LAYERS or "/tools/" in path:
        continue
    if re.search(r'\b(fopen\([^;]*"r|O_RDONLY|json_loadb?f?\()', read(path)) and path not in READERS and path not in OTHERS:
        problems.append("%s reads files: give it a fuzz target and list it in tests/checks/fuzzed.py" % path)
for path, function in READERS.items():
    if function not in every:
        problems.append("%s: no fuzz target calls %s" % (path, function))
if count < 200 or len(targets) < 8:
    problems.append("found %d public functions and %d files of targets: is the check broken?" % (count, len(targets)))
verdict(problems, "%d public functions and %d readers of files in fuzz targets" % (count, len(READERS)))
