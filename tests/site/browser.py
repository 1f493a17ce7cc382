"""Pages of the site in headless Chromium: no error of a script, nothing wider than a narrow screen, text that can be read on light and on
dark. Usage: browser.py HTML_DIR [SCREENSHOT_DIR]
"""
import base64
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

PAGES = ["docs/site/index", "docs/site/tutorials/training", "docs/site/howto/mixed-precision", "docs/site/reference/coll", "docs/site/reference/index",
         "docs/user-guide", "docs/measurements"]
WIDTHS = (400, 1280)

# What sticks out of the page although it is in no box that scrolls, and text of too little contrast (WCAG: 4.5, large text 3).
LOOK = r"""(() => {
  const channel = c => { c /= 255; return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; };
  const parse = s => { const m = s.match(/[\d.]+/g).map(Number); return m.length < 4 ? [...m, 1] : m; };
  const light = c => 0.2126 * channel(c[0]) + 0.7152 * channel(c[1]) + 0.0722 * channel(c[2]);
  const ground = e => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor); if (c[3] > 0.9) return c; }
                        return parse(getComputedStyle(document.body).backgroundColor); };
  const faint = {};
  let texts = 0;
  const walk = document.createTreeWalker(document.querySelector('article') || document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const e = walk.currentNode.parentElement, s = getComputedStyle(e);
    if (!walk.currentNode.data.trim() || !e.getClientRects().length || s.visibility === 'hidden' || e.closest('.headerlink, script, style')) continue;
    const a = light(parse(s.color)), b = light(ground(e)), ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    texts++;
    if (ratio < (parseFloat(s.fontSize) >= 24 ? 3 : 4.5))
      faint[e.tagName + '.' + e.className] = ratio.toFixed(1) + ' "' + walk.currentNode.data.trim().slice(0, 30) + '"';
  }
  return JSON.stringify({ wide: document.documentElement.scrollWidth, texts, faint, title: document.title,
                          dark: matchMedia('(prefers-color-scheme: dark)').matches, ground: getComputedStyle(document.body).backgroundColor });
})()"""


class Browser:
    """Chromium that talks over two pipes, one JSON a message, each ended by a zero byte."""

    def __init__(self, program, profile):
        to_read, self.to = os.pipe()
        self.back, back_write = os.pipe()
        command = [program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--user-data-dir=" + profile,
                   "--allow-file-access-from-files", "--remote-debugging-pipe", "about:blank"]
        self.process = subprocess.Popen(["bash", "-c", 'exec 3<&%d 4>&%d; exec "$@"' % (to_read, back_write), "chromium", *command],
                                        pass_fds=(to_read, back_write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(back_write)
        self.buffer, self.number, self.events, self.session = b"", 0, [], None

    def receive(self):
        while b"\0" not in self.buffer:
            more = os.read(self.back, 1 << 16)
            if not more:
                sys.exit("chromium has ended")
            self.buffer += more
        message, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(message)

    def call(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") == self.number:
                if "error" in answer:
                    sys.exit("%s: %s" % (method, answer["error"]))
                return answer["result"]
            self.events.append(answer)

    def open(self, url):
        self.events = []
        self.call("Page.navigate", url=url)
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self.receive())

    def complaints(self):
        found = []
        for event in self.events:
            params = event.get("params", {})
            if event.get("method") == "Runtime.exceptionThrown":
                found.append(params["exceptionDetails"].get("exception", {}).get("description", "exception"))
            elif event.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
                found.append(params["entry"]["text"] + " " + params["entry"].get("url", ""))
            elif event.get("method") == "Runtime.consoleAPICalled" and params["type"] in ("error", "assert"):
                found.append("console: " + " ".join(str(a.get("value", "")) for a in params["args"]))
        return found

    def attach(self):
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(domain + ".enable")

    def end(self):
        os.close(self.to)
        self.process.terminate()
        self.process.wait(timeout=60)


def look(browser, root, page, width, scheme, shots):
    where = "%s at %d px, %s" % (page, width, scheme)
    browser.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600)
    browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    browser.open("file://%s/%s.html" % (root, page))
    found = json.loads(browser.call("Runtime.evaluate", expression=LOOK)["result"]["value"])
    problems = ["%s: %s" % (where, text) for text in browser.complaints()]
    if found["wide"] > width:
        problems.append("%s: the page is %d px wide" % (where, found["wide"]))
    if found["texts"] < 5 or found["dark"] != (scheme == "dark"):
        problems.append("%s: only %d texts, dark is %s: is the check broken?" % (where, found["texts"], found["dark"]))
    dim = sum(map(float, re.findall(r"[\d.]+", found["ground"])[:3])) < 200
    if dim != (scheme == "dark"):
        problems.append("%s: the page's ground is %s" % (where, found["ground"]))
    problems += ["%s: contrast of %s is %s" % (where, element, text) for element, text in found["faint"].items()]
    if shots:
        data = browser.call("Page.captureScreenshot", format="png")["data"]
        with open(os.path.join(shots, "%s-%d-%s.png" % (page.replace("/", "_"), width, scheme)), "wb") as file:
            file.write(base64.b64decode(data))
    return problems


def main():
    root, shots = os.path.abspath(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not program:
        print("skipped: chromium is not there")
        return 77
    if shots:
        os.makedirs(shots, exist_ok=True)
    problems = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Browser(program, profile)
        try:
            browser.attach()
            for page in PAGES:
                for width in WIDTHS:
                    for scheme in ("light", "dark"):
                        problems += look(browser, root, page, width, scheme, shots)
        finally:
            browser.end()
    print("\n".join(problems) if problems else "ok: %d pages at %s px, light and dark" % (len(PAGES), " and ".join(map(str, WIDTHS))))
    return int(bool(problems))


sys.exit(main())
