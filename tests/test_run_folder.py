"""The run's folder when the machine does not play along: full disks, closed terminals, two processes at once."""

import contextlib
import fcntl
import os
import pty
import re
import resource
import select
import signal
import subprocess
import sys
import termios
import time
import zipfile

import numpy as np
import pytest
import torch
from conftest import ROOT, read_progress
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import common.memory_corridor
from common.checkpoints import not_finite
from common.video import EpisodeVideos

SMALL = ["--env", "memory", "--num-envs", 4, "--num-steps", 16, "--minibatch-size", 32, "--update-epochs", 1]
COMMAND = [sys.executable, str(ROOT / "ppo_lstm_cells.py"), *map(str, SMALL), "--checkpoint-every", "1"]
ENDLESS = [*COMMAND, "--total-timesteps", str(10**9)]


def wait_for(condition, process, seconds=300):
    deadline = time.time() + seconds
    while not condition():
        assert process.poll() is None, "the run ended by itself"
        assert time.time() < deadline, "the run did not get there in time"
        time.sleep(0.05)


def has_rows(folder, count):
    """Is there one run, with at least so many rows?"""
    runs = list(folder.glob("runs/*/progress.csv"))
    return len(runs) == 1 and len(runs[0].read_text().splitlines()) > count


@contextlib.contextmanager
def started(command, **options):
    process = subprocess.Popen(command, text=True, **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options})
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_closed_terminal_stops_the_run_and_it_is_saved(tmp_path):
    """The kernel sends SIGHUP, and whatever is printed from then on is an error."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # also where the tests themselves run under nohup
        os.execv(sys.executable, ENDLESS)
    termios.tcsetwinsize(terminal, (24, 80))  # else the progress bar has no place
    deadline = time.time() + 300
    while not has_rows(tmp_path, 2):
        assert time.time() < deadline
        if select.select([terminal], [], [], 0.1)[0]:
            os.read(terminal, 4096)  # else the run waits for its output to be read
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    assert os.WIFEXITED(status), "it was killed"
    (run,) = (tmp_path / "runs").iterdir()
    assert torch.load(run / "checkpoint.pt", weights_only=True)["global_step"] == read_progress(run)[-1]["global_step"]


def test_a_run_under_nohup_outlives_its_terminal(tmp_path):
    ignore = lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)  # noqa: E731
    with started(ENDLESS, cwd=tmp_path, preexec_fn=ignore) as process:
        wait_for(lambda: has_rows(tmp_path, 1), process)
        process.send_signal(signal.SIGHUP)
        (run,) = (tmp_path / "runs").iterdir()
        rows = len(read_progress(run))
        wait_for(lambda: has_rows(tmp_path, rows + 5), process)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_dropped_rollout_counts_for_nothing(number, train_here, tmp_path, monkeypatch):
    """A signal in the middle of the third rollout, in which episodes have ended by then."""
    step, calls = common.memory_corridor.MemoryCorridor.step, []
    signal.signal(number, signal.SIG_DFL)

    def interrupted(self, actions):
        calls.append(0)
        if len(calls) == 2 * 16 + 11:
            os.kill(os.getpid(), number)
        return step(self, actions)

    monkeypatch.setattr(common.memory_corridor.MemoryCorridor, "step", interrupted)
    with contextlib.suppress(SystemExit):  # a code of its own
        train_here("ppo_lstm_cells.py", *SMALL, "--total-timesteps", 10**6)
    assert len(calls) == 2 * 16 + 11
    (run,) = (tmp_path / "runs").iterdir()
    checkpoint = torch.load(run / "checkpoint.pt", weights_only=True)
    assert checkpoint["global_step"] == 128
    assert checkpoint["episode_log"]["num_episodes"] == len(checkpoint["episode_log"]["recent"]) == 128 // 4
    assert checkpoint["visits"]["counts"].sum() == 128
    assert sum(checkpoint["cell_counts"]["episodes"].values()) == 128  # every step of the corridor is a first visit
    assert [row["charts/episodes"] for row in read_progress(run)] == [16, 32]


@pytest.mark.parametrize("closed", ["stdout", "stderr", "both pipes", "both from the start"])
def test_output_that_nobody_reads_does_not_end_a_run(closed, tmp_path):
    command = [*COMMAND, "--total-timesteps", "320"]
    if closed == "both from the start":
        shell = " ".join(command) + " 1>&- 2>&-"
        assert subprocess.run(shell, shell=True, cwd=tmp_path, timeout=300).returncode == 0
    else:
        with started(command, cwd=tmp_path) as process:
            if closed != "stderr":
                process.stdout.close()
            if closed != "stdout":
                process.stderr.close()
            assert process.wait(300) == 0
            process.stdout, process.stderr = None, None
    (run,) = (tmp_path / "runs").iterdir()
    assert read_progress(run)[-1]["global_step"] == 320
    assert torch.load(run / "checkpoint.pt", weights_only=True)["global_step"] == 320


def test_one_process_at_a_time(tmp_path):
    with started(ENDLESS, cwd=tmp_path) as process:
        wait_for(lambda: has_rows(tmp_path, 1), process)
        (run,) = (tmp_path / "runs").iterdir()
        second = subprocess.run([*COMMAND[:2], "--resume", str(run)], cwd=tmp_path, capture_output=True, text=True)
        assert second.returncode == 1
        assert second.stderr == f"--resume {run}: this run is under way already; stop it first, or wait.\n"
        assert process.poll() is None
    # the kernel has released the lock of the killed one, but not that of another process
    with open(run / "lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_two_started_and_two_resumed_at_the_same_moment(tmp_path):
    with started([*COMMAND, "--total-timesteps", "64"], cwd=tmp_path) as first:
        with started([*COMMAND, "--total-timesteps", "64"], cwd=tmp_path) as second:
            assert (first.wait(300), second.wait(300)) == (0, 0)
    runs = sorted((tmp_path / "runs").iterdir())
    assert len(runs) == 2
    assert all([row["global_step"] for row in read_progress(run)] == [64] for run in runs)

    command = [*COMMAND[:2], "--resume", str(runs[0]), *ENDLESS[-2:]]
    with started(command, cwd=tmp_path) as first, started(command, cwd=tmp_path) as second:
        while first.poll() is None and second.poll() is None:
            time.sleep(0.05)
        refused, other = (first, second) if second.poll() is None else (second, first)
        assert refused.returncode == 1
        assert "under way already" in refused.stderr.read()
        other.send_signal(signal.SIGINT)
        assert other.wait(300) == 130
    steps = [row["global_step"] for row in read_progress(runs[0])]
    assert steps == [64 * i for i in range(1, len(steps) + 1)]


def mount(folder, size):
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("mounting a small file system needs root")


@pytest.fixture
def small_disk(tmp_path):
    folder = tmp_path / "disk"
    mount(folder, "60m")  # three checkpoints of 14 MB
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk):
    with contextlib.suppress(OSError), open(disk / "ballast", "ab", buffering=0) as ballast:
        while True:
            ballast.write(bytes(4096))


def test_a_full_disk(small_disk):
    """Training goes on while the disk is full, and when there is room again nothing is missing."""
    with started(
        [*ENDLESS, "--exp-name", "full"], cwd=small_disk, stderr=open(small_disk.parent / "log", "w")
    ) as process:
        wait_for(lambda: has_rows(small_disk, 3), process)
        (run,) = (small_disk / "runs").iterdir()
        fill(small_disk)
        log = small_disk.parent / "log"
        wait_for(lambda: "checkpoint.pt could not be written" in log.read_text(), process)
        # a checkpoint that failed has left the room that it took
        wait_for(lambda: fill(small_disk) or "logs cannot be written" in log.read_text(), process)
        good = [torch.load(run / f"checkpoint{end}.pt", weights_only=True)["global_step"] for end in ("", ".previous")]
        assert good[0] > good[1] >= 0
        os.remove(small_disk / "ballast")
        rows = len((run / "progress.csv").read_text().splitlines())
        wait_for(lambda: has_rows(small_disk, rows + 10), process)
        process.send_signal(signal.SIGINT)
        assert process.wait(300) == 130
    errors = log.read_text()
    assert "Traceback" not in errors
    assert re.search(r"checkpoint.pt could not be written at step [\d,]+ \(OSError: No space left on device\)", errors)
    for name in ("progress.csv", "timings.csv"):
        steps = [int(line.split(",")[0]) for line in (run / name).read_text().splitlines()[1:]]
        assert steps == [64 * i for i in range(1, len(steps) + 1)], "no row is missing, doubled or cut"
    assert torch.load(run / "checkpoint.pt", weights_only=True)["global_step"] == steps[-1]
    assert not (run / "checkpoint.new.pt").exists()
    events = EventAccumulator(str(run), size_guidance={"scalars": 0})
    events.Reload()
    assert events.Scalars("charts/SPS")[-1].step == steps[-1], "TensorBoard's events go on as well"


def test_a_video_that_does_not_fit(small_disk, capsys):
    fill(small_disk)
    noise = np.random.default_rng(1).integers(256, size=(200, 42, 42, 3), dtype=np.uint8)
    os.truncate(small_disk / "ballast", os.path.getsize(small_disk / "ballast") - 2**14)  # room for a folder
    videos = EpisodeVideos(small_disk / "videos", noise[0])
    for frame in noise:
        videos.add(frame, False, {})
    videos.add(noise[0], True, {"final_obs": noise[:1]})
    assert re.fullmatch(
        r"\n.*episode_000001.mp4 cannot be written \(.*\): training goes on.*\n", capsys.readouterr().err
    )
    assert os.listdir(small_disk / "videos") == []


def test_a_folder_that_turns_read_only(tmp_path):
    """By permissions, or for root, whom they do not stop, by the flag that makes files immutable."""

    def close(*files):
        if os.geteuid() == 0:
            return subprocess.run(["chattr", "+i", *map(str, files)], capture_output=True).returncode == 0
        return all([file.chmod(0o555) is None for file in files])

    log = tmp_path / "log"
    with started(ENDLESS, cwd=tmp_path, stderr=open(log, "w")) as process:
        wait_for(lambda: has_rows(tmp_path, 2), process)
        (run,) = (tmp_path / "runs").iterdir()
        try:
            if not close(run, *run.glob("*.csv"), *run.glob("events*")):
                pytest.skip("this file system has no immutable files")
            wait_for(lambda: "checkpoint.pt could not be written" in log.read_text(), process)
            wait_for(lambda: "logs cannot be written" in log.read_text(), process)
            process.send_signal(signal.SIGTERM)
            assert process.wait(300) == 1
            close(run / "lock")
            resumed = subprocess.run([*COMMAND[:2], "--resume", str(run)], capture_output=True, text=True)
        finally:
            if os.geteuid() == 0:
                subprocess.run(["chattr", "-R", "-i", str(run)], capture_output=True)
            run.chmod(0o755)
    assert re.search(r"checkpoint.pt could not be written at step [\d,]+ .* is lost\.\n", log.read_text())
    assert "Traceback" not in log.read_text()
    assert not_finite(torch.load(run / "checkpoint.pt", weights_only=True)) is None
    assert resumed.returncode == 1
    assert re.fullmatch(r"The run's folder cannot be made or written \(.*\)\.\n", resumed.stderr)


def test_a_limit_of_the_file_size(tmp_path):
    """As `ulimit -f` sets it: checkpoints do not fit, the logs do."""
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (10**6, 10**6))  # noqa: E731
    command = [*COMMAND, "--total-timesteps", "192"]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, preexec_fn=limit)
    assert process.returncode == 1
    assert "(OSError: File too large): what came after step 0 is lost.\n" in process.stderr
    assert "Traceback" not in process.stderr
    (run,) = (tmp_path / "runs").iterdir()
    assert [row["global_step"] for row in read_progress(run)] == [64, 128, 192]
    assert not list(run.glob("*.pt"))


def test_a_deleted_folder(tmp_path):
    """It is not made again, since without args.json nobody could go on with it."""
    with started(ENDLESS, cwd=tmp_path) as process:
        wait_for(lambda: has_rows(tmp_path, 1), process)
        os.rename(tmp_path / "runs", tmp_path.with_suffix(".gone"))  # at once, while rmtree() and the run would race
        time.sleep(1)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=120)
    assert process.returncode != 0
    assert "Traceback" not in errors
    assert re.search(r"checkpoint.pt could not be written .*No such file or directory.* is lost\.\n", errors)
    assert os.listdir(tmp_path) == []


def test_runs_is_a_file(train, tmp_path):
    (tmp_path / "runs").write_text("notes")
    process = train("ppo_lstm.py", *SMALL, "--total-timesteps", 64, check=False)
    assert process.returncode == 1
    assert re.fullmatch(
        r"The run's folder cannot be made or written \(.*Not a directory: 'runs/.*'\)\.\n", process.stderr
    )
    assert (tmp_path / "runs").read_text() == "notes"


def test_the_folder_is_there_before_an_engine_starts(train_here, tmp_path, monkeypatch):
    def reset(self, **_):
        (run,) = (tmp_path / "runs").iterdir()
        assert {"args.json", "lock"} <= set(os.listdir(run))
        raise SystemExit("no engine today")

    monkeypatch.setattr(common.memory_corridor.MemoryCorridor, "reset", reset)
    with pytest.raises(SystemExit, match="no engine today"):
        train_here("ppo_lstm.py", *SMALL, "--total-timesteps", 64)


def test_tensorboard_has_no_step_twice(train_here, tmp_path, monkeypatch):
    """Neither after a resume at step 0, nor after two at the same step, nor after a row that was not saved."""
    step, calls = common.memory_corridor.MemoryCorridor.step, []

    class Killed(Exception):
        pass

    def dying(self, actions):
        calls.append(0)
        if len(calls) == 2 * 16 + 11:
            raise Killed
        return step(self, actions)

    monkeypatch.setattr(common.memory_corridor.MemoryCorridor, "step", dying)
    with pytest.raises(Killed):
        train_here("ppo_lstm.py", *SMALL, "--total-timesteps", 10**6)
    monkeypatch.setattr(common.memory_corridor.MemoryCorridor, "step", step)
    (run,) = (tmp_path / "runs").iterdir()
    assert torch.load(run / "checkpoint.pt", weights_only=True)["global_step"] == 0
    for total in (64, 64, 192):
        train_here("ppo_lstm.py", "--resume", run, "--total-timesteps", total)
    events = EventAccumulator(str(run))
    events.Reload()
    for tag in events.Tags()["scalars"]:
        steps = [event.step for event in events.Scalars(tag)]
        assert steps == sorted(set(steps)), tag
    assert [event.step for event in events.Scalars("charts/SPS")] == [64, 128, 192]
    assert [event.step for event in events.Images("exploration/visits")] == [0, 64, 192]
    assert len(events.Tensors("flags/text_summary")) == len({e.step for e in events.Tensors("flags/text_summary")})


def test_killed_again_and_again(tmp_path):
    """kill -9 at random moments of one run, in which episodes end: what is counted is what the steps account for."""
    rng = np.random.default_rng(1)
    script = [sys.executable, str(ROOT / "ppo_lstm_cells.py")]
    with started(ENDLESS, cwd=tmp_path, stderr=subprocess.DEVNULL) as process:
        wait_for(lambda: has_rows(tmp_path, 1), process)
    (run,) = (tmp_path / "runs").iterdir()
    last_step = 0
    for _ in range(3):
        with started([*script, "--resume", str(run)], cwd=tmp_path, stderr=subprocess.DEVNULL) as process:
            rows = len(read_progress(run))
            wait_for(lambda rows=rows: has_rows(tmp_path, rows), process)
            time.sleep(rng.uniform(0, 0.5))
        check_counts(run, last_step)
        last_step = read_progress(run)[-1]["global_step"]
    subprocess.run(
        [*script, "--resume", str(run), "--total-timesteps", str(int(last_step) + 128)], cwd=tmp_path, check=True
    )
    check_counts(run, last_step)
    steps = [row["global_step"] for row in read_progress(run)]
    assert steps == [64 * i for i in range(1, len(steps) + 1)]


def check_counts(run, last_step):
    """Independent of the program: an episode of the corridor is four steps, each of them a first visit of its cell."""
    checkpoint = max(
        # checkpoint.new.pt may be cut off
        (torch.load(file, weights_only=True) for file in run.glob("checkpoint*.pt") if zipfile.is_zipfile(file)),
        key=lambda checkpoint: checkpoint["global_step"],
    )
    step = checkpoint["global_step"]
    assert step >= last_step - 64, "at most the iteration since the last checkpoint is lost"
    assert checkpoint["visits"]["counts"].sum() == step
    assert checkpoint["episode_log"]["num_episodes"] == step / 4
    assert list(checkpoint["cell_counts"]["episodes"].values()) == ([step / 4] * 4 if step else [])
    episodes = [row["charts/episodes"] for row in read_progress(run)]
    assert episodes == sorted(episodes)
