"""The folder a run leaves behind: args.json, CSV files, TensorBoard events and checkpoints that survive a crash."""

import argparse
import csv
import dataclasses
import importlib.util
import itertools
import json
import math
import os
import pickle
import platform
import signal
import subprocess
import sys
import time
import zipfile
from importlib.metadata import version
from pathlib import Path

import imageio.v2 as imageio
import torch
import tyro
from torch.utils.tensorboard import SummaryWriter

FIXED_FLAGS = ("env", "task", "scene", "encoder", "hash_bits")  # a run means nothing under another value of these


def parse_args(args_class, description):
    """Flags from the command line; with `--resume FOLDER` the run's own args.json gives the defaults."""
    resume_parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    resume_parser.add_argument("--resume")
    resume = resume_parser.parse_known_args()[0].resume
    if resume is None:
        return tyro.cli(args_class, description=description)
    args_file = Path(resume) / "args.json"
    if not args_file.is_file():
        raise SystemExit(f"--resume {resume}: no args.json in it; give the folder of a run, such as runs/NAME.")
    saved = json.loads(args_file.read_text())["args"]
    known = {field.name for field in dataclasses.fields(args_class) if field.init}
    defaults = args_class(**{name: value for name, value in saved.items() if name in known})
    args = tyro.cli(args_class, default=defaults, description=description)
    for name in FIXED_FLAGS:
        if getattr(args, name, None) != getattr(defaults, name, None):
            flag, value = f"--{name.replace('_', '-')}", getattr(defaults, name)
            raise SystemExit(f"{flag} cannot change when a run goes on: leave it out ({value} in {resume}).")
    return args


class RunFolder:
    """`log` writes progress.csv, timings.csv and TensorBoard's events, `save` and `load` keep checkpoints.

    A checkpoint holds the state_dict() of every part of `saved`, a dictionary.
    """

    def __init__(self, args, run_name, saved):
        if args.track and importlib.util.find_spec("wandb") is None:
            raise SystemExit("--track needs the package wandb, which is not installed: type pip install wandb.")
        self.path = Path(args.resume) if args.resume else Path("runs") / run_name
        self.args, self.saved = args, saved
        self.tracker = None

    def start_logging(self, global_step, device):
        """Makes the folder and opens the logs at `global_step`, without what a killed run wrote after its last save."""
        if not self.args.resume:
            name = self.path.name
            for number in itertools.count(2):
                try:
                    self.path.mkdir(parents=True)
                    break
                except FileExistsError:  # another run started in the same second
                    self.path = self.path.with_name(f"{name}_{number}")
        if self.args.track:
            import wandb

            self.tracker = wandb.init(
                project=self.args.wandb_project_name,
                entity=self.args.wandb_entity,
                name=self.path.name,
                dir=str(self.path),
                config=vars(self.args),
                sync_tensorboard=True,
                resume="allow" if self.args.resume else None,
                id=self.path.name,
            )
        this_start = {
            "command": " ".join(sys.argv),
            "global_step": global_step,
            "git_commit": _git_commit(),
            "device": str(device),
            "python": platform.python_version(),
            "torch": torch.__version__,  # unlike the package's version, it names the build: 2.13.0+cu130
            "versions": {name: version(name) for name in ("numpy", "scikit-learn", "gymnasium")},
        }
        args_file = self.path / "args.json"
        starts = json.loads(args_file.read_text())["starts"] if args_file.exists() else []
        about = {"args": vars(self.args), "starts": [*starts, this_start]}
        _write_atomically(args_file, lambda path: path.write_text(json.dumps(about, indent=2) + "\n"))
        for file in (self.path / "progress.csv", self.path / "timings.csv"):
            if file.exists():
                with file.open(newline="") as lines:
                    rows = list(csv.reader(lines))
                kept = rows[:1] + [row for row in rows[1:] if len(row) == len(rows[0]) and int(row[0]) <= global_step]
                _write_atomically(file, lambda path, kept=kept: _write_rows(path, kept))
        self.writer = SummaryWriter(str(self.path), purge_step=global_step + 1 if global_step else None)
        flags = "\n".join(f"|{name}|{value}|" for name, value in vars(self.args).items())
        self.writer.add_text("flags", f"|flag|value|\n|-|-|\n{flags}", global_step)
        print(f"{self.path} on {device}", file=sys.stderr)

    def log(self, metrics, global_step, timings):
        """`metrics` depend on nothing but the seed: equal runs have equal progress.csv files. `timings` do not."""
        for tag, value in {**metrics, **timings}.items():
            if not math.isnan(value):  # nothing to draw before the first episode has ended
                self.writer.add_scalar(tag, value, global_step)
        for name, columns in (("progress.csv", metrics), ("timings.csv", timings)):
            is_new = not (self.path / name).exists()
            with (self.path / name).open("a", newline="") as file:
                rows = csv.writer(file)
                if is_new:
                    rows.writerow(["global_step", *columns])
                rows.writerow([global_step, *(f"{value:.6g}" for value in columns.values())])

    def log_image(self, tag, image, global_step):
        """image: (H, W, 3) uint8; the newest one is in the folder as well, tag some/name as name.png."""
        self.writer.add_image(tag, image, global_step, dataformats="HWC")
        imageio.imwrite(self.path / f"{tag.split('/')[-1]}.png", image)

    def save(self, global_step):
        """Replaces checkpoint.pt in one step and keeps the one before as checkpoint.previous.pt."""
        current = self.path / "checkpoint.pt"
        new = self.path / "checkpoint.new.pt"
        state = {name: part.state_dict() for name, part in self.saved.items()}
        with new.open("wb") as file:
            torch.save({"global_step": global_step, **state}, file)
            file.flush()
            os.fsync(file.fileno())
        if current.exists():
            os.replace(current, self.path / "checkpoint.previous.pt")
        os.replace(new, current)

    def load(self, device):
        """Brings every part back from the newest checkpoint that can be read; returns its global step."""
        for name in ("checkpoint.pt", "checkpoint.previous.pt"):
            file = self.path / name
            if not file.exists():
                continue
            try:
                state = torch.load(file, map_location=device, weights_only=True)
            except (RuntimeError, EOFError, OSError, pickle.UnpicklingError, zipfile.BadZipFile) as error:
                print(f"{file} is damaged ({type(error).__name__}); trying the one before.", file=sys.stderr)
                continue
            global_step = state.pop("global_step")
            if state.keys() != self.saved.keys():
                raise SystemExit(f"--resume {self.path}: another script began this run; go on with that one.")
            for name, part in self.saved.items():
                rates = [group["lr"] for group in getattr(part, "param_groups", [])]
                part.load_state_dict(state[name])
                for group, rate in zip(getattr(part, "param_groups", []), rates):
                    group["lr"] = rate  # the flag's: it can be typed again
            return global_step
        raise SystemExit(f"--resume {self.path}: no readable checkpoint in it; start again without --resume.")

    def close(self):
        self.writer.close()
        if self.tracker is not None:
            self.tracker.finish()


class StopOnSignal:
    """Ctrl-C and SIGTERM only set `requested`, so that the training loop stops at a safe place and saves.

    A second Ctrl-C ends the program at once.
    """

    def __init__(self):
        self.requested = False
        signal.signal(signal.SIGINT, self._stop)
        signal.signal(signal.SIGTERM, self._stop)

    def _stop(self, signum, frame):
        self.requested = True
        signal.signal(signal.SIGINT, signal.default_int_handler)
        print("\nStopping: saving a checkpoint first (Ctrl-C again to leave at once).", file=sys.stderr)


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


def _git_commit():
    script_folder = Path(sys.argv[0]).resolve().parent
    result = subprocess.run(["git", "-C", str(script_folder), "rev-parse", "HEAD"], capture_output=True, text=True)
    return result.stdout.strip() or None


def _write_rows(path, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)


def _write_atomically(path, write):
    temporary = path.with_name(path.name + ".new")
    write(temporary)
    os.replace(temporary, path)
