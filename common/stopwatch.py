"""Where the time of an iteration goes."""

import time


class Stopwatch:
    """Seconds spent in the parts of an iteration: `watch.lap("env")` charges the time since the last lap to "env"."""

    def __init__(self):
        self.seconds = {}
        self.last = time.perf_counter()

    def lap(self, part):
        now = time.perf_counter()
        self.seconds[part] = self.seconds.get(part, 0.0) + now - self.last
        self.last = now

    def timings(self, num_steps):
        """What the iteration took as a whole, steps per second, and the share of each part."""
        total = sum(self.seconds.values())
        shares = {f"time/{part}": seconds / total for part, seconds in self.seconds.items()}
        return {"charts/SPS": num_steps / total, "time/iteration": total, **shares}
