import atexit
import contextlib
import csv
import os
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))


@pytest.fixture
def train(tmp_path):
    """Runs a script as a user would, in an empty folder; returns the run's folder, or the process if it may fail."""

    def run(script, *flags, check=True):
        command = [sys.executable, str(ROOT / script), *map(str, flags)]
        process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
        if not check:
            return process
        assert process.returncode == 0, process.stderr[-3000:]
        assert sorted(os.listdir(tmp_path)) == ["runs"], "nothing but the run folder may be left behind"
        return max((tmp_path / "runs").iterdir(), key=lambda path: path.stat().st_mtime)

    return run


def read_progress(run_folder):
    with open(run_folder / "progress.csv", newline="") as file:
        return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]


@contextlib.contextmanager
def as_program(folder, *arguments):
    """What a program finds in a process of its own: a folder, a command line, handlers and exit functions."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    at_exit = []
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", list(map(str, arguments)))
        for stream in ("stdout", "stderr"):
            patch.setattr(sys, stream, getattr(sys, stream))  # a run wraps them
        patch.setattr(atexit, "register", at_exit.append)
        try:
            yield
        except BaseException:
            for function in reversed(at_exit):
                function()
            raise
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)


@pytest.fixture
def train_here(tmp_path):
    """Runs a script in this process, in an empty folder, and returns its variables as training left them."""

    def run(script, *flags):
        with as_program(tmp_path, script, *flags):
            return runpy.run_path(str(ROOT / script), run_name="__main__")

    return run
