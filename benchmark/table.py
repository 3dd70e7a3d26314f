"""Who solves what, and how fast: a Markdown table of the CSV files that collect.py wrote.

    python benchmark/table.py benchmark/results/vizdoom-sparse__*.csv

Runs that differ only in their seed are one row. Solved: the mean return of the last 100 episodes exceeds --target; the
steps and minutes are those until then, as a median and, in brackets, from the first to the last of the solved seeds.
"""

import argparse
import csv
from pathlib import Path

import numpy as np


def read(path):
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {name: np.array([float(row[name]) for row in rows]) for name in rows[0]}


def first_solved(run, target):
    """The row at which the run is solved, or None."""
    solved = np.flatnonzero((run["episodes"] >= 100) & (run["return"] > target))
    return solved[0] if len(solved) else None


def spread(values, form):
    if len(values) == 0:
        return "-"
    low, middle, high = (form.format(value) for value in (min(values), np.median(values), max(values)))
    return middle if len(values) == 1 else f"{middle} ({low} - {high})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, help="ENV__NAME__SEED.csv")
    parser.add_argument("--target", type=float, default=0.9, help="a run that returns more than this is solved")
    args = parser.parse_args()
    groups = {}
    if len({file.name for file in args.files}) < len(args.files):
        parser.error("the same seed of the same run is named twice")
    for file in args.files:
        groups.setdefault(tuple(file.stem.split("__")[:2]), []).append(read(file))
    print("| task | run | solved / seeds | thousand steps | minutes | steps/s | goals / episodes | coverage |")
    print("|---|---|---|---|---|---|---|---|")
    for (task, name), runs in groups.items():
        ends = [(run, first_solved(run, args.target)) for run in runs]
        steps = [run["global_step"][end] / 1000 for run, end in ends if end is not None]
        minutes = [run["minutes"][end] for run, end in ends if end is not None]
        speed = [run["global_step"][-1] / run["minutes"][-1] / 60 for run in runs]
        goals = f"{sum(run['goals'][-1] for run in runs):.0f} / {sum(run['episodes'][-1] for run in runs):.0f}"
        cells = [f"{len(steps)} / {len(runs)}", spread(steps, "{:.0f}"), spread(minutes, "{:.1f}")]
        cells += [f"{np.median(speed):.0f}", goals, f"{np.median([run['coverage'][-1] for run in runs]):.2f}"]
        print(f"| {task} | {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
