"""How much the machine holds everybody up: what the judge's clock does not count.

A thread sleeps and works for a moment, again and again. What that takes longer than it should is time in which the ranks could
not run either: other programs had the processors, or the whole machine stood still.
"""
import os
import threading
import time

# Beside that: far less than the limits of operations that must end earlier, which are 600 s.
GRACE_S = float(os.environ.get("FAULT_GRACE", 10))

NAP_S = 0.02
WORK_S = 0.001  # of processor time: whoever only sleeps is let in first


class Held:
    def __init__(self):
        self.turns = []  # (end of a turn, seconds it took too long)
        threading.Thread(target=self._beat, daemon=True).start()

    def _beat(self):
        while True:
            begun = time.monotonic()
            time.sleep(NAP_S)
            worked = time.thread_time()
            while time.thread_time() < worked + WORK_S:
                pass
            ended = time.monotonic()
            self.turns.append((ended, max(0.0, ended - begun - NAP_S - WORK_S)))

    def up(self, begun, ended):
        """Seconds of [begun, ended] in which nobody could count on a processor."""
        return min(ended - begun, sum(late for end, late in self.turns if begun < end <= ended + NAP_S + late))

    def late(self, since, ended, allowed, what):
        """Where it took longer than allowed, with grace and what the machine held up: that in words."""
        took, held = ended - since, self.up(since, ended)
        if "FAULT_TIMES" in os.environ:
            print("%s: %.2f s of %g s, held up %.2f s" % (what, took, allowed, held))
        return "" if took <= allowed + GRACE_S + held else "%s took %.1f s and may take %g s, with %g s of grace and %.1f s in " \
            "which the machine held it up" % (what, took, allowed, GRACE_S, held)
