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

FIXED_FLAGS = ("env", "task", "scene", "seed", "encoder", "hash_bits")  # of a run, for good


def parse_args(args_class, description):
    """Flags from the command line; when a run goes on (--resume, --run-dir) its own args.json gives the defaults."""
    folder_parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    folder_parser.add_argument("--resume")
    folder_parser.add_argument("--run-dir", "--run_dir")
    folders = folder_parser.parse_known_args()[0]
    if folders.resume and folders.run_dir:
        raise SystemExit("--resume and --run-dir both name the run's folder: give one of them.")
    folder = folders.resume or folders.run_dir
    args_file = Path(folder or "") / "args.json"
    if folders.resume and not args_file.is_file():
        raise SystemExit(f"--resume {folder}: no args.json in it; give the folder of a run, such as runs/NAME.")
    if not folder or not args_file.is_file():
        return tyro.cli(args_class, description=description)
    saved = json.loads(args_file.read_text())["args"]
    known = {field.name for field in dataclasses.fields(args_class) if field.init} - {"resume", "run_dir"}
    defaults = args_class(**{name: value for name, value in saved.items() if name in known})
    args = tyro.cli(args_class, default=defaults, description=description)
    for name in FIXED_FLAGS:
        if getattr(args, name, None) != getattr(defaults, name, None):
            flag, value = f"--{name.replace('_', '-')}", getattr(defaults, name)
            raise SystemExit(f"{flag} cannot change when a run goes on: leave it out ({value} in {folder}).")
    return args


class RunFolder:
    """`log` writes progress.csv, timings.csv and TensorBoard's events, `save` and `load` keep checkpoints.

    A checkpoint holds the state_dict() of every part of `saved`, a dictionary.
    """

    def __init__(self, args, saved):
        if args.track and importlib.util.find_spec("wandb") is None:
            raise SystemExit("--track needs the package wandb, which is not installed: type pip install wandb.")
        place = f"vizdoom-{args.task}" if args.env == "vizdoom" else args.env
        new_name = f"{place}__{args.exp_name}__{args.seed}__{int(time.time())}"
        self.path = Path(args.resume or args.run_dir or f"runs/{new_name}")
        self.args, self.saved = args, saved
        self.tracker = None

    def start_logging(self, global_step, device):
        """Makes the folder and opens the logs at `global_step`, without what a killed run wrote after its last save."""
        if self.args.run_dir:
            self.path.mkdir(parents=True, exist_ok=True)
        elif not self.args.resume:
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
                resume="allow" if global_step else None,
                id="-".join(self.path.parts[-2:]),
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
        self._write_about({"args": vars(self.args), "starts": [*starts, this_start], "finished": False})
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
        """Brings every part back from the newest checkpoint that can be read; returns its global step, 0 if new."""
        files = [self.path / name for name in ("checkpoint.pt", "checkpoint.previous.pt")]
        files = [file for file in files if file.exists()]
        if not files and not self.args.resume:
            return 0
        for file in files:
            try:
                state = torch.load(file, map_location=device, weights_only=True)
            except (RuntimeError, EOFError, OSError, pickle.UnpicklingError, zipfile.BadZipFile) as error:
                print(f"{file} is damaged ({type(error).__name__}); trying the one before.", file=sys.stderr)
                continue
            global_step = state.pop("global_step")
            if state.keys() != self.saved.keys():
                raise SystemExit(f"--resume {self.path}: another script began this run; go on with that one.")
            if self.args.run_dir and self._is_finished():
                print(f"{self.path} is finished, after {global_step:,} steps; a larger --total-timesteps goes on.")
                raise SystemExit(0)
            for name, part in self.saved.items():
                rates = [group["lr"] for group in getattr(part, "param_groups", [])]
                part.load_state_dict(state[name])
                for group, rate in zip(getattr(part, "param_groups", []), rates):
                    group["lr"] = rate  # the flag's: it can be typed again
            return global_step
        raise SystemExit(f"--resume {self.path}: no readable checkpoint in it; start again without --resume.")

    def _is_finished(self):
        """Under the same flags: with more steps, for example, it can go on."""
        about = json.loads((self.path / "args.json").read_text())
        folder = {"resume": None, "run_dir": None}
        return about.get("finished") and {**about["args"], **folder} == {**vars(self.args), **folder}

    def _write_about(self, about):
        self.about = about
        _write_atomically(self.path / "args.json", lambda path: path.write_text(json.dumps(about, indent=2) + "\n"))

    def close(self, finished):
        self._write_about({**self.about, "finished": finished})
        self.writer.close()
        if self.tracker is not None:
            self.tracker.finish()


class StopOnSignal:
    """Ctrl-C and SIGTERM only set `requested`, so that the training loop stops at a safe place and saves.

    A second Ctrl-C ends the program at once.
    """

    def __init__(self):
        self.requested, self.exit_code = False, 0
        signal.signal(signal.SIGINT, self._stop)
        signal.signal(signal.SIGTERM, self._stop)

    def _stop(self, signum, frame):
        self.requested, self.exit_code = True, 128 + signum
        signal.signal(signal.SIGINT, signal.default_int_handler)
        print("\nStopping: saving a checkpoint first (Ctrl-C again to leave at once).", file=sys.stderr)

    def exit_if_requested(self):
        """With 130 after Ctrl-C, 143 after SIGTERM, as in shells: a scheduler sees that the run is not finished."""
        if self.requested:
            raise SystemExit(self.exit_code)


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
