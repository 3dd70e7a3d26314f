"""Learning curves of runs, from their progress.csv files.

Usage: python benchmark/plot.py --out curves.png "Just Cluster It=runs/A" "PPO-LSTM=runs/B" "PPO-LSTM=runs/C"

Runs with the same name are one curve: the mean, with a band from the lowest to the highest.
"""

import argparse
import csv
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

PANELS = {
    "charts/episodic_return": "extrinsic return (last 100 episodes)",
    "exploration/coverage": "share of the reachable map visited",
    "losses/entropy": "entropy of the policy (nats)",
    "intrinsic/reward_mean": "mean bonus, each method on its own scale",
}
LIMITS = {"charts/episodic_return": (-0.3, 1.05), "exploration/coverage": (0, 1)}  # all that MyWayHome can give


def read(path, max_steps):
    path = Path(path)
    with open(path / "progress.csv" if path.is_dir() else path, newline="") as file:
        rows = [row for row in csv.DictReader(file) if int(row["global_step"]) <= max_steps]
    return {name: np.array([float(row[name]) for row in rows]) for name in rows[0]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="NAME=RUN", help="a run folder or a progress.csv, with a name")
    parser.add_argument("--out", required=True, help="the PNG to write")
    parser.add_argument("--title", default="ViZDoom MyWayHome-Sparse")
    parser.add_argument("--max-steps", type=int, default=sys.maxsize, help="leave out what comes later")
    args = parser.parse_args()
    curves = {}
    for run in args.runs:
        name, found, path = run.partition("=")
        if not found or not Path(path).exists():
            parser.error(f"{run}: write NAME=RUN, where RUN is a run folder or a progress.csv that exists")
        curves.setdefault(name, []).append(read(path, args.max_steps))

    figure, axes = plt.subplots(2, 2, figsize=(11, 7), sharex=True, layout="constrained")
    for axis, (tag, label) in zip(axes.flat, PANELS.items()):
        for number, (name, runs) in enumerate(curves.items()):
            runs = [run for run in runs if tag in run]
            if not runs:
                continue
            length = min(len(run[tag]) for run in runs)
            steps = runs[0]["global_step"][:length] / 1e6
            values = np.stack([run[tag][:length] for run in runs])
            axis.plot(steps, values.mean(axis=0), color=f"C{number}", label=name)
            if len(runs) > 1:
                axis.fill_between(steps, values.min(axis=0), values.max(axis=0), color=f"C{number}", alpha=0.2)
        axis.set_title(label, fontsize=10)
        axis.grid(alpha=0.3)
        if tag == "intrinsic/reward_mean":
            axis.set_yscale("log")
        if tag in LIMITS:
            axis.set_ylim(*LIMITS[tag])
    for axis in axes[1]:
        axis.set_xlabel("million agent steps")
    axes[0, 0].legend()
    figure.suptitle(args.title)
    figure.savefig(args.out, dpi=110)


if __name__ == "__main__":
    main()
