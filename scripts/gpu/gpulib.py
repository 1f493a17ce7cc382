"""What the scripts for a machine with a GPU share: the bundle, steps under a limit, a table and JSON."""
import argparse
import json
import os
import signal
import subprocess
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SKIPPED = 77
# Several ranks on one GPU reach NCCL by a host id each: what they compute is proof, how long it takes is none.
HOST_ID = "sh -c 'NCCL_HOSTID=rank$OMPI_COMM_WORLD_RANK NCCL_ALGO=Ring NCCL_PROTO=Simple exec \"$0\" \"$@\"'"
TAIL = 4000  # characters of a step's output that are kept


class Steps:
    """Runs commands in the environment of a bundle and remembers how each ended."""

    def __init__(self, what, description):
        parse = argparse.ArgumentParser(prog=what, description=description)
        parse.add_argument("--bundle", default=os.path.join(ROOT, "build", "gpu"), metavar="DIR",
                           help="folder made by scripts/gpu/bundle (build/gpu)")
        parse.add_argument("--double", metavar="DIR",
                           help="run on the stand-ins in DIR (build/cuda/tests/double/lib) instead of a GPU")
        parse.add_argument("--only", metavar="TEXT", help="only steps whose name contains TEXT")
        parse.add_argument("--limit", type=float, default=60, metavar="S", help="seconds a step may take (60)")
        parse.add_argument("--json", metavar="FILE", help="also write what was found to FILE")
        self.options = parse.parse_args()
        self.what = what
        self.rows = []
        self.begun = time.time()
        self.environment = os.path.join(self.options.bundle, "env.sh")
        if not os.path.exists(self.environment):
            parse.error("%s is no bundle; make one with scripts/gpu/bundle" % self.options.bundle)
        if self.options.double and not os.path.exists(os.path.join(self.options.double, "libcudart.so.13")):
            parse.error("--double %s: no libcudart.so.13 there" % self.options.double)

    @property
    def on(self):
        return "stand-ins" if self.options.double else "GPU"

    def run(self, name, command, limit=None, expect=(0,), **settings):
        """One shell command. Gives its output, "" where --only leaves it out."""
        if self.options.only and self.options.only not in name:
            return ""
        environment = dict(os.environ, **settings)
        if self.options.double:
            environment["DTR_GPU_LIBS"] = os.path.abspath(self.options.double)
        begun, limit = time.time(), limit or self.options.limit
        status, output = execute(". '%s' && %s" % (self.environment, command), environment, limit)
        state = ("passed" if status in expect else "skipped" if status == SKIPPED
                 else "too long" if status is None else "FAILED")
        self.rows.append({"step": name, "state": state, "status": status, "seconds": round(time.time() - begun, 1),
                          "output": output[-TAIL:]})
        print("%-44s %-8s %6.1f s" % (name, state, time.time() - begun), flush=True)
        if state != "passed":
            for line in output.strip().splitlines()[-8:]:
                print("    " + line)
        return output

    def fact(self, name, value):
        """Something that is told, not judged."""
        self.rows.append({"step": name, "state": "fact", "value": value})
        print("%-44s %s" % (name, value), flush=True)

    def close(self):
        """Closing line, JSON; the exit status."""
        bad = [row["step"] for row in self.rows if row["state"] in ("FAILED", "too long")]
        judged = [row for row in self.rows if row["state"] != "fact"]
        skipped = sum(row["state"] == "skipped" for row in judged)
        print("%s, on %s: %d of %d steps passed, %d skipped, %.0f s%s" % (
            self.what, self.on, len(judged) - len(bad) - skipped, len(judged), skipped, time.time() - self.begun,
            "; failed: " + ", ".join(bad) if bad else ""))
        if self.options.json:
            with open(self.options.json, "w", encoding="utf-8") as out:
                json.dump({"what": self.what, "on": self.on, "time": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
                           "rows": self.rows}, out, indent=1)
                out.write("\n")
        return 1 if bad else 0


def execute(command, environment, limit):
    """(status, output) of a shell command; status None where the limit ended it, with all it had started."""
    process = subprocess.Popen(["bash", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               env=environment, start_new_session=True)
    try:
        output, _ = process.communicate(timeout=limit)
        return process.returncode, output.decode(errors="replace")
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)  # the launcher ends its ranks
        try:
            output, _ = process.communicate(timeout=5)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
        return None, output.decode(errors="replace")
