"""Keeps what tables and figures need of finished runs: a small CSV for each, at most 1000 rows.

    python benchmark/collect.py runs/my_way_home/* --out benchmark/results

The folder PLACE__NAME__SEED, or PLACE__NAME__SEED__TIME, becomes PLACE__NAME__SEED.csv; two runs of the same seed are
refused.
"""

import argparse
import csv
import math
from pathlib import Path

from run_data import read_runs


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help="run folders")
    parser.add_argument("--out", required=True, type=Path, help="the folder to write to")
    args = parser.parse_args()
    runs = {}
    for run in read_runs(args.runs):
        name = "__".join(run.path.name.split("__")[:3])
        if name.count("__") != 2:
            parser.error(f"{run.path}: its name should begin with PLACE__NAME__SEED")
        if name in runs:
            parser.error(f"{run.path} and {runs[name].path} are the same seed of the same experiment: name one of them")
        runs[name] = run
    args.out.mkdir(parents=True, exist_ok=True)
    for name, run in runs.items():
        every = math.ceil(len(run.columns["global_step"]) / 1000)
        rows = list(zip(*run.columns.values()))[::-1][::every][::-1]  # from the end: the last row stays
        with (args.out / f"{name}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(run.columns)
            for step, minutes, *values in rows:
                writer.writerow([int(step), f"{minutes:.3f}", *(f"{value:.6g}" for value in values)])


if __name__ == "__main__":
    main()
