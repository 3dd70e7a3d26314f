"""evaluate.py: agents whose results are known, the bonus against plain loops, and whole runs."""

import json
import subprocess
import sys
from types import SimpleNamespace

import imageio.v2 as imageio
import numpy as np
import pytest
import torch
from conftest import ROOT, as_program
from gymnasium.spaces import Discrete

import evaluate
import ppo_lstm
from common.memory_corridor import COLOURS, MemoryCorridor

SMALL = ["--env", "memory", "--num-envs", 5, "--num-steps", 32, "--bptt-length", 16, "--minibatch-size", 64]


class Rememberer:
    """Solves the corridor if its state is carried from step to step and emptied where an episode starts."""

    def initial_state(self, num_envs, device):
        return torch.full((num_envs,), 9.0)  # not empty: the first step has to empty it, too

    def get_states(self, x, state, done):
        state = torch.where(done[0].bool(), torch.zeros_like(state), state)
        pixels = x[0, :, :, 0, 0]
        distances = (pixels[:, None].float() - torch.from_numpy(COLOURS).float()).abs().sum(-1)  # (N, 4)
        sees_colour = (state == 0) & (distances.min(1).values == 0)
        state = torch.where(sees_colour, distances.argmin(1) + 1.0, state)
        return state[None], state

    def get_policy(self, hidden):
        return SimpleNamespace(probs=torch.nn.functional.one_hot((hidden - 1).clamp(0, 3).long(), 4))

    def get_value(self, hidden):
        return hidden


@pytest.fixture
def evaluate_here(tmp_path):
    def run(*arguments):
        with as_program(tmp_path, "evaluate.py", *arguments):
            evaluate.main()

    return run


def test_state_is_carried_and_emptied():
    args = SimpleNamespace(episodes=30, seed=3, greedy=True)
    episodes = evaluate.play(ppo_lstm, Rememberer(), MemoryCorridor(4), args, "cpu")
    assert len(episodes) == 30
    assert [sum(episode.rewards) for episode in episodes] == [1.0] * 30
    assert all(len(episode.rewards) == 4 for episode in episodes)
    assert [len(episode.seen) > 0 for episode in episodes] == [True] + [False] * 29
    assert [position[0] for _, _, position, _, _ in episodes[0].seen] == [0, 1, 2, 3]


class Clocks:
    """Environment i has episodes of i + 1 steps."""

    num_envs, single_action_space = 3, Discrete(4)

    def reset(self, seed):
        self.steps = np.zeros(3, int)
        return np.zeros((3, 42, 42, 3), np.uint8), {"position": np.zeros((3, 2))}

    def step(self, actions):
        self.steps += 1
        ended = self.steps == np.arange(3) + 1
        final = {"position": np.full((3, 2), 7.0) + np.arange(3)[:, None]}
        self.steps[ended] = 0
        infos = {"position": np.zeros((3, 2)), "final_info": final}
        return np.zeros((3, 42, 42, 3), np.uint8), np.ones(3), ended, np.zeros(3, bool), infos

    def cells(self, positions):
        return positions.astype(int)


def test_short_episodes_are_not_favoured():
    args = SimpleNamespace(episodes=9, seed=0, greedy=True)
    episodes = evaluate.play(ppo_lstm, Rememberer(), Clocks(), args, "cpu")
    assert [len(episode.rewards) for episode in episodes] == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert episodes[0].cells == {(7, 7)}, "the last position counts, the next episode's first does not"
    assert episodes[-1].cells == {(0, 0), (9, 9)}


def test_intervals():
    share = evaluate.interval([True] * 90 + [False] * 10)
    z, p, n = 1.959964, 0.9, 100  # Wilson (1927)
    centre, half = p + z**2 / (2 * n), z * (p * (1 - p) / n + z**2 / (4 * n**2)) ** 0.5
    expected = [(centre + sign * half) / (1 + z**2 / n) for sign in (-1, 1)]
    np.testing.assert_allclose([share["low"], share["high"]], expected, rtol=1e-5)
    values = np.random.default_rng(0).normal(5, 2, size=2000)
    estimate = evaluate.interval(values)  # so many that the mean is normally distributed
    np.testing.assert_allclose(estimate["low"], values.mean() - 1.96 * values.std() / 2000**0.5, atol=0.01)
    np.testing.assert_allclose(estimate["high"], values.mean() + 1.96 * values.std() / 2000**0.5, atol=0.01)
    assert evaluate.interval([4.0, 4.0]) == {"mean": 4, "low": 4, "high": 4}
    assert evaluate.interval([4.0]) == {"mean": 4, "low": None, "high": None}


@pytest.mark.parametrize("flags", [[], ["--count", "steps"], ["--count", "steps", "--pay", "first-visit"]], ids=str)
def test_bonus_of_clusters_equals_a_plain_loop(flags, train_here):
    run = train_here("ppo_lstm_jci.py", *SMALL, "--total-timesteps", 800, *flags)
    args, table, encoder = run["args"], run["table"], run["encoder"]
    checkpoint = {"table": table.state_dict(), "encoder": encoder.state_dict()}
    rng = np.random.default_rng(0)
    frames = [np.full((42, 42, 3), colour, np.uint8) for colour in rng.permutation([*COLOURS, *COLOURS])]
    frames += [rng.integers(256, size=(42, 42, 3), dtype=np.uint8)]  # like nothing seen
    record = [(frame, ppo_lstm.to_obs(frame[None], "cpu")[0], np.zeros(2), 0, 0.0) for frame in frames]
    torch.manual_seed(123)  # the encoder comes from the checkpoint, whatever the weights were drawn to be
    rows, bonuses = evaluate.pay(record, checkpoint, args, None, torch.device("cpu"))
    visited = set()
    for frame, row, bonus in zip(frames, rows, bonuses):
        embedding = encoder(torch.from_numpy(frame).permute(2, 0, 1)[None])[0].numpy()
        cosines = [np.dot(embedding, centre) / np.linalg.norm(embedding) for centre in table.centres.numpy()]
        expected_row = int(np.argmax(cosines)) if max(cosines) >= args.kappa else -1
        assert row == expected_row
        counts = table.episodes if args.count == "episodes" else table.steps
        expected = (1 + (int(counts[row]) if row >= 0 else 0)) ** -0.5
        if args.pay == "first-visit" and row in visited:
            expected = 0
        visited.add(row)
        assert bonus == pytest.approx(expected)
    assert len(set(rows)) > 3
    assert rows[-1] == -1


@pytest.mark.parametrize("script", sorted(path.name for path in ROOT.glob("ppo_lstm*.py")))
def test_every_script(script, train_here, evaluate_here, tmp_path):
    train_here(script, *SMALL, "--total-timesteps", 320)
    (run,) = (tmp_path / "runs").iterdir()
    evaluate_here(run, "--episodes", 6, "--video")
    result = json.loads((run / "eval.json").read_text())
    assert result["script"] == script
    assert result["episodes"] == len(result["returns"]) == 6
    assert result["lengths"] == [4] * 6
    assert result["coverage"]["mean"] == 0.75, "steps lead to three of the four places; where it starts is no visit"
    assert result["success"]["mean"] == np.mean(np.array(result["returns"]) > 0)
    recorded = result["recorded"]
    assert (recorded["rows"] is not None) == (script == "ppo_lstm_jci.py")
    assert (recorded["bonuses"] is not None) == (script in ("ppo_lstm_jci.py", "ppo_lstm_cells.py"))
    if script == "ppo_lstm_cells.py":
        episodes = torch.load(run / "checkpoint.pt", weights_only=True)["cell_counts"]["episodes"]
        assert recorded["bonuses"] == [(episodes[(place, 0)] + 1) ** -0.5 for place in range(4)]
    pictures = imageio.mimread(run / "episode.mp4", memtest=False)
    assert len(pictures) == 4
    assert pictures[0].shape == (720, 1280, 3)
    assert all(picture.std() > 10 for picture in pictures)
    assert (pictures[0] != pictures[-1]).mean() > 0.005, "something moves"


def test_myway_home_from_another_start(train, tmp_path):
    flags = ["--num-envs", 4, "--minibatch-size", 128, "--total-timesteps", 256]
    run = train("ppo_lstm_jci.py", *flags)
    command = [sys.executable, str(ROOT / "evaluate.py"), str(run), "--episodes", "3", "--num-envs", "2"]
    command += ["--task", "very-sparse", "--greedy", "--out", str(tmp_path / "out")]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert "3 episodes of MyWayHome, very-sparse, likeliest actions" in process.stdout
    assert "coverage" in process.stdout
    result = json.loads((tmp_path / "out" / "eval.json").read_text())
    assert (result["task"], result["trained_task"], result["greedy"]) == ("very-sparse", "sparse", True)
    np.testing.assert_allclose(result["recorded"]["positions"][0], [543.986, -672.089], atol=0.01)
    assert len(result["recorded"]["rows"]) == len(result["recorded"]["bonuses"]) == result["lengths"][0]
    assert not (run / "eval.json").exists()
    assert "Traceback" not in process.stderr


def test_larger_frames_are_of_the_same_episode():
    args, script_args = SimpleNamespace(seed=5), SimpleNamespace(env="vizdoom", task="sparse", noisy_tv=False)
    envs = evaluate.MyWayHome("sparse", 3)
    frames, infos = envs.reset(seed=5)
    record, actions = [], np.random.default_rng(0).choice(4, 40, p=[0.1, 0.2, 0.2, 0.5])
    for action in actions:
        record.append((frames[0], None, infos["position"][0], action, 0.0))
        frames, *_, infos = envs.step(np.full(3, action))
    envs.close()
    large = evaluate.larger_frames(args, script_args, record)
    assert len(large) == 40
    for picture, step in zip(large, record):
        reduced = picture.reshape(120, 4, 160, 4, 3).mean((1, 3))
        assert np.corrcoef(reduced.ravel(), step[0].ravel())[0, 1] > 0.9
    elsewhere = [(*step[:2], step[2] + 1, *step[3:]) for step in record]
    assert evaluate.larger_frames(args, script_args, elsewhere)[0].shape == (120, 160, 3)


def test_what_cannot_be_evaluated_is_said_in_a_sentence(train_here, evaluate_here, tmp_path):
    train_here("ppo_lstm.py", *SMALL, "--total-timesteps", 160)
    (run,) = (tmp_path / "runs").iterdir()
    for arguments, sentence in [
        ((tmp_path,), "no args.json in it; give the folder of a run"),
        ((run, "--task", "dense"), "--task is for MyWayHome; this run is of --env memory"),
        ((run, "--episodes", 0), "must be at least 1"),
    ]:
        with pytest.raises(SystemExit, match=sentence):
            evaluate_here(*arguments)
    for checkpoint in run.glob("checkpoint*.pt"):
        checkpoint.write_bytes(b"damaged")
    with pytest.raises(SystemExit, match="no readable checkpoint in it"):
        evaluate_here(run)
    about = (run / "args.json").read_text()
    (run / "args.json").write_text(about.replace("ppo_lstm.py", "mine.py"))
    with pytest.raises(SystemExit, match="mine.py, which began this run, is not beside evaluate.py"):
        evaluate_here(run)
