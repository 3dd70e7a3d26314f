"""The scripts as users run them: whole runs, resumed, interrupted, killed, and refused."""

import argparse
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from conftest import ROOT, read_progress
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from common.run_folder import RunFolder

SCRIPTS = sorted(path.name for path in ROOT.glob("ppo_lstm*.py"))
SMALL = ["--env", "memory", "--num-envs", 5, "--num-steps", 32, "--bptt-length", 16, "--minibatch-size", 64]
JCI_SMALL = [*SMALL, "--total-timesteps", 5 * 160]


def documented_tags(script):
    """Both docs pages use `tag` in a table's first column."""
    pages = ["docs/ppo_lstm.md"] + ([] if script == "ppo_lstm.py" else [f"docs/{script[len('ppo_lstm_') : -3]}.md"])
    return {tag for page in pages for tag in re.findall(r"^\| `(\w+/\w+)` \|", (ROOT / page).read_text(), re.MULTILINE)}


@pytest.mark.parametrize("script", SCRIPTS)
def test_vizdoom_two_iterations_then_resume(script, train):
    flags = ["--num-envs", 4, "--minibatch-size", 128, "--total-timesteps", 512, "--no-stagger-episodes"]
    run = train(script, *flags, "--save-model")
    assert [row["global_step"] for row in read_progress(run)] == [256, 512]
    assert (run / "agent.pt").exists()
    pictures = {"visits.png", "clusters.png"} if script == "ppo_lstm_jci.py" else {"visits.png"}
    assert {path.name for path in run.glob("*.png")} == pictures
    assert train(script, "--resume", run, "--total-timesteps", 1024) == run
    rows = read_progress(run)
    assert [row["global_step"] for row in rows] == [256, 512, 768, 1024]
    for row in rows:
        assert row["losses/first_ratio_error"] < 1e-4, "the update must begin with the rollout's own probabilities"
        assert 0 < row["exploration/coverage"] < 1
    events = EventAccumulator(str(run))
    events.Reload()
    tags = set(events.Tags()["scalars"])
    unfinished = {tag for tag in documented_tags(script) if tag.startswith("charts/episodic")} | {"charts/success"}
    assert tags | unfinished == documented_tags(script), "no episode ends in so few steps; all else is logged"
    for tag in tags:
        assert all(np.isfinite(event.value) for event in events.Scalars(tag)), tag


@pytest.mark.parametrize("script", SCRIPTS)
def test_same_seed_same_progress(script, train):
    first = train(script, *SMALL, "--total-timesteps", 640, "--exp-name", "first")
    second = train(script, *SMALL, "--total-timesteps", 640, "--exp-name", "second")
    other = train(script, *SMALL, "--total-timesteps", 640, "--exp-name", "other", "--seed", 2)
    assert (first / "progress.csv").read_bytes() == (second / "progress.csv").read_bytes()
    assert (first / "progress.csv").read_bytes() != (other / "progress.csv").read_bytes()
    for row in read_progress(first):  # episodes of four steps end in every sequence
        assert row["losses/first_ratio_error"] < 1e-4, "the update must begin with the rollout's own probabilities"


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_script_is_paid_for_its_bonus(script, train_here):
    run = train_here(script, *SMALL, "--total-timesteps", 320, "--int-coef", 2, "--ext-coef", 3)
    bonus, mean = run["intrinsic_rewards"], run["bonus_mean"].mean
    assert bonus.shape == (32, 5)
    if script == "ppo_lstm.py":
        assert not bonus.any()
    else:
        assert bonus.mean() > 0
        assert bonus.std() > 0
    expected = 3 * run["rewards"] + (2 * bonus / mean if bonus.any() else 0)
    torch.testing.assert_close(run["total_rewards"], expected)
    # and it is what is learned from: with lambda and gamma as they are, the returns contain it
    ends, values, next_values = run["ends"], run["values"], run["next_values"]
    last_step = expected[-1] + run["args"].gamma * next_values[-1] - values[-1]  # the advantage of the last step
    torch.testing.assert_close((run["returns"] - values)[-1], last_step, rtol=1e-4, atol=1e-5)
    assert ends.any()


def test_same_seed_same_progress_in_vizdoom(train):
    flags = ["--num-envs", 4, "--minibatch-size", 128, "--total-timesteps", 768]
    first, second = (train("ppo_lstm_jci.py", *flags, "--exp-name", name) for name in ("first", "second"))
    assert (first / "progress.csv").read_bytes() == (second / "progress.csv").read_bytes()


@pytest.mark.parametrize(
    "flags",
    [
        ["--cluster-scope", "episode"],
        ["--no-episodic-clustering"],
        ["--int-coef", 0],
        ["--ext-coef", 0],
        ["--count", "steps"],
        ["--encoder", "random"],
    ],
    ids=lambda flags: flags[0],
)
def test_jci_flags(flags, train):
    rows = read_progress(train("ppo_lstm_jci.py", *JCI_SMALL, *flags))
    assert len(rows) == 5
    assert rows[-1]["intrinsic/reward_mean"] > 0
    assert rows[-1]["intrinsic/reward_max"] <= 1


def test_a_checkpoint_brings_everything_back(train, train_here):
    """Resumed at the end of a run, nothing is left to train: all parts must have the same state, bit for bit."""
    run = train("ppo_lstm_jci.py", *JCI_SMALL)
    before = torch.load(run / "checkpoint.pt", weights_only=True)
    resumed = train_here("ppo_lstm_jci.py", "--resume", run)
    after = {name: part.state_dict() for name, part in resumed["checkpoints"].saved.items()}
    after["global_step"] = resumed["global_step"]

    def compare(a, b, name):
        assert type(a) is type(b), name
        if isinstance(a, dict):
            assert a.keys() == b.keys(), name
            for key in a:
                compare(a[key], b[key], f"{name}/{key}")
        elif isinstance(a, torch.Tensor):
            assert torch.equal(a, b), name
        else:
            assert a == b, name

    compare(before, after, "checkpoint")
    assert before["table"]["steps"].sum() == before["atlas"]["steps"].sum() == before["global_step"] == 800
    assert before["table"]["episodes"].sum() > 0
    assert before.keys() >= {"agent", "optimizer", "visits", "episode_log", "bonus_mean", "random_states", "encoder"}
    assert before["random_states"].keys() == {"python", "numpy", "torch", "cuda"}


def test_what_a_checkpoint_does_not_fit_is_refused_in_a_sentence(train):
    run = train("ppo_lstm_ride.py", *SMALL, "--total-timesteps", 160)
    saved = (run / "checkpoint.pt").read_bytes()
    refusals = {
        ("ppo_lstm_ride.py", "--hash-bits", 8): "--hash-bits cannot change when a run goes on: leave it out (16 in",
        ("ppo_lstm_ride.py", "--env", "vizdoom"): "--env cannot change when a run goes on: leave it out (memory in",
        ("ppo_lstm_ride.py", "--task", "dense"): "--task cannot change when a run goes on: leave it out (sparse in",
        ("ppo_lstm_ride.py", "--scene", "other.glb"): "--scene cannot change when a run goes on: leave it out (None in",
        ("ppo_lstm.py",): f"--resume {run}: another script began this run; go on with that one.",
        ("ppo_lstm_jci.py",): "another script began this run",
    }
    for (script, *flags), sentence in refusals.items():
        process = train(script, "--resume", run, *flags, check=False)
        assert process.returncode == (2 if flags else 1)
        assert sentence in process.stderr
        assert "Traceback" not in process.stderr
    assert (run / "checkpoint.pt").read_bytes() == saved


def test_killed_run_goes_on_from_its_last_checkpoint(tmp_path):
    flags = [*JCI_SMALL, "--total-timesteps", 10**7, "--checkpoint-every", 2]
    command = [sys.executable, str(ROOT / "ppo_lstm_jci.py"), *map(str, flags)]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL)
    wait_for(lambda: len(list(tmp_path.glob("runs/*/progress.csv"))) == 1 and count_rows(tmp_path) >= 5, process)
    process.kill()
    process.wait()
    (run,) = (tmp_path / "runs").iterdir()
    saved_step = torch.load(run / "checkpoint.pt", weights_only=True)["global_step"]
    written_steps = [row["global_step"] for row in read_progress(run)]
    assert saved_step >= written_steps[-1] - 2 * 160, "at most the iterations since the last checkpoint are lost"

    (run / "checkpoint.pt").write_bytes(b"not a checkpoint")  # as a full disk would leave it
    previous_step = torch.load(run / "checkpoint.previous.pt", weights_only=True)["global_step"]
    resumed = subprocess.run(
        [*command[:2], "--resume", str(run), "--total-timesteps", str(previous_step + 320)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert resumed.returncode == 0, resumed.stderr
    assert "checkpoint.pt is damaged" in resumed.stderr
    steps = [row["global_step"] for row in read_progress(run)]
    assert steps == [160 * i for i in range(1, len(steps) + 1)]
    assert steps[-1] == previous_step + 320
    timings = [line.split(",")[0] for line in (run / "timings.csv").read_text().splitlines()[1:]]
    assert timings == [str(160 * i) for i in range(1, len(steps) + 1)]


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
def test_interrupted_vizdoom_run_saves_and_leaves_nothing_behind(signal_number, tmp_path):
    flags = ["--num-envs", 2, "--num-steps", 32, "--bptt-length", 16, "--checkpoint-every", 1000]
    command = [sys.executable, str(ROOT / "ppo_lstm_jci.py"), *map(str, flags)]
    shared_memory = set(os.listdir("/dev/shm"))
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True)
    wait_for(lambda: len(list(tmp_path.glob("runs/*/progress.csv"))) == 1 and count_rows(tmp_path) >= 2, process)
    os.killpg(process.pid, signal_number)  # a terminal sends Ctrl-C to the engines as well
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + signal_number, errors
    assert "Traceback" not in errors
    (run,) = (tmp_path / "runs").iterdir()
    saved = torch.load(run / "checkpoint.pt", weights_only=True)
    assert saved["global_step"] == read_progress(run)[-1]["global_step"]
    assert saved["visits"]["counts"].sum() == saved["global_step"], "the dropped rollout left visits behind"
    assert saved["episode_log"]["num_episodes"] == read_progress(run)[-1]["charts/episodes"], "... or episodes"
    assert os.listdir(tmp_path) == ["runs"]
    assert set(os.listdir("/dev/shm")) <= shared_memory
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)  # the group is empty: no engine is left


def wait_for(condition, process, seconds=90):
    deadline = time.time() + seconds
    while not condition():
        assert process.poll() is None, "the run ended by itself"
        assert time.time() < deadline, "the run did not get there in time"
        time.sleep(0.1)


def count_rows(tmp_path):
    (file,) = tmp_path.glob("runs/*/progress.csv")
    return len(file.read_text().splitlines()) - 1


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--num-steps", 100], "--num-steps 100 must be a multiple of --bptt-length 64"),
        (["--kappa", 1.5], "--kappa 1.5 must be above 0 and at most 1"),
        (["--resume", "runs/missing"], "give the folder of a run"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_bad_flags_end_in_one_sentence_before_anything_starts(flags, message, train, tmp_path):
    process = train("ppo_lstm_jci.py", *flags, check=False)
    assert process.returncode == 2
    assert message in process.stderr
    assert len(process.stderr.strip().splitlines()) == 1
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(importlib.util.find_spec("wandb") is not None, reason="wandb is installed")
def test_track_without_wandb_says_what_to_type(train, tmp_path):
    process = train("ppo_lstm.py", *SMALL, "--track", check=False)
    assert process.returncode == 2
    assert process.stderr.strip() == "--track needs the package wandb, which is not installed: type pip install wandb."
    assert os.listdir(tmp_path) == []


def test_help_teaches_every_flag(train):
    process = train("ppo_lstm_jci.py", "--help", check=False)
    assert process.returncode == 0
    for words in ("--kappa", "--cluster-scope", "python ppo_lstm_jci.py", "opens a row", "--resume"):
        assert words in process.stdout


def test_run_folder_says_what_was_run(train):
    run = train("ppo_lstm_jci.py", *JCI_SMALL, "--kappa", 0.9)
    assert run.name.startswith("memory__ppo_lstm_jci__1__")
    train("ppo_lstm_jci.py", "--resume", run, "--total-timesteps", 960)
    about = json.loads((run / "args.json").read_text())
    assert about["args"]["kappa"] == 0.9
    assert about["args"]["num_clusters"] == 5
    assert about["args"]["num_envs"] == 5
    first, second = about["starts"]
    assert first["command"].endswith("--kappa 0.9")
    assert second["command"].endswith("--total-timesteps 960")
    assert [first["global_step"], second["global_step"]] == [0, 800]
    assert first["device"] == ("cuda" if torch.cuda.is_available() else "cpu")
    assert first["torch"] == torch.__version__
    assert first["versions"].keys() == {"numpy", "scikit-learn", "gymnasium"}
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
    assert first["git_commit"] == (commit or None)
    events = EventAccumulator(str(run))
    events.Reload()
    (text,) = events.Tensors("flags/text_summary")[0].tensor_proto.string_val
    assert b"|kappa|0.9|" in text


def test_runs_that_start_in_the_same_second_have_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(time, "time", lambda: 1700000000)
    args = argparse.Namespace(track=False, resume=None, run_dir=None, env="memory", exp_name="same", seed=1)
    runs = [RunFolder(args) for _ in range(3)]
    for run in runs:
        run.start_logging(0, "cpu")
        run.close(finished=True)
    name = "memory__same__1__1700000000"
    assert [run.path.name for run in runs] == [name, f"{name}_2", f"{name}_3"]


def test_a_run_in_a_folder_of_ones_choice_goes_on_until_it_is_finished(train, tmp_path):
    folder = tmp_path / "runs" / "some" / "place"
    flags = [*SMALL, "--run-dir", folder, "--total-timesteps"]
    command = [sys.executable, str(ROOT / "ppo_lstm_jci.py"), *map(str, flags), str(10**7), "--checkpoint-every", "2"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL)
    wait_for(lambda: (folder / "progress.csv").exists() and len(read_progress(folder)) >= 5, process)
    process.kill()
    process.wait()
    saved_step = torch.load(folder / "checkpoint.pt", weights_only=True)["global_step"]
    end = int(saved_step) + 320
    train("ppo_lstm_jci.py", *flags, end)
    assert [row["global_step"] for row in read_progress(folder)] == [160 * i for i in range(1, end // 160 + 1)]
    assert json.loads((folder / "args.json").read_text())["starts"][1]["global_step"] == saved_step

    before = (folder / "checkpoint.pt").stat().st_mtime_ns
    again = train("ppo_lstm_jci.py", *flags, end, check=False)
    assert (again.returncode, again.stderr) == (0, "")
    assert again.stdout == f"{folder} is finished, after {end:,} steps; a larger --total-timesteps goes on.\n"
    assert (folder / "checkpoint.pt").stat().st_mtime_ns == before
    refusals = {
        ("ppo_lstm_rnd.py", *flags, end): "another script began this run",
        ("ppo_lstm_jci.py", *flags, end, "--seed", 2): "--seed cannot change when a run goes on",
        ("ppo_lstm_jci.py", *flags, end, "--resume", folder): "both name the run's folder",
    }
    for (script, *flags_of_another), sentence in refusals.items():
        refused = train(script, *flags_of_another, check=False)
        assert refused.returncode == (1 if script == "ppo_lstm_rnd.py" else 2)
        assert sentence in refused.stderr
    train("ppo_lstm_jci.py", *flags, end + 160)
    assert len(read_progress(folder)) == end // 160 + 1
    assert os.listdir(tmp_path / "runs") == ["some"]


def test_a_run_in_a_folder_of_ones_choice_that_never_saved_starts_again_with_its_flags(train, tmp_path):
    folder = tmp_path / "runs" / "place"
    train("ppo_lstm.py", *SMALL, "--total-timesteps", 160, "--run-dir", folder)
    expected = (folder / "progress.csv").read_bytes()
    for checkpoint in folder.glob("*.pt"):
        checkpoint.unlink()
    train("ppo_lstm.py", "--run-dir", folder)
    assert (folder / "progress.csv").read_bytes() == expected
    for name in ("checkpoint.pt", "checkpoint.previous.pt"):
        (folder / name).write_bytes(b"not a checkpoint")
    process = train("ppo_lstm.py", "--run-dir", folder, check=False)
    assert process.returncode == 1
    assert "no readable checkpoint in it" in process.stderr


def test_a_learning_rate_typed_again_is_used(train):
    run = train("ppo_lstm_rnd.py", *SMALL, "--total-timesteps", 160)
    train("ppo_lstm_rnd.py", "--resume", run, "--total-timesteps", 320)
    flags = ["--learning-rate", 1e-3, "--predictor-learning-rate", 0.5]
    train("ppo_lstm_rnd.py", "--resume", run, "--total-timesteps", 480, *flags)
    assert [row["charts/learning_rate"] for row in read_progress(run)] == [5e-4, 5e-4, 1e-3]
    saved = torch.load(run / "checkpoint.pt", weights_only=True)
    assert saved["predictor_optimizer"]["param_groups"][0]["lr"] == 0.5


def test_the_run_ends_when_the_target_is_reached(train):
    run = train("ppo_lstm.py", *SMALL, "--total-timesteps", 16000, "--target-return", 0.1)
    rows = read_progress(run)
    assert rows[-1]["charts/episodic_return"] > 0.1, "one in four is right by chance"
    assert rows[-1]["charts/episodes"] >= 100
    assert len(rows) < 10
    assert torch.load(run / "checkpoint.pt", weights_only=True)["global_step"] == rows[-1]["global_step"]


def test_videos_are_whole_episodes(train):
    import imageio.v2 as imageio

    run = train("ppo_lstm.py", *SMALL, "--total-timesteps", 800, "--capture-video")
    videos = sorted((run / "videos").iterdir())
    assert [video.name for video in videos] == [f"episode_{number:06d}.mp4" for number in (1, 8, 27)]
    frames = imageio.mimread(videos[0])
    assert len(frames) == 5  # four steps of the corridor, and the frame that ended it
    assert frames[0].shape == (126, 126, 3)
    before = {video: video.read_bytes() for video in videos}
    train("ppo_lstm.py", "--resume", run, "--total-timesteps", 2400)
    assert {video: video.read_bytes() for video in videos} == before, "a resumed run overwrote a video"
    assert (run / "videos" / "episode_000064.mp4").exists()


def test_videos_do_not_keep_the_frames_of_other_environments(tmp_path):
    from common.video import EpisodeVideos

    frames = np.zeros((32, 120, 160, 3), np.uint8)
    videos = EpisodeVideos(tmp_path, frames[0])
    videos.add(frames[0], False, {})
    assert all(frame.base is None for frame in videos.frames)


def test_a_script_and_common_run_from_another_folder(tmp_path):
    shutil.copytree(ROOT / "common", tmp_path / "common")
    shutil.copy(ROOT / "ppo_lstm_jci.py", tmp_path / "mine.py")
    command = [sys.executable, "mine.py", *map(str, JCI_SMALL)]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    (run,) = (tmp_path / "runs").iterdir()
    assert run.name.startswith("memory__mine__1__")
