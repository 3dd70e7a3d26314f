"""Learning curves of the CSV files that collect.py wrote.

    python benchmark/plot.py benchmark/results/vizdoom-sparse__*.csv --out curves.png

Runs that differ only in their seed have one colour: a thin line each, and a thick one for the median. A run that ended
because it was solved keeps its last values in the median.
"""

import argparse
import csv
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

PANELS = {
    "return": "extrinsic return (mean of the last 100 episodes)",
    "coverage": "share of the reachable map visited",
    "policy_entropy": "entropy of the policy (nats)",
    "explained_variance": "explained variance of the value",
}
LIMITS = {"return": (-0.3, 1.05), "coverage": (0, 1), "explained_variance": (-0.2, 1)}


def read(path):
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {name: np.array([float(row[name]) for row in rows]) for name in rows[0]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, help="ENV__NAME__SEED.csv")
    parser.add_argument("--out", required=True, help="the picture to write, such as curves.png")
    parser.add_argument("--title", default="")
    args = parser.parse_args()
    groups = {}
    for file in args.files:
        groups.setdefault(file.stem.split("__")[1], []).append(read(file))

    last_step = max(run["global_step"][-1] for runs in groups.values() for run in runs)
    grid = np.linspace(0, last_step, 300)
    unit, unit_name = (1e6, "million") if last_step >= 2e6 else (1e3, "thousand")
    figure, axes = plt.subplots(2, 2, figsize=(11, 7), sharex=True, layout="constrained")
    for axis, (column, label) in zip(axes.flat, PANELS.items()):
        for number, (name, runs) in enumerate(groups.items()):
            for run in runs:
                axis.plot(run["global_step"] / unit, run[column], color=f"C{number}", alpha=0.35, linewidth=0.8)
            held = [np.interp(grid, run["global_step"], run[column]) for run in runs]
            longest = max(run["global_step"][-1] for run in runs)
            shown = grid <= longest
            median = np.median(held, axis=0)
            axis.plot(grid[shown] / unit, median[shown], color=f"C{number}", linewidth=2, label=f"{name} ({len(runs)})")
        axis.set_title(label, fontsize=10)
        axis.grid(alpha=0.3)
        if column in LIMITS:
            axis.set_ylim(*LIMITS[column])
    for axis in axes[1]:
        axis.set_xlabel(f"{unit_name} agent steps")
    axes[0, 0].legend(title="run (seeds)", fontsize=8)
    figure.suptitle(args.title)
    figure.savefig(args.out, dpi=110)


if __name__ == "__main__":
    main()
