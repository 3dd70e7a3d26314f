"""Recorded runs for tables and figures, from run folders or from the small CSV files that collect.py makes of them."""

import csv
import json
import re
import sys
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np
from scipy.stats import bootstrap, trim_mean

COLUMNS = {  # short name: tags of progress.csv, of which a script has one
    "return": ["charts/episodic_return"],
    "success": ["charts/success"],
    "goals": ["charts/goals"],
    "episodes": ["charts/episodes"],
    "coverage": ["exploration/coverage"],
    "visited": ["exploration/unique_cells"],
    "policy_entropy": ["losses/entropy"],
    "explained_variance": ["losses/explained_variance"],
    "bonus": ["intrinsic/reward_mean"],
    "rows": ["intrinsic/num_clusters", "intrinsic/num_atoms", "intrinsic/num_cells"],
}
# flags under which a run is still the same experiment
BESIDES = {"seed", "exp_name", "run_dir", "resume", "cuda", "torch_deterministic", "track", "wandb_project_name"}
BESIDES |= {"wandb_entity", "capture_video", "save_model", "checkpoint_every"}


@dataclass
class Run:
    path: Path
    place: str  # vizdoom-sparse, habitat, ...
    name: str  # jci, rnd, ...; of a CSV file with all that its name says, such as jci_kappa_0.95
    seed: int
    flags: dict  # empty for a CSV file
    columns: dict  # "global_step", "minutes" and those of COLUMNS that there are: arrays with a value for each rollout

    def first_solved(self, target):
        """The first row at which the last 100 episodes return more than `target` on average, or None."""
        rows = np.flatnonzero((self.columns["episodes"] >= 100) & (self.columns["return"] > target))
        return rows[0] if len(rows) else None

    def at(self, column, steps, target):
        """The newest values at `steps`, an array. A solved run keeps its last; else nan where it has not got."""
        if column not in self.columns:
            return np.full(len(steps), np.nan)
        ends = self.columns["global_step"]
        newest = np.searchsorted(ends, steps, side="right") - 1
        values = np.where(newest < 0, np.nan, self.columns[column][np.maximum(newest, 0)])
        if self.first_solved(target) is None:  # a rollout may not fit in before the last step: that is the end as well
            values[steps >= 2 * ends[-1] - (ends[-2] if len(ends) > 1 else 0)] = np.nan
        return values


def read_csv(path):
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {name: np.array([float(row[name]) for row in rows]) for name in rows[0]} if rows else {}


def read_folder(path):
    about = json.loads((path / "args.json").read_text())
    args, progress, timings = about["args"], read_csv(path / "progress.csv"), read_csv(path / "timings.csv")
    num_rows = min(len(progress["global_step"]), len(timings["global_step"]))  # a killed run may have one more of one
    columns = {
        "global_step": progress["global_step"][:num_rows],
        "minutes": np.array(list(accumulate(timings["time/iteration"][:num_rows] / 60))),
    }
    for short, tags in COLUMNS.items():
        columns.update((short, progress[tag][:num_rows]) for tag in tags if tag in progress)
    place = f"vizdoom-{args['task']}" if args["env"] == "vizdoom" else args["env"]
    name = "bare" if args["exp_name"] == "ppo_lstm" else args["exp_name"].removeprefix("ppo_lstm_")
    script = Path(about["starts"][0]["command"].split()[0]).stem
    return Run(path, place, name, args["seed"], {"script": script, **args}, columns)


def read_runs(paths):
    """Folders in which no rollout is recorded yet and files other than CSV are left out, which is said."""
    runs = []
    for path in paths:
        if not path.exists():
            raise SystemExit(f"{path} does not exist: give run folders, such as runs/my_way_home/*, or CSV files.")
        if path.is_dir() and all((path / name).exists() for name in ("args.json", "progress.csv", "timings.csv")):
            runs.append(read_folder(path))
        elif path.suffix == ".csv":
            parts = path.stem.split("__")
            if len(parts) != 3 or not parts[2].isdecimal():
                raise SystemExit(f"{path}: its name should be PLACE__NAME__SEED.csv.")
            runs.append(Run(path, parts[0], parts[1], int(parts[2]), {}, read_csv(path)))
        else:
            print(f"Left out: {path}, in which no rollout is recorded.", file=sys.stderr)
    if not runs:
        raise SystemExit("No recorded run among these: give run folders, such as runs/my_way_home/*, or CSV files.")
    return runs


def as_flag(name, value):
    flag = name.replace("_", "-")
    return (f"--{flag}" if value else f"--no-{flag}") if isinstance(value, bool) else f"--{flag} {value}"


def grouped(runs, besides=()):
    """{(place, label): runs}, runs that differ only in their seed; the label is the name and the flags that differ."""
    groups = {}
    for run in runs:
        same_name = [other.flags for other in runs if (other.place, other.name) == (run.place, run.name)]
        names = [name for name in run.flags if name not in BESIDES and name not in besides]
        differing = [name for name in names if len({str(flags[name]) for flags in same_name if name in flags}) > 1]
        label = " ".join([run.name, *(as_flag(name, run.flags[name]) for name in differing)])
        groups.setdefault((run.place, label), []).append(run)
    return groups


def refuse_duplicates(runs):
    """Two runs of one seed would count as two seeds."""
    seen = {}
    for run in runs:
        if run.seed in seen:
            raise SystemExit(
                f"{seen[run.seed].path} and {run.path} are the same seed of the same experiment: give one."
            )
        seen[run.seed] = run


def interquartile_mean(values):
    """Of (seeds, points) the mean of the middle half of the seeds, and its 95 % bootstrap interval if they are several.

    Three arrays (points,); nan where a seed has no value.
    """
    mean, low, high = trim_mean(values, 0.25, axis=0), *np.full((2, values.shape[1]), np.nan)
    known = ~np.isnan(values).any(0)
    if len(values) > 1 and known.any():

        def statistic(resampled, axis):
            return trim_mean(resampled, 0.25, axis=axis)

        settings = {"vectorized": True, "n_resamples": 2000, "method": "percentile", "random_state": 1}
        interval = bootstrap((values[:, known],), statistic, axis=0, **settings).confidence_interval
        low[known], high[known] = interval.low, interval.high
    return np.where(known, mean, np.nan), low, high


def value_of(run, flag):
    """(what the run is called without the flag, the flag's value), from args.json or a CSV file's name."""
    if run.flags:
        return run.name, run.flags.get(flag)
    match = re.fullmatch(rf"(.+?)_{flag}_([^_]+)", run.name)
    if match is None:
        return run.name, None
    number = re.fullmatch(r"-?\d+(\.\d+)?", match[2])
    return match[1], float(match[2]) if number else match[2]
