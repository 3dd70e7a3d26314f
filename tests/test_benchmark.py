"""Tables and figures, against numbers worked out by hand or by plain loops."""

import csv
import importlib
import itertools
import json
import subprocess
import sys

import matplotlib.pyplot as plt
import numpy as np
import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "benchmark"))

import plot
import run_data

RESULTS = ROOT / "benchmark" / "results"


@pytest.fixture
def benchmark(monkeypatch, capsys):
    """Calls a script of benchmark/ as the command line does: (exit code, output, errors)."""

    def call(script, *arguments, fails=False):
        monkeypatch.setattr(sys, "argv", [script, *map(str, arguments)])
        try:
            importlib.import_module(script[: -len(".py")]).main()
            code, sentence = 0, ""
        except SystemExit as stopped:  # with a code, or with a sentence that Python prints
            code, sentence = (stopped.code, "") if isinstance(stopped.code, int) else (1, stopped.code)
        captured = capsys.readouterr()
        assert (code != 0) == fails, captured.err + sentence
        return captured.err + sentence if fails else captured.out

    return call


def read(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def write_rows(path, rows):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def write_csv(folder, name, returns, every=1000, first_episodes=100, **columns):
    """A run with a row after every `every` steps."""
    rows = []
    for number, value in enumerate(returns, 1):
        row = {"global_step": every * number, "minutes": 0.5 * number, "return": value, "goals": number}
        row |= {"episodes": first_episodes - 1 + number, "coverage": number / 10, "policy_entropy": 1.3}
        rows.append(row | {"explained_variance": 0.5} | {name: values[number - 1] for name, values in columns.items()})
    write_rows(folder / f"{name}.csv", rows)
    return folder / f"{name}.csv"


def write_folder(folder, returns, script="ppo_lstm_jci", every=1000, num_clusters=40, **flags):
    """What a run with these flags leaves behind."""
    folder.mkdir(parents=True)
    args = {"exp_name": script, "seed": 1, "env": "vizdoom", "task": "sparse", "run_dir": str(folder), "kappa": 0.987}
    args |= {"encoder": "texture", "noisy_tv": False, **flags}
    starts = [{"command": f"{script}.py --run-dir {folder}"}]
    (folder / "args.json").write_text(json.dumps({"args": args, "starts": starts, "finished": True}))
    progress, timings = [], []
    for number, value in enumerate(returns, 1):
        row = {
            "global_step": every * number,
            "charts/episodic_return": value,
            "charts/success": 0.5,
            "charts/goals": number,
        }
        row |= {
            "charts/episodes": 99 + number,
            "exploration/coverage": number / 10,
            "exploration/unique_cells": 7 * number,
        }
        row |= {"losses/entropy": 1.3, "losses/explained_variance": 0.5, "intrinsic/reward_mean": 0.01}
        progress.append(row | {"intrinsic/num_clusters": num_clusters + number})
        timings.append({"global_step": every * number, "charts/SPS": every / 30, "time/iteration": 30})
    write_rows(folder / "progress.csv", progress)
    write_rows(folder / "timings.csv", timings)
    return folder


@pytest.fixture
def rows_of(benchmark, tmp_path):
    def table(*arguments):
        benchmark("table.py", *arguments, "--out", tmp_path / "table.csv")
        return read(tmp_path / "table.csv")

    return table


def test_solved_steps_minutes_and_speed(benchmark, rows_of, tmp_path):
    write_csv(tmp_path, "vizdoom-sparse__jci__1", [0, 0.5, 0.95])  # solved after 3000 steps
    write_csv(tmp_path, "vizdoom-sparse__jci__2", [0, 0.92, 0.95])  # after 2000
    write_csv(tmp_path, "vizdoom-sparse__jci__3", [0, 0.5, 0.6, 0.7, 0.8, 0.9], every=500)  # 0.9 is not enough
    early = [0.95, 0.95, 0.5, 0.95, 0.95, 0.95]  # not before episode 100, which is the fifth row's
    write_csv(tmp_path, "vizdoom-sparse__jci__4", early, first_episodes=96)
    write_csv(tmp_path, "vizdoom-sparse__rnd__1", [0, 0, 0])
    jci, rnd = rows_of(*sorted(tmp_path.glob("*.csv")))
    assert (jci["run"], jci["solved"], jci["seeds"]) == ("jci", "3", "4")
    assert [float(jci[f"steps_{name}"]) for name in ("median", "min", "max")] == [3000, 2000, 5000]
    assert [float(jci[f"minutes_{name}"]) for name in ("median", "min", "max")] == [1.5, 1, 2.5]
    # 1000 steps in half a minute, but 500 in seed 3
    assert float(jci["steps_per_second"]) == pytest.approx(1000 / 30)
    assert (jci["goals"], jci["episodes"]) == (str(3 + 3 + 6 + 6), str(102 + 102 + 105 + 101))
    assert jci["paper"].startswith("1.5 M")
    assert (rnd["solved"], rnd["steps_median"], rnd["minutes_max"], rnd["paper"]) == ("0", "", "", "curve only")

    text = benchmark("table.py", *sorted(tmp_path.glob("vizdoom*.csv")), "--at", 2500).splitlines()
    assert text[0].startswith("| task | run | solved / seeds | thousand steps | the paper | minutes | steps/s |")
    assert text[2].startswith(
        "| vizdoom-sparse | jci | 3 / 4 | 3.0 (2.0 - 5.0) | 1.5 M (random), 1.7 M (DINO) | 1.5 (1.0 - 2.5)"
    )
    assert text[3].startswith("| vizdoom-sparse | rnd | 0 / 1 | - | curve only | - | 33 | 3 / 102 | 0.00 | 0.20 |")


def test_values_at_fixed_steps_are_aligned_by_step_and_solved_runs_keep_their_last(rows_of, tmp_path):
    a = write_csv(tmp_path, "vizdoom-sparse__jci__1", [0.1, 0.2, 0.3, 0.4], every=1000)
    b = write_csv(tmp_path, "vizdoom-sparse__jci__2", [0.5, 0.6, 0.7, 0.8, 0.85, 0.86, 0.87, 0.88], every=500)
    c = write_csv(tmp_path, "vizdoom-sparse__jci__3", [0.6, 0.95], every=1000)
    steps = (900, 1000, 2600, 4700, 5000)
    (row,) = rows_of(a, b, c, "--at", *steps)
    # newest rows: nobody's; 0.1, 0.6, 0.6; 0.2, 0.85 (at 2500), 0.95 (ended, solved); b has ended at 4500 unsolved
    expected = {1000: np.mean([0.1, 0.6, 0.6]), 2600: np.mean([0.2, 0.85, 0.95])}
    for step in steps:
        value = row[f"return_{step}"]
        assert value == "" if step not in expected else float(value) == pytest.approx(expected[step]), step
    # three seeds: all three resampled ones are the lowest in 1 of 27 cases, which is more than 2.5 %
    assert [float(row[f"return_2600_{end}"]) for end in ("low", "high")] == pytest.approx([0.2, 0.95])


def test_the_interquartile_mean_and_its_interval():
    rng = np.random.default_rng(0)
    for num_seeds, cut in ((2, 0), (3, 0), (4, 1), (5, 1), (8, 2)):
        values = rng.random((num_seeds, 3))
        mean, low, high = run_data.interquartile_mean(values)
        for point in range(3):
            assert mean[point] == pytest.approx(np.mean(sorted(values[:, point])[cut : num_seeds - cut]))
            if num_seeds <= 5:  # all possible resamples
                resampled = itertools.product(values[:, point], repeat=num_seeds)
                means = [np.mean(sorted(sample)[cut : num_seeds - cut]) for sample in resampled]
                expected = np.quantile(means, [0.025, 0.975], method="inverted_cdf")
                assert [low[point], high[point]] == pytest.approx(expected, abs=0.06)
    mean, low, high = run_data.interquartile_mean(np.array([[1.0, 2.0]]))
    assert mean.tolist() == [1, 2]
    assert np.isnan([low, high]).all(), "one seed has no interval"
    mean, low, high = run_data.interquartile_mean(np.array([[1.0, np.nan], [3.0, 4.0]]))
    assert (mean[0], low[0], high[0]) == (2, 1, 3)
    assert np.isnan([mean[1], low[1], high[1]]).all(), "a missing seed is not left out silently"


def test_run_folders_are_grouped_by_script_and_the_flags_that_differ(benchmark, tmp_path):
    paths = [
        write_folder(tmp_path / "a", [0, 0.95], seed=1),
        write_folder(tmp_path / "b", [0, 0.95], seed=2),
        write_folder(tmp_path / "c", [0, 0.5], seed=1, kappa=0.95),
        write_folder(tmp_path / "d", [0, 0.5], seed=1, noisy_tv=True),
        write_folder(tmp_path / "e", [0, 0.5], seed=1, task="very-sparse"),
        write_folder(tmp_path / "f", [0, 0.5], script="ppo_lstm_rnd", seed=1),
        write_folder(tmp_path / "g", [0, 0.5], script="ppo_lstm", seed=1),
    ]
    empty = tmp_path / "failed"
    empty.mkdir()
    benchmark("table.py", *paths, empty, "--out", tmp_path / "table.csv")
    rows = [(row["task"], row["run"], row["solved"], row["seeds"]) for row in read(tmp_path / "table.csv")]
    assert rows == [
        ("vizdoom-sparse", "jci --kappa 0.987 --no-noisy-tv", "2", "2"),
        ("vizdoom-sparse", "jci --kappa 0.95 --no-noisy-tv", "0", "1"),
        ("vizdoom-sparse", "jci --kappa 0.987 --noisy-tv", "0", "1"),
        ("vizdoom-very-sparse", "jci", "0", "1"),
        ("vizdoom-sparse", "rnd", "0", "1"),
        ("vizdoom-sparse", "bare", "0", "1"),
    ]
    benchmark("table.py", *paths, "--out", tmp_path / "table.tex")
    tex = (tmp_path / "table.tex").read_text()
    assert r"jci -{}-kappa 0.95 -{}-no-noisy-tv & 0 / 1 &" in tex
    assert {line.count("&") for line in tex.splitlines() if line.endswith(r"\\")} == {11}


def test_duplicates_and_mistakes_are_refused_in_a_sentence(benchmark, tmp_path):
    a, b = write_folder(tmp_path / "a", [0]), write_folder(tmp_path / "b", [0])
    c = write_csv(tmp_path, "no_seed", [0])
    for arguments, sentence in (
        ((a, b), f"{a} and {b} are the same seed of the same experiment"),
        ((a, a), "are the same seed of the same experiment"),
        ((tmp_path / "missing",), "missing does not exist: give run folders"),
        ((c,), "its name should be PLACE__NAME__SEED.csv"),
        ((tmp_path,), "No recorded run among these"),
    ):
        for script in ("table.py", "plot.py", "collect.py"):
            more = [] if script == "table.py" else ["--out", tmp_path / "x.png"]
            if script == "collect.py" and a in arguments:
                continue  # it goes by names
            assert sentence in benchmark(script, *arguments, *more, fails=True)
    assert "a table is a .md, .tex or .csv file" in benchmark("table.py", a, "--out", "x.html", fails=True)
    assert "a picture is a .png, .pdf or .svg" in benchmark("plot.py", a, "--out", "x.jpg", fails=True)
    assert "--no-such: leave it out" in benchmark("plot.py", a, "--against", "no-such", "--out", "x.png", fails=True)


def test_collected_runs_say_the_same_as_their_folders(benchmark, rows_of, tmp_path):
    long = np.linspace(-0.2, 0.99, 3456)  # an odd number of rows, as Habitat's rollouts of 256 steps give
    folders = [
        write_folder(tmp_path / "runs" / f"vizdoom-sparse__jci__{seed}__17000", long**power, every=2048, seed=seed)
        for seed, power in ((1, 1), (2, 2))
    ]
    benchmark("collect.py", *folders, "--out", tmp_path / "results")
    files = sorted((tmp_path / "results").iterdir())
    assert [file.name for file in files] == ["vizdoom-sparse__jci__1.csv", "vizdoom-sparse__jci__2.csv"]
    for file in files:
        assert file.stat().st_size < 200_000
        rows = read(file)
        assert 800 < len(rows) <= 1000
        assert (rows[-1]["global_step"], float(rows[-1]["minutes"])) == (str(3456 * 2048), 3456 / 2)
    (of_folders,), (of_files,) = (rows_of(*paths, "--at", 5000000) for paths in (folders, files))
    for name, value in of_folders.items():
        if value and name not in ("task", "run", "paper"):
            assert float(of_files[name]) == pytest.approx(float(value), rel=2e-3), name
    two = [write_folder(tmp_path / "more" / f"vizdoom-sparse__jci__1__{time}", [0]) for time in (17, 18)]
    assert "are the same seed" in benchmark("collect.py", *two, "--out", tmp_path, fails=True)


def test_curves(benchmark, tmp_path):
    returns = {1: [0.1, 0.2, 0.3, 0.4], 2: [0.3, 0.95], 3: [0.2, 0.3, 0.4, 0.5]}
    paths = [write_csv(tmp_path, f"vizdoom-sparse__jci__{seed}", values) for seed, values in returns.items()]
    groups = run_data.grouped(run_data.read_runs(paths))
    figure = plot.draw_curves(groups, ["return", "coverage"], target=0.9)
    (curve,) = figure.axes[0].get_lines()
    assert figure.axes[0].get_xlabel() == figure.axes[1].get_xlabel() == "thousand agent steps"
    steps, means = curve.get_xdata(), curve.get_ydata()
    assert steps[0] >= 1 and steps[-1] == 4
    for step, mean in zip(steps, means):
        newest = [values[min(int(step + 1e-9), len(values)) - 1] for values in returns.values()]
        assert mean == pytest.approx(np.mean(newest)), step
    band = figure.axes[0].collections[0].get_paths()[0].vertices
    assert (band[:, 1].min(), band[:, 1].max()) == pytest.approx((0.1, 0.95))
    plt.close(figure)
    benchmark("plot.py", *paths, "--out", *(tmp_path / f"curves.{suffix}" for suffix in ("png", "pdf", "svg")))
    magic = {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}
    for suffix, start in magic.items():
        assert (tmp_path / f"curves.{suffix}").read_bytes().startswith(start)


@pytest.mark.parametrize(
    ("last", "expected"), [(900, "agent steps"), (50_000, "thousand agent steps"), (3e6, "million agent steps")]
)
def test_units(last, expected):
    unit, name = plot.unit_of(last)
    assert name == expected
    assert 0.9 <= last / unit < 2000


@pytest.mark.parametrize("kind", ["folders", "files"])
def test_rows_and_steps_against_a_flag(kind, tmp_path):
    paths = []
    for kappa, returns, rows in ((0.9, [0, 0.95], 10), (0.8, [0, 0.5, 0.6], 5)):
        for seed in (1, 2):
            if kind == "folders":
                folder = tmp_path / f"{kappa}_{seed}"
                paths.append(
                    write_folder(folder, returns, seed=seed, kappa=kappa, num_clusters=rows + seed - len(returns))
                )
            else:
                name = f"vizdoom-sparse__jci_kappa_{kappa}__{seed}"
                paths.append(write_csv(tmp_path, name, returns, rows=[rows + seed] * len(returns)))
    figure = plot.draw_against("kappa", run_data.read_runs(paths), target=0.9)
    rows, steps = figure.axes
    assert rows.get_ylabel() == "jci"
    *dots, line = rows.get_lines()
    assert sorted((dot.get_xdata()[0], dot.get_ydata()[0]) for dot in dots) == [
        (0.8, 6),
        (0.8, 7),
        (0.9, 11),
        (0.9, 12),
    ]
    assert [line.get_xdata().tolist(), line.get_ydata().tolist()] == [[0.8, 0.9], [6.5, 11.5]]
    *dots, line = steps.get_lines()
    found = sorted((dot.get_xdata()[0], dot.get_ydata()[0], dot.get_marker()) for dot in dots)
    assert found == [(0.8, 3, "^"), (0.8, 3, "^"), (0.9, 2, "o"), (0.9, 2, "o")]
    plt.close(figure)
    figure = plot.draw_against("run", run_data.read_runs(paths), target=0.9)
    names = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert names == (
        ["jci --kappa 0.9", "jci --kappa 0.8"] if kind == "folders" else ["jci_kappa_0.9", "jci_kappa_0.8"]
    )
    plt.close(figure)


@pytest.mark.parametrize(
    "folder", sorted({file.parent for file in RESULTS.rglob("*__*.csv")}), ids=lambda path: path.name
)
def test_recorded_results_make_a_table(folder):
    files = sorted(folder.glob("*__*.csv"))
    assert all(file.stat().st_size < 200_000 for file in files)
    process = subprocess.run([sys.executable, ROOT / "benchmark" / "table.py", *files], capture_output=True, text=True)
    assert (process.returncode, process.stderr) == (0, "")
    lines = process.stdout.splitlines()
    groups = {tuple(file.stem.split("__")[:2]) for file in files}
    assert {tuple(line.split(" | ")[:2]) for line in lines[2:]} == {(f"| {place}", name) for place, name in groups}
