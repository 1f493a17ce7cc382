"""The files of packaging/monitoring: promtool's judgement, and each query of the dashboard over a job that runs.

prometheus.py SOURCE_DIR BUILD_DIR TRAIN_GPT
"""
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request

root, build, train = sys.argv[1:4]
monitoring = os.path.join(root, "packaging", "monitoring")
LIMIT_S = 120  # until every query has data: a loaded machine, not a goal
SKIPPED = 77


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def check(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True, check=False)
    if done.returncode != 0:
        sys.exit("%s: status %d\n%s" % (" ".join(command), done.returncode, done.stdout))


def ask(port, what, **values):
    url = "http://127.0.0.1:%d/api/v1/%s?%s" % (port, what, urllib.parse.urlencode(values))
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=10) as answer:
        return json.load(answer)["data"]


def queries():
    """{title of the panel and letter: its query, for all jobs over the last ten seconds}"""
    with open(os.path.join(monitoring, "dtr-dashboard.json"), encoding="utf-8") as source:
        board = json.load(source)
    found = {}
    for panel in board["panels"]:
        for target in panel["targets"]:
            text = target["expr"].replace("$job", ".*").replace("$__rate_interval", "10s")
            found["%s %s" % (panel["title"], target["refId"])] = text
    return found


def last_words(path):
    with open(path, encoding="utf-8", errors="replace") as log:
        return log.read()[-2000:]


class Processes:
    """What was started; ended in the opposite order."""

    def __init__(self, folder):
        self.folder, self.all = folder, []

    def start(self, name, command, **more):
        log = os.path.join(self.folder, name + ".log")
        with open(log, "wb") as out:
            self.all.append((name, log, subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT,
                                                         start_new_session=True, **more)))

    def ended(self):
        """The name and last words of one that is gone, or None."""
        for name, log, process in self.all:
            if process.poll() is not None:
                return "%s ended with status %d: %s" % (name, process.returncode, last_words(log))
        return None

    def end(self):
        for _, _, process in reversed(self.all):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
        for _, _, process in self.all:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def start_all(processes, folder):
    """The port of a Prometheus that looks at a job each second."""
    texts = os.path.join(folder, "texts")
    os.mkdir(texts)
    exporter, port = free_port(), free_port()
    config = os.path.join(folder, "prometheus.yml")
    with open(config, "w", encoding="utf-8") as out:
        json.dump({"global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                   "rule_files": [os.path.join(monitoring, "dtr.rules.yml")],
                   "scrape_configs": [{"job_name": "node", "static_configs": [
                       {"targets": ["127.0.0.1:%d" % exporter]}]}]}, out)
    processes.start("exporter", [
        "prometheus-node-exporter", "--collector.disable-defaults", "--collector.textfile",
        "--collector.textfile.directory=" + texts, "--web.listen-address=127.0.0.1:%d" % exporter])
    processes.start("prometheus", [
        "prometheus", "--config.file=" + config, "--storage.tsdb.path=" + os.path.join(folder, "tsdb"),
        "--web.listen-address=127.0.0.1:%d" % port])
    env = dict(os.environ, DTR_METRICS_FILE=os.path.join(texts, "dtr.prom"), DTR_METRICS_INTERVAL="0.5",
               DTR_METRICS_KEEP="0", SLURM_JOB_ID="4711", TMPDIR=folder)
    processes.start("train", [os.path.join(root, "scripts", "mpirun"), "--build", build, "-n", "2", train, "--steps",
                              "1000000", "--width", "24", "--layers", "1", "--sample", "0"], env=env)
    return port


def without_data(port, wanted):
    empty = []
    for name, text in wanted.items():
        if not ask(port, "query", query=text)["result"]:
            empty.append(name)
    return empty


def watch(processes, port):
    """Until every query has data, or the time is over; what is wrong, or None."""
    wanted = queries()
    until, empty = time.monotonic() + LIMIT_S, "nothing was asked"
    while time.monotonic() < until:
        gone = processes.ended()
        if gone:
            return gone
        try:
            empty = without_data(port, wanted)
        except OSError as problem:  # Prometheus is not up yet
            empty = str(problem)
        if not empty:
            break
        time.sleep(0.5)
    if empty:
        return "no data: %s" % empty
    ranks = ask(port, "query", query='dtr_up{scheduler_job="4711"} == 1')["result"]
    if sorted(sample["metric"]["rank"] for sample in ranks) != ["0", "1"]:
        return "ranks of job 4711: %s" % ranks
    firing = [rule["name"] for group in ask(port, "rules")["groups"] for rule in group["rules"]
              if rule["health"] != "ok" or rule["state"] != "inactive"]
    return "rules that fire or failed: %s" % firing if firing else None


def main():
    for program in ("prometheus", "promtool", "prometheus-node-exporter"):
        if shutil.which(program) is None:
            print("skipped: there is no %s (Debian: prometheus, prometheus-node-exporter)" % program)
            return SKIPPED
    check("promtool", "check", "rules", os.path.join(monitoring, "dtr.rules.yml"))
    check("promtool", "test", "rules", os.path.join(monitoring, "dtr.rules.test.yml"))
    with tempfile.TemporaryDirectory(prefix="dtr-prometheus-") as folder:
        processes = Processes(folder)
        try:
            problem = watch(processes, start_all(processes, folder))
        finally:
            processes.end()
    print(problem or "%d queries of the dashboard have data" % len(queries()))
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main())
