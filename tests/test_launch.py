"""Suites of runs: benchmark/launch.sh and the files that use it."""

import importlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch
import tyro
from conftest import ROOT, read_progress

SUITES = sorted(path.name for path in (ROOT / "benchmark").glob("*.sh") if path.name not in ("launch.sh", "array.sh"))
SMALL = "ppo_lstm.py --env memory --num-envs 5 --num-steps 32 --bptt-length 16 --minibatch-size 64"


@pytest.fixture
def launch(tmp_path):
    """Starts launch.sh in a copy of the project, as `run` lines with further arguments and settings."""
    shutil.copytree(ROOT / "common", tmp_path / "common")
    (tmp_path / "benchmark").mkdir()
    for file in ("benchmark/launch.sh", "benchmark/array.sh", "ppo_lstm.py"):
        shutil.copy(ROOT / file, tmp_path / file)

    def start(lines, *arguments, **settings):
        command = [tmp_path / "benchmark" / "launch.sh", *map(str, arguments)]
        environment = {**os.environ, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1", **settings}
        pipes = {name: subprocess.PIPE for name in ("stdin", "stdout", "stderr")}
        process = subprocess.Popen(command, env=environment, cwd=tmp_path.parent, text=True, **pipes)
        process.stdin.write("\n".join(lines) + "\n")
        process.stdin.close()
        process.stdin = None
        return process

    def run(*arguments, **settings):
        process = start(*arguments, **settings)
        output, errors = process.communicate(timeout=300)
        return process.returncode, output, errors

    run.start = start
    return run


def test_failures_do_not_stop_the_others_and_finished_runs_are_skipped(launch, tmp_path):
    lines = [
        f"memory__bad__1 {SMALL} --num-envs 0",
        f"memory__bare__1 {SMALL} --total-timesteps 320",
        f"memory__bare__2 {SMALL} --total-timesteps 320 --seed 2",
    ]
    code, output, errors = launch(lines, "try", "--checkpoint-every", 2, JOBS="2")
    folder = tmp_path / "runs" / "try_--checkpoint-every_2"
    assert code == 1
    assert "[1/3] FAILED   memory__bad__1" in output
    assert "--num-envs 0 must be at least 1 and at most 1024." in output
    assert "2 of 3 runs are finished" in output
    for seed in (1, 2):
        assert [row["global_step"] for row in read_progress(folder / f"memory__bare__{seed}")] == [160, 320]
        about = json.loads((folder / f"memory__bare__{seed}" / "args.json").read_text())
        assert (about["args"]["seed"], about["args"]["checkpoint_every"], about["finished"]) == (seed, 2, True)
    before = {file: file.stat().st_mtime_ns for file in folder.glob("memory__bare__*/*")}

    code, output, errors = launch(lines, "try", "--checkpoint-every", 2)
    assert code == 1, "the bad one is tried again"
    assert output.count("before") == 2
    code, output, errors = launch(lines, "try", "--checkpoint-every", 2, ONLY="bare")
    assert (code, errors) == (0, "")
    assert {file: file.stat().st_mtime_ns for file in folder.glob("memory__bare__*/*")} == before

    code, output, errors = launch(
        [line.replace("320", "480") for line in lines], "try", "--checkpoint-every", 2, ONLY="e__1"
    )
    assert code == 0, "asked for more, a finished run goes on"
    assert len(read_progress(folder / "memory__bare__1")) == 3


def test_an_interrupted_suite_saves_and_goes_on(launch, tmp_path):
    folder = tmp_path / "runs" / "try" / "memory__bare__1"
    lines = [f"memory__bare__1 {SMALL} --total-timesteps 10000000", f"memory__never__1 {SMALL}"]
    process = launch.start(lines, "try")
    deadline = time.time() + 120
    while not (folder / "progress.csv").exists():
        assert time.time() < deadline and process.poll() is None
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "[1/2] stopped  memory__bare__1" in output
    assert not (tmp_path / "runs" / "try" / "memory__never__1" / "args.json").exists()
    last_step = int(read_progress(folder)[-1]["global_step"])
    code, output, _ = launch([lines[0].replace("10000000", str(last_step + 160))], "try")
    assert code == 0
    assert [row["global_step"] for row in read_progress(folder)][-2:] == [last_step, last_step + 160]
    starts = json.loads((folder / "args.json").read_text())["starts"]
    assert [start["global_step"] for start in starts] == [0, last_step]


def test_mistakes_end_in_a_sentence(launch, tmp_path):
    line = [f"memory__bare__1 {SMALL}"]
    assert launch(line)[::2] == (
        2,
        "launch.sh needs the suite's name: benchmark/my_way_home.sh shows how it is called.\n",
    )
    assert launch(line, "try", ONLY="jci")[::2] == (2, "No run of try matches ONLY='jci'.\n")
    assert launch(line, "try", PYTHON="pyton")[::2] == (
        2,
        "There is no pyton here: PYTHON=... names the interpreter.\n",
    )
    assert launch(line, "try", LAUNCHER="lsf")[::2] == (2, "LAUNCHER=lsf: there are local and slurm.\n")


@pytest.mark.parametrize("suite", SUITES)
def test_suites_print_commands_that_their_scripts_accept(suite, tmp_path):
    command = [ROOT / "benchmark" / suite, "--checkpoint-every", "5"]
    process = subprocess.run(command, env={**os.environ, "DRY": "1", "PYTHON": "py"}, capture_output=True, text=True)
    assert (process.returncode, process.stderr) == (0, "")
    folders = []
    for line in process.stdout.splitlines():
        threads, python, script, *flags = shlex.split(line)
        assert (threads, python) == ("OMP_NUM_THREADS=1", "py")
        module = importlib.import_module(script[: -len(".py")])
        args = tyro.cli(module.Args, args=flags)
        assert args.checkpoint_every == 5
        place, name, seed = args.run_dir.split("/")[-1].split("__")
        assert place == (f"vizdoom-{args.task}" if args.env == "vizdoom" else args.env)
        assert seed == str(args.seed)
        assert name.split("_")[0] == {"ppo_lstm": "bare"}.get(script[:-3], script[len("ppo_lstm_") : -3])
        folders.append(args.run_dir)
    assert len(set(folders)) == len(folders) > 0


def test_suites_are_plain_bash():
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed: apt-get install shellcheck")
    subprocess.run(["shellcheck", *(ROOT / "benchmark").glob("*.sh")], check=True)


def test_a_task_that_nears_its_time_limit_saves_and_is_requeued(launch, tmp_path):
    folder = tmp_path / "run"
    (tmp_path / "scontrol").write_text(f"#!/bin/sh\necho $@ > {tmp_path}/scontrol.txt\n")
    (tmp_path / "scontrol").chmod(0o755)
    command = f"exec {sys.executable} {ROOT}/{SMALL} --total-timesteps 10000000 --run-dir {folder}"
    slurm = {"SLURM_ARRAY_TASK_ID": "2", "SLURM_JOB_ID": "42", "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    task = subprocess.Popen([tmp_path / "benchmark" / "array.sh", "false", command], env={**os.environ, **slurm})
    deadline = time.time() + 120
    while not (folder / "progress.csv").exists():
        assert time.time() < deadline and task.poll() is None
        time.sleep(0.1)
    task.send_signal(signal.SIGUSR1)
    assert task.wait(60) == 143
    assert (tmp_path / "scontrol.txt").read_text() == "requeue 42\n"
    steps = [int(row["global_step"]) for row in read_progress(folder)]
    assert torch.load(folder / "checkpoint.pt", weights_only=True)["global_step"] == steps[-1]


@pytest.mark.skipif(subprocess.getstatusoutput("sinfo")[0] != 0, reason="there is no Slurm here: see docs/cluster.md")
def test_a_job_array(launch, tmp_path):
    lines = [f"memory__bare__{seed} {SMALL} --total-timesteps 320 --seed {seed}" for seed in (1, 2)]
    code, output, errors = launch(lines, "try", LAUNCHER="slurm")
    assert (code, errors) == (0, "")
    job = output.split()[-1]
    deadline = time.time() + 300
    while subprocess.check_output(["squeue", "--noheader", f"--jobs={job}"], text=True).strip():
        assert time.time() < deadline
        time.sleep(1)
    for seed in (1, 2):
        assert len(read_progress(tmp_path / "runs" / "try" / f"memory__bare__{seed}")) == 2
    code, output, errors = launch(lines, "try", LAUNCHER="slurm")
    assert (code, errors, output.count("finished")) == (0, "", 2)
