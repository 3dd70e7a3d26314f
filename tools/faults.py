"""What is too slow for the tests: kills, damage, load and length, on the real program in ViZDoom. docs/reliability.md

Usage:
    python tools/faults.py                   # all of it, one after the other; hours on two cores
    python tools/faults.py kills damage      # only these
    python tools/faults.py length --steps 200000
"""

import argparse
import csv
import glob
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
JCI = [sys.executable, str(ROOT / "ppo_lstm_jci.py")]
SMALL = ["--num-envs", "8", "--num-steps", "32", "--minibatch-size", "128", "--checkpoint-every", "1"]  # 256 steps
ENDLESS = ["--total-timesteps", str(10**9)]


def rows(run, name="progress.csv"):
    with open(run / name, newline="") as file:
        return [{tag: float(value) for tag, value in row.items()} for row in csv.DictReader(file) if None not in row]


def start(*flags, **options):
    return subprocess.Popen([*JCI, *flags], stdout=subprocess.DEVNULL, **{"stderr": subprocess.DEVNULL, **options})


def wait_for_rows(run, count, process, seconds=600):
    deadline = time.time() + seconds
    while not (run / "progress.csv").exists() or len(rows(run)) < count:
        assert process.poll() is None, f"the run ended by itself with {process.returncode}"
        assert time.time() < deadline, "the run did not get there in time"
        time.sleep(0.1)


def litter():
    return set(glob.glob(f"{tempfile.gettempdir()}/my-way-home-*")) | set(glob.glob("/dev/shm/ViZDoom*"))


def kills(folder, args):
    """kill -9 at random moments of one run in which episodes end; every count is what the steps account for"""
    rng, run, before, episodes = random.Random(1), folder / "run", litter(), 0
    for number in range(20):
        process = start("--run-dir", str(run), *SMALL, *ENDLESS)
        known = len(rows(run)) if (run / "progress.csv").exists() else 0
        wait_for_rows(run, known + rng.randrange(3), process)  # 0: while it starts
        time.sleep(rng.uniform(0, 3))
        process.kill()
        process.wait()
        episodes = check_counts(run, episodes) if glob.glob(f"{run}/*.pt") else 0
    last = int(rows(run)[-1]["global_step"])
    subprocess.run([*JCI, "--run-dir", str(run), "--total-timesteps", str(last + 4096)], check=True)
    episodes = check_counts(run, episodes)
    steps = [row["global_step"] for row in rows(run)]
    assert steps == [256 * i for i in range(1, len(steps) + 1)], "steps are missing or double"
    assert episodes > 20
    assert litter() <= before, "the killed runs have left something behind"
    return f"{number + 1} kills, {last + 4096:,} steps, {episodes} episodes counted"


def check_counts(run, episodes_before):
    files = [run / name for name in ("checkpoint.pt", "checkpoint.previous.pt")]
    saved = next(torch.load(file, weights_only=True) for file in files if file.exists())
    step, episodes = saved["global_step"], saved["episode_log"]["num_episodes"]
    assert saved["table"]["steps"].sum() == saved["atlas"]["steps"].sum() == saved["visits"]["counts"].sum() == step
    assert len(saved["table"]["centres"]) == len(saved["table"]["episodes"]) == len(saved["atlas"]["images"])
    logged = {row["global_step"]: row["charts/episodes"] for row in rows(run)}
    assert episodes == logged.get(step, 0)
    assert list(logged.values()) == sorted(logged.values())
    assert episodes >= episodes_before
    return episodes


def damage(folder, args):
    """60 files with a flipped bit, a cut or noise in them: the run goes on, or says why not in a sentence"""
    rng, outcomes = random.Random(1), {"went on": 0, "went on from the one before": 0, "a sentence": 0}
    flags = ["--env", "memory", "--num-envs", "4", "--num-steps", "16", "--checkpoint-every", "1"]
    subprocess.run([*JCI, "--run-dir", str(folder / "whole"), *flags, "--total-timesteps", "192"], check=True)
    for number in range(60):
        run = shutil.copytree(folder / "whole", folder / str(number))
        file = run / ("checkpoint.pt", "checkpoint.pt", "args.json", "progress.csv", "timings.csv")[number % 5]
        content = bytearray(file.read_bytes())
        kind = rng.randrange(3)
        if kind == 0:
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del content[rng.randrange(len(content)) :]
        else:
            first = rng.randrange(len(content))
            content[first : first + 64] = rng.randbytes(64)
        file.write_bytes(content)
        command = [*JCI, "--resume", str(run), "--total-timesteps", "256"]
        result = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=600)
        assert "Traceback" not in result.stderr, f"{run}: {result.stderr}"
        if result.returncode == 0:
            assert torch.load(run / "checkpoint.pt", weights_only=True)["global_step"] == 256
            outcomes["went on from the one before" if "is damaged" in result.stderr else "went on"] += 1
        else:
            assert len(result.stderr.strip().splitlines()) == 1 and result.stderr.strip().endswith("."), result.stderr
            outcomes["a sentence"] += 1
        shutil.rmtree(run)
    return ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items())


def side_by_side(folder, args):
    """three runs at once write what each of them writes alone"""
    commands = [["--seed", str(seed), *SMALL, "--total-timesteps", "4096"] for seed in (1, 2, 3)]
    for i, flags in enumerate(commands):
        assert start("--run-dir", str(folder / f"alone_{i}"), *flags).wait() == 0
    together = [start("--run-dir", str(folder / f"together_{i}"), *flags) for i, flags in enumerate(commands)]
    assert [process.wait() for process in together] == [0, 0, 0]
    for i in range(3):
        alone, beside = ((folder / f"{name}_{i}" / "progress.csv").read_bytes() for name in ("alone", "together"))
        assert alone == beside
    return "3 runs, each progress.csv the same, byte for byte"


def many_rows(folder, args):
    """an iteration with 20,000 rows in the table, beside one with those that the run has found"""
    few, many = folder / "few", folder / "many"
    subprocess.run([*JCI, "--run-dir", str(few), "--total-timesteps", "4096"], check=True)
    shutil.copytree(few, many)
    saved = torch.load(many / "checkpoint.pt", weights_only=True)
    missing = args.rows - len(saved["table"]["centres"])
    for part in ("table", "atlas"):
        for name, column in saved[part].items():
            more = torch.rand(missing, *column.shape[1:]) if column.is_floating_point() else torch.ones(missing).long()
            saved[part][name] = torch.cat([column, torch.nn.functional.normalize(more) if name == "centres" else more])
    torch.save(saved, many / "checkpoint.pt")
    seconds = {few: [], many: []}
    for turn in range(1, 4):  # in turns, as other programs may slow down either
        for run in (few, many):
            subprocess.run([*JCI, "--run-dir", str(run), "--total-timesteps", str(4096 + turn * 5 * 2048)], check=True)
    for run in (few, many):
        seconds[run] = statistics.median(row["time/iteration"] for row in rows(run, "timings.csv")[2:])
    ratio = seconds[many] / seconds[few]
    assert rows(many)[-1]["intrinsic/num_clusters"] >= args.rows
    assert ratio < 1.1, f"{ratio:.2f} times as slow"
    return f"{args.rows:,} rows: {seconds[many]:.2f} s, without: {seconds[few]:.2f} s an iteration ({ratio:.2f} times)"


def length(folder, args):
    """memory from 100,000 steps on grows by less than 5 % besides the table"""
    run, memory = folder / "run", {}
    process = start("--run-dir", str(run), "--total-timesteps", str(args.steps), stderr=open(folder / "log", "w"))
    while process.poll() is None:
        time.sleep(10)
        if (run / "progress.csv").exists() and rows(run):
            row = rows(run)[-1]
            status = Path(f"/proc/{process.pid}/status").read_text() if process.poll() is None else ""
            if "VmRSS" in status:
                table = row["intrinsic/num_clusters"] * (3 * 42 * 42 * 4 + 600)
                memory[row["global_step"]] = int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) * 1024 - table
    assert process.returncode == 0
    early = [size for step, size in memory.items() if 0.1 * args.steps <= step <= 0.2 * args.steps]
    late = [size for step, size in memory.items() if step >= 0.9 * args.steps]
    growth = statistics.median(late) / statistics.median(early) - 1
    assert growth < 0.05, f"memory has grown by {growth:.1%}"
    return f"{args.steps:,} steps: {statistics.median(late) / 1e6:.0f} MB, {growth:+.1%} since {args.steps // 10:,}"


PARTS = {"kills": kills, "damage": damage, "side-by-side": side_by_side, "rows": many_rows, "length": length}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)} [default: all]")
    parser.add_argument("--steps", type=int, default=1_000_000, help="of the part length [default: 1000000]")
    parser.add_argument("--rows", type=int, default=20_000, help="of the part rows [default: 20000]")
    args = parser.parse_args()
    for name in args.parts:
        if name not in PARTS:
            parser.error(f"there is no part {name}: choose from {', '.join(PARTS)}.")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    failed = False
    for name in args.parts or PARTS:
        print(f"{name}: {PARTS[name].__doc__}", flush=True)
        with tempfile.TemporaryDirectory(prefix="faults-") as folder:
            try:
                print(f"  held: {PARTS[name](Path(folder), args)}", flush=True)
            except (AssertionError, subprocess.SubprocessError) as error:
                failed = True
                print(f"  FAILED: {error}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
