"""Learning curves of runs, or what comes out against a flag.

    python benchmark/plot.py runs/my_way_home/vizdoom-sparse__* --out curves.png curves.pdf curves.svg
    python benchmark/plot.py benchmark/results/vizdoom-sparse__*.csv --out curves.png      # CSV files of collect.py
    python benchmark/plot.py runs/ablation_kappa/* --against kappa --out kappa.png         # rows and steps to solve
    python benchmark/plot.py runs/noisy_tv/* --against run --out noisy_tv.png              # the same, side by side

Runs that differ only in their seed are one curve: their interquartile mean (the mean, if there are fewer than four) and
its 95 % bootstrap interval, a band. A run that was solved keeps its last values; a curve ends where one of its other
seeds does. With --against every seed is a dot, or a triangle if it was not solved, and a line goes through the medians.
"""

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from run_data import COLUMNS, grouped, interquartile_mean, read_runs, refuse_duplicates, value_of

LABELS = {
    "return": "extrinsic return (mean of the last 100 episodes)",
    "success": "share of the last 100 episodes with a goal",
    "goals": "goals reached so far",
    "episodes": "episodes so far",
    "coverage": "share of the reachable map visited",
    "visited": "cells visited",
    "policy_entropy": "entropy of the policy (nats)",
    "explained_variance": "explained variance of the value",
    "bonus": "intrinsic reward of a step, before it is scaled",
    "rows": "rows of the table",
}
LIMITS = {"return": (-0.3, 1.05), "success": (0, 1), "coverage": (0, 1), "explained_variance": (-0.2, 1)}


def unit_of(steps):
    """What an axis that goes up to `steps` counts in."""
    if steps >= 2e6:
        return 1e6, "million agent steps"
    return (1e3, "thousand agent steps") if steps >= 2e3 else (1, "agent steps")


def label_of(place, label, groups):
    return label if len({place for place, _ in groups}) == 1 else f"{place}: {label}"


def draw_curves(groups, columns, target):
    runs = [run for group in groups.values() for run in group]
    last_step = max(run.columns["global_step"][-1] for run in runs)
    grid = np.linspace(0, last_step, 201)
    unit, unit_name = unit_of(last_step)
    width = min(len(columns), 2)
    height = -(-len(columns) // width)
    size = (5.5 * width, 3.5 * height)
    figure, axes = plt.subplots(height, width, figsize=size, sharex=True, squeeze=False, layout="constrained")
    colours = plt.get_cmap("tab10" if len(groups) <= 10 else "tab20").colors
    for axis, column in zip(axes.flat, columns):
        for colour, ((place, label), group) in zip(colours * len(groups), groups.items()):
            values = np.array([run.at(column, grid, target) for run in group])  # (seeds, grid)
            shown = ~np.isnan(values).any(0)
            if not shown.any():
                continue
            mean, low, high = interquartile_mean(values[:, shown])
            name = f"{label_of(place, label, groups)} ({len(group)})"
            axis.plot(grid[shown] / unit, mean, color=colour, linewidth=1.8, label=name)
            axis.fill_between(grid[shown] / unit, low, high, color=colour, alpha=0.15, linewidth=0)
        axis.set_title(LABELS[column], fontsize=10)
        axis.grid(alpha=0.3)
        axis.set_xlim(0, last_step / unit)
        axis.set_ylim(*LIMITS.get(column, (None, None)))
    for axis in axes[-1]:
        axis.set_xlabel(unit_name)
    for axis in axes.flat[len(columns) :]:
        axis.axis("off")
    handles, names = max((axis.get_legend_handles_labels() for axis in axes.flat), key=lambda legend: len(legend[1]))
    figure.legend(handles, names, title="run (seeds)", fontsize=8, loc="outside right upper")
    return figure


def draw_against(flag, runs, target):
    """Rows at the end and steps to solve, each against the flag's values: a line of panels for each series of runs."""
    series = {}  # title: {value of the flag: runs}
    groups = grouped(runs, besides=(flag,))
    for (place, label), group in groups.items():
        for run in group:
            name, value = ("", label) if flag == "run" else value_of(run, flag)
            if value is None:
                raise SystemExit(f"{run.path} does not say its --{flag.replace('_', '-')}: leave it out.")
            title = label_of(place, label if run.flags and name else name, groups)
            series.setdefault(title, {}).setdefault(value, []).append(run)

    unit, unit_name = unit_of(max(run.columns["global_step"][-1] for run in runs))
    size = (10, 3.5 * len(series))
    figure, axes = plt.subplots(len(series), 2, figsize=size, squeeze=False, layout="constrained")
    for (rows_axis, steps_axis), (title, by_value) in zip(axes, series.items()):
        is_number = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in by_value)
        values = sorted(by_value) if is_number else list(by_value)
        medians = []
        for x, value in zip(values if is_number else range(len(values)), values):
            refuse_duplicates(by_value[value])
            results = []
            for run in by_value[value]:
                solved = run.first_solved(target)
                steps = run.columns["global_step"][-1 if solved is None else solved] / unit
                rows = run.columns["rows"][-1] if "rows" in run.columns else np.nan
                rows_axis.plot(x, rows, "C0o")
                marker, fill = ("^", "none") if solved is None else ("o", "full")
                steps_axis.plot(x, steps, color="C0", marker=marker, fillstyle=fill)
                results.append((rows, steps))
            medians.append((x, *np.median(results, axis=0)))
        if is_number:
            xs, rows, steps = zip(*medians)
            rows_axis.plot(xs, rows, "C0", alpha=0.5)
            steps_axis.plot(xs, steps, "C0", alpha=0.5)
        rows_axis.set_title("rows of the table at the end", fontsize=10)
        steps_axis.set_title(f"{unit_name} until solved (triangle: not solved by then)", fontsize=10)
        rows_axis.set_ylabel(title)
        for axis in (rows_axis, steps_axis):
            axis.set_ylim(0, 1.1 * axis.dataLim.y1 if np.isfinite(axis.dataLim.y1) else 1)
            axis.grid(alpha=0.3)
            axis.set_xlabel("" if flag == "run" else flag)
            if not is_number:
                axis.set_xticks(range(len(values)), map(str, values), rotation=20, ha="right")
                axis.set_xlim(-0.5, len(values) - 0.5)
    return figure


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help="run folders, or files PLACE__NAME__SEED.csv")
    parser.add_argument("--out", required=True, nargs="+", type=Path, help="pictures to write: .png, .pdf, .svg")
    parser.add_argument("--columns", nargs="+", choices=list(COLUMNS), help="what to draw, a panel each")
    parser.add_argument("--against", metavar="FLAG", help="draw rows and steps to solve against a flag, or against run")
    parser.add_argument("--target", type=float, default=0.9, help="a run that returns more than this is solved")
    parser.add_argument("--title", default="")
    args = parser.parse_args()
    for out in args.out:
        if out.suffix not in (".png", ".pdf", ".svg"):
            parser.error(f"--out {out}: a picture is a .png, .pdf or .svg file")
    runs = read_runs(args.runs)
    groups = grouped(runs)
    for group in groups.values():
        refuse_duplicates(group)
    if args.against:
        figure = draw_against(args.against.lstrip("-").replace("-", "_"), runs, args.target)
    else:
        has_reward = any(run.columns["goals"][-1] > 0 for run in runs)
        columns = args.columns or [
            "return" if has_reward else "visited",
            "coverage",
            "policy_entropy",
            "explained_variance",
        ]
        figure = draw_curves(groups, columns, args.target)
    figure.suptitle(args.title)
    for out in args.out:
        figure.savefig(out, dpi=130)


if __name__ == "__main__":
    main()
