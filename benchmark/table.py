"""Who solves what, and how fast: a table of runs, beside the paper's numbers.

    python benchmark/table.py runs/my_way_home/*                          # run folders: Markdown on the screen
    python benchmark/table.py benchmark/results/vizdoom-*.csv             # the same of CSV files that collect.py wrote
    python benchmark/table.py runs/my_way_home/* --out table.tex --at 100000 250000

Runs that differ only in their seed are one row; of run folders the flags that differ are named, CSV files go by their
names. Solved: the mean return of the last 100 episodes exceeds --target; steps and minutes are those until then, as a
median and, in brackets, from the first to the last of the solved seeds. Return and coverage after a number of steps are
interquartile means over seeds with 95 % bootstrap intervals; of fewer than four seeds it is the mean. A solved run
keeps its last values. "-": not every seed got so far.
"""

import argparse
import csv
import sys
from pathlib import Path

import numpy as np
from run_data import grouped, interquartile_mean, read_runs, refuse_duplicates

PAPER = {  # steps to converge on MyWayHome, distinct cells visited in Habitat
    ("vizdoom-sparse", "jci"): "1.5 M (random), 1.7 M (DINO)",
    ("vizdoom-sparse", "recode"): "3.8 M (random), 5 M (DINO)",
    ("vizdoom-sparse", "e3b"): "slower, no number",
    ("vizdoom-sparse", "rnd"): "curve only",
    ("vizdoom-sparse", "icm"): "5 M or more",
    ("vizdoom-sparse", "ride"): "5 M or more",
    ("vizdoom-very-sparse", "jci"): "1.8 M (random), 1.9 M (DINO)",
    ("vizdoom-very-sparse", "recode"): "does not converge",
    ("vizdoom-very-sparse", "rnd"): "curve only",
    ("vizdoom-very-sparse", "icm"): "5 M or more",
    ("vizdoom-very-sparse", "ride"): "5 M or more",
    ("habitat", "jci"): "14 k cells (random), 17 k (DINO)",
    ("habitat", "recode"): "nearly 15 k cells",
    ("habitat", "e3b"): "7 k cells",
    ("habitat", "rnd"): "5 k cells",
    ("habitat", "icm"): "curve only",
    ("habitat", "ride"): "curve only",
}
MEASURES = {"return": "{:.2f}", "coverage": "{:.2f}", "visited": "{:.0f}"}


def fixed_steps(runs):
    """The longest run's length, to one digit and downwards, and a fifth of it."""
    ends = max((run.columns["global_step"] for run in runs), key=lambda steps: steps[-1])
    length = int(ends[-1] + ends[0]) - 1  # the rollout that did not fit in counts: 499,712 steps are 500,000
    digit = 10 ** (len(str(length)) - 1)
    whole = length // digit * digit
    return [whole // 5, whole]


def numbers(place, label, runs, steps, target):
    """A row of the table as numbers, None where there is none."""
    solved = [(run, run.first_solved(target)) for run in runs]
    solved = [(run, row) for run, row in solved if row is not None]
    row = {"task": place, "run": label, "solved": len(solved), "seeds": len(runs)}
    for name, column in (("steps", "global_step"), ("minutes", "minutes")):
        values = [run.columns[column][end] for run, end in solved]
        for statistic in (np.median, min, max):
            row[f"{name}_{statistic.__name__}"] = float(statistic(values)) if values else None
    row["paper"] = PAPER.get((place, label.split("_")[0].split()[0]))
    row["steps_per_second"] = (
        float(np.median([r.columns["global_step"][-1] / r.columns["minutes"][-1] for r in runs])) / 60
    )
    for name in ("goals", "episodes"):
        row[name] = sum(int(run.columns[name][-1]) for run in runs)
    for measure in MEASURES:
        values = np.array([run.at(measure, np.array(steps), target) for run in runs])  # (seeds, steps)
        for step, *statistics in zip(steps, *interquartile_mean(values)):
            for name, value in zip(("", "_low", "_high"), statistics):
                row[f"{measure}_{step}{name}"] = None if np.isnan(value) else float(value)
    return row


def thousands(steps):
    return f"{steps / 1000:.0f}" if steps >= 10000 else f"{steps / 1000:.1f}"


def spread(row, name, form):
    middle, low, high = (row[f"{name}_{statistic}"] for statistic in ("median", "min", "max"))
    if middle is None:
        return "-"
    return form(middle) if row["solved"] == 1 else f"{form(middle)} ({form(low)} - {form(high)})"


def estimate(row, key, form):
    if row[key] is None:
        return "-"
    middle, low, high = (
        None if row[key + name] is None else form.format(row[key + name]) for name in ("", "_low", "_high")
    )
    return middle if low is None else f"{middle} [{low}, {high}]"


def cells(row, steps):
    """{column: text}"""
    texts = {"task": row["task"], "run": row["run"], "solved / seeds": f"{row['solved']} / {row['seeds']}"}
    texts["thousand steps"] = spread(row, "steps", thousands)
    texts["the paper"] = row["paper"] or "-"
    texts["minutes"] = spread(row, "minutes", "{:.1f}".format)
    texts["steps/s"] = f"{row['steps_per_second']:.0f}"
    texts["goals / episodes"] = f"{row['goals']} / {row['episodes']}"
    for measure, form in MEASURES.items():
        for step in steps:
            texts[f"{measure} at {thousands(step)} k"] = estimate(row, f"{measure}_{step}", form)
    return texts


def markdown(rows):
    lines = [rows[0], ["---"] * len(rows[0]), *(row.values() for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def latex(rows):
    def escaped(text):
        for character in "&%$#_{}":
            text = text.replace(character, f"\\{character}")
        return text.replace("--", "-{}-")  # or LaTeX makes a dash of it

    lines = [" & ".join(map(escaped, line)) + r" \\" for line in (rows[0], *(row.values() for row in rows))]
    layout = "l" * len(rows[0])
    body = "\n".join([r"\hline", lines[0], r"\hline", *lines[1:], r"\hline"])
    return f"\\begin{{tabular}}{{{layout}}}\n{body}\n\\end{{tabular}}\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help="run folders, or files PLACE__NAME__SEED.csv")
    parser.add_argument("--target", type=float, default=0.9, help="a run that returns more than this is solved")
    parser.add_argument(
        "--at", type=int, nargs="+", metavar="STEPS", help="[default: a fifth and all of the longest run]"
    )
    parser.add_argument("--out", type=Path, help="write to a file: .md, .tex, or .csv with every number by itself")
    args = parser.parse_args()
    suffix = args.out.suffix if args.out else ".md"
    if suffix not in (".md", ".tex", ".csv"):
        parser.error(f"--out {args.out}: a table is a .md, .tex or .csv file")
    runs = read_runs(args.runs)
    steps = args.at or fixed_steps(runs)
    rows = []
    for (place, label), group in grouped(runs).items():
        refuse_duplicates(group)
        rows.append(numbers(place, label, group, steps, args.target))
    file = args.out.open("w", newline="") if args.out else sys.stdout
    if suffix == ".csv":
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    else:
        texts = [cells(row, steps) for row in rows]
        if not any(row["task"] == "habitat" for row in rows):  # the paper's measure there
            texts = [{name: text for name, text in row.items() if not name.startswith("visited")} for row in texts]
        file.write(markdown(texts) if suffix == ".md" else latex(texts))


if __name__ == "__main__":
    main()
