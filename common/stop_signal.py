"""What the outside does to a run: it asks it to stop, closes its terminal, or stops reading what it prints."""

import os
import signal
import sys


class StopOnSignal:
    """Ctrl-C, SIGTERM and SIGHUP (a closed terminal) only set `requested`, so that the training loop stops at a safe
    place and saves. From now on output that nobody can read any more is dropped instead of ending the run.

    A second Ctrl-C ends the program at once.
    """

    def __init__(self):
        self.requested, self.exit_code = False, 0
        sys.stdout, sys.stderr = Unbreakable(sys.stdout), Unbreakable(sys.stderr)
        signal.signal(signal.SIGINT, self._stop)
        signal.signal(signal.SIGTERM, self._stop)
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup: not even a closed terminal ends the run
            signal.signal(signal.SIGHUP, self._stop)

    def _stop(self, signum, frame):
        self.requested, self.exit_code = True, 128 + signum
        signal.signal(signal.SIGINT, signal.default_int_handler)
        print("\nStopping: saving a checkpoint first (Ctrl-C again to leave at once).", file=sys.stderr)

    def exit_if_requested(self):
        """With 130 after Ctrl-C, 143 after SIGTERM, as in shells: a scheduler sees that the run is not finished."""
        if self.requested:
            raise SystemExit(self.exit_code)


class Unbreakable:
    """An output stream whose end may break: a closed pipe or terminal, a log file on a full disk."""

    def __init__(self, stream):
        self.stream = stream or open(os.devnull, "w")  # None: it was closed before the program started

    def __getattr__(self, name):
        return getattr(self.stream, name)

    def write(self, text):
        try:
            return self.stream.write(text)
        except OSError:
            return len(text)

    def flush(self):
        try:
            self.stream.flush()
        except OSError:
            pass
