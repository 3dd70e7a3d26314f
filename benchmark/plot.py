"""Learning curves of runs, or what comes out against a flag.

    python benchmark/plot.py runs/my_way_home/vizdoom-sparse__* --out curves.png curves.pdf curves.svg
    python benchmark/plot.py benchmark/results/vizdoom-sparse__*.csv --out curves.png      # CSV files of collect.py
    python benchmark/plot.py runs/ablation_kappa/* --against kappa --out kappa.png         # rows and steps to solve
    python benchmark/plot.py runs/noisy_tv/* --against run --out noisy_tv.png              # the same, side by side

Runs that differ only in their seed are one curve: their interquartile mean (the mean, if there are fewer than four) and
its 95 % bootstrap interval, a band. A run that was solved keeps its last values; a curve ends where one of its other
seeds does. With --against every seed is a dot, the line goes through the medians, and a triangle is a run that was not
solved by then.
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
    return next(
        (size, f"{name} agent steps")
        for size, name in ((1e6, "million"), (1e3, "thousand"), (1, ""))
        if steps >= 2 * size or size == 1
    )


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
    """Rows at the end and steps to solve, each against the flag's values."""
    series = {}  # (place, label): {value of the flag: runs}
    for (place, label), group in grouped(runs, besides=(flag,)).items():
        for run in group:
            name, value = (run.name, label) if flag == "run" else value_of(run, flag)
            if value is None:
                raise SystemExit(f"{run.path} does not say its --{flag.replace('_', '-')}: leave it out.")
            if flag == "run":
                line = (place, "")
            else:
                line = (place, label if run.flags else name)
            series.setdefault(line, {}).setdefault(value, []).append(run)
    values = {value for groups in series.values() for value in groups}
    is_number = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)
    ticks = sorted(values) if is_number else list(dict.fromkeys(v for groups in series.values() for v in groups))
    place_of = {value: value if is_number else number for number, value in enumerate(ticks)}

    most_steps = max(run.columns["global_step"][-1] for run in runs)
    unit, unit_name = unit_of(most_steps)
    figure, axes = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    for number, ((place, label), groups) in enumerate(series.items()):
        colour, name = f"C{number}", label_of(place, label, series)
        medians = {"rows": {}, "steps": {}}
        for value, group in groups.items():
            refuse_duplicates(group)
            x = place_of[value]
            for run in group:
                solved = run.first_solved(target)
                steps = run.columns["global_step"][-1 if solved is None else solved]
                rows = run.columns["rows"][-1] if "rows" in run.columns else np.nan
                style = {"color": colour, "linestyle": "", "markersize": 5}
                axes[0].plot(x, rows, marker="o", **style)
                hollow = {"marker": "^", "fillstyle": "none"} if solved is None else {"marker": "o"}
                axes[1].plot(x, steps / unit, **style, **hollow)
                medians["rows"].setdefault(x, []).append(rows)
                medians["steps"].setdefault(x, []).append(steps / unit)
        for axis, by_place in zip(axes, medians.values()):
            places = sorted(by_place)
            line = [np.median(by_place[x]) for x in places]
            axis.plot(places, line, color=colour, alpha=0.6, linestyle="-" if is_number else "", label=name)
    axes[0].set_ylabel("rows of the table at the end")
    axes[1].set_ylabel(f"{unit_name} until solved (triangle: not solved by then)")
    for axis in axes:
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
        axis.set_xlabel("" if flag == "run" else flag)
        if not is_number:
            axis.set_xticks(range(len(ticks)), [str(tick) for tick in ticks], rotation=20, ha="right")
            axis.set_xlim(-0.5, len(ticks) - 0.5)
    if len(series) > 1:
        axes[0].legend(fontsize=8)
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
