"""The folder a run leaves behind: args.json, CSV files and TensorBoard events; one process at a time writes to it."""

import atexit
import errno
import fcntl
import itertools
import json
import math
import os
import platform
import subprocess
import sys
import threading
import time
from importlib.metadata import version
from pathlib import Path

import imageio.v2 as imageio
import torch
from torch.utils.tensorboard import SummaryWriter


class RunFolder:
    """Makes the run's folder and keeps other processes out of it; `log` writes the CSV files and TensorBoard's events.

    Where writing fails while the run is under way, training goes on and it is tried again.
    """

    def __init__(self, args):
        self.args = args
        try:
            self.path = Path(args.resume or args.run_dir or _make_folder(args))
            self.path.mkdir(parents=True, exist_ok=True)
            self.lock = _lock(self.path)
        except OSError as error:
            raise SystemExit(f"The run's folder cannot be made or written ({error}).") from error
        self.waiting = {"progress.csv": [], "timings.csv": []}  # rows that could not be written yet
        self.tracker = self.writer = self.problem = None
        threading.excepthook = _ignore_disk_errors

    def start_logging(self, global_step, device):
        """Opens the logs at `global_step`, without what a killed run wrote after its last save."""
        before = self._read_about()
        if self.args.run_dir and before.get("finished") and _flags(before["args"]) == _flags(vars(self.args)):
            print(f"{self.path} is finished, after {global_step:,} steps; a larger --total-timesteps goes on.")
            raise SystemExit(0)
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
        starts = before["starts"] if isinstance(before.get("starts"), list) else []
        try:
            for name in self.waiting:
                self._cut(name, global_step)
            self._write_about({"args": vars(self.args), "starts": [*starts, this_start], "finished": False})
            self._open_writer(global_step + 1 if starts else None)
        except OSError as error:
            raise SystemExit(f"{self.path} cannot be written ({error}).") from error
        flags = "\n".join(f"|{name}|{value}|" for name, value in vars(self.args).items())
        self.writer.add_text("flags", f"|flag|value|\n|-|-|\n{flags}", len(starts))  # one for each start
        atexit.register(self.close)
        print(f"{self.path} on {device}", file=sys.stderr)

    def log(self, metrics, global_step, timings):
        """`metrics` depend on nothing but the seed: equal runs have equal progress.csv files. `timings` do not."""
        for name, columns in (("progress.csv", metrics), ("timings.csv", timings)):
            self.waiting[name].append([str(global_step), *(f"{value:.6g}" for value in columns.values())])
            self._try(self._append_waiting, name, ["global_step", *columns])
        # before the first episode has ended its numbers are nan: nothing to draw
        numbers = {tag: value for tag, value in {**metrics, **timings}.items() if not math.isnan(value)}
        self._try(self._add_events, lambda: [self.writer.add_scalar(tag, numbers[tag], global_step) for tag in numbers])

    def log_images(self, images, global_step):
        """{tag: (H, W, 3) uint8}; the newest ones are in the folder as well, tag some/name as name.png."""
        for tag, image in images.items():
            png = imageio.imwrite("<bytes>", image, format="png")
            self._try(_write_atomically, self.path / f"{tag.split('/')[-1]}.png", png)
        self._try(
            self._add_events,
            lambda: [self.writer.add_image(tag, images[tag], global_step, dataformats="HWC") for tag in images],
        )

    def close(self, finished=False):
        self._try(self._write_about, {**self.about, "finished": finished})
        if self.writer is not None:
            self._try(self.writer.close)
        if self.tracker is not None:
            self.tracker.finish()
        self.writer = self.tracker = None
        self.lock.close()
        atexit.unregister(self.close)
        print(f"The run is in {self.path}; --resume {self.path} goes on with it.")

    def _read_about(self):
        """What args.json says of the starts so far; parse_args has found it in order."""
        file = self.path / "args.json"
        return json.loads(file.read_text()) if file.exists() else {}

    def _write_about(self, about):
        self.about = about
        _write_atomically(self.path / "args.json", json.dumps(about, indent=2).encode() + b"\n")

    def _try(self, write, *args):
        """A full disk must not end a run of hours."""
        try:
            write(*args)
        except OSError as error:
            if str(error) != self.problem:  # else it has been said
                print(f"\nThe logs cannot be written ({error}): training goes on, and so do tries.", file=sys.stderr)
            self.problem = str(error)

    def _append_waiting(self, name, columns):
        """Appends all rows that wait, or none of them and no part of a row."""
        header, rows = (_to_csv(lines).encode() for lines in ([columns], self.waiting[name]))
        with (self.path / name).open("a+b", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            if size and file.read(len(header)) != header:
                raise SystemExit(f"{file.name} has other columns than this run: move it away, then --resume again.")
            rest = rows if size else header + rows
            try:
                while rest:
                    rest = rest[file.write(rest) :]
            except OSError:
                file.truncate(size)
                raise
        self.waiting[name].clear()

    def _add_events(self, add):
        """Adds to TensorBoard's events; after a failure to a new file, as the old one may end in half an event."""
        try:
            if self.writer is None:
                self._open_writer()
            add()
            self.writer.flush()
        except OSError:
            self.writer = None
            raise

    def _open_writer(self, purge_step=None):
        if not self.path.is_dir():  # it was deleted, and TensorBoard would make it again
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self.path))
        try:
            self.writer = SummaryWriter(str(self.path), purge_step=purge_step)
        except OSError:
            for file in self.path.glob("events.out.tfevents.*"):
                if file.stat().st_size == 0:
                    file.unlink()
            raise

    def _cut(self, name, global_step):
        """Drops the rows after `global_step`, and what a crash has left of a row."""
        file = self.path / name
        if not file.exists():
            return
        rows = [line.split(",") for line in file.read_text(errors="replace").replace("\0", "").strip().splitlines()]
        if rows and rows[0][0] != "global_step":
            raise SystemExit(f"{file} is not the log of a run: move it away, then --resume again.")
        whole = [row for row in rows[1:] if len(row) == len(rows[0]) and row[0].isdecimal()]
        _write_atomically(file, _to_csv(rows[:1] + [row for row in whole if int(row[0]) <= global_step]).encode())


def read_about(folder):
    """What args.json says, and the name of the script that began the run."""
    file = Path(folder) / "args.json"
    try:
        about = json.loads(file.read_text())
        script = Path(about["starts"][0]["command"].split(".py")[0]).name
    except FileNotFoundError as error:
        raise SystemExit(f"{folder}: no args.json in it; give the folder of a run, such as runs/NAME.") from error
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise SystemExit(f"{file} is damaged or another program's.") from error
    return about, f"{script}.py"


def _git_commit():
    script_folder = Path(sys.argv[0]).resolve().parent
    result = subprocess.run(["git", "-C", str(script_folder), "rev-parse", "HEAD"], capture_output=True, text=True)
    return result.stdout.strip() or None


def _to_csv(rows):
    return "".join(",".join(row) + "\r\n" for row in rows)


def _write_atomically(path, content):
    temporary = path.with_name(path.name + ".new")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def _flags(args):
    """Those that say what is trained, not where."""
    return {name: value for name, value in args.items() if name not in ("resume", "run_dir")}


def _make_folder(args):
    place = f"vizdoom-{args.task}" if args.env == "vizdoom" else args.env
    name = f"{place}__{args.exp_name}__{args.seed}__{int(time.time())}"
    for number in itertools.count(2):
        path = Path("runs") / name
        try:
            path.mkdir(parents=True)
            return path
        except FileExistsError:  # another run started in the same second
            name = f"{name.removesuffix(f'_{number - 1}')}_{number}"


def _lock(path):
    """An open file that keeps other processes out of the folder until this one ends, however it ends."""
    file = (path / "lock").open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise SystemExit(f"--resume {path}: this run is under way already; stop it first, or wait.") from error
    except OSError:
        pass  # a file system without locks
    return file


def _ignore_disk_errors(args):
    """TensorBoard writes in a thread; what goes wrong there comes back at the next call."""
    if not isinstance(args.exc_value, OSError):
        threading.__excepthook__(args)
