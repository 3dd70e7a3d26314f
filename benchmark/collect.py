"""Keeps what tables and figures need of finished runs: a small CSV for each.

    python benchmark/collect.py runs/* --out benchmark/results

runs/ENV__NAME__SEED__TIME becomes ENV__NAME__SEED.csv; two runs of the same seed are refused.
"""

import argparse
import csv
from itertools import accumulate
from pathlib import Path

COLUMNS = {
    "return": "charts/episodic_return",
    "success": "charts/success",
    "goals": "charts/goals",
    "episodes": "charts/episodes",
    "coverage": "exploration/coverage",
    "policy_entropy": "losses/entropy",
    "explained_variance": "losses/explained_variance",
    "bonus": "intrinsic/reward_mean",
    "rows": "intrinsic/num_clusters",
}


def read(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help="run folders")
    parser.add_argument("--out", required=True, type=Path, help="the folder to write to")
    args = parser.parse_args()
    written = {}
    for run in args.runs:
        name = run.name.rsplit("__", 1)[0]
        if name in written:
            parser.error(f"{run} and {written[name]} are the same seed of the same experiment: name only one of them")
        written[name] = run
        progress, timings = read(run / "progress.csv"), read(run / "timings.csv")
        minutes = accumulate(float(row["time/iteration"]) / 60 for row in timings)
        columns = {short: tag for short, tag in COLUMNS.items() if tag in progress[0]}
        with (args.out / f"{name}.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["global_step", "minutes", *columns])
            for row, minute in zip(progress, minutes):
                rows.writerow([row["global_step"], f"{minute:.3f}", *(row[tag] for tag in columns.values())])


if __name__ == "__main__":
    main()
