"""Random Network Distillation: the normalisers against plain loops, the predictor on a chain, a whole rollout."""

import copy

import numpy as np
import pytest
import torch

from common.running_stats import RunningMeanStd
from ppo_lstm_rnd import RND, ReturnNormalizer, normalize

SMALL = ["--env", "memory", "--num-envs", 4, "--num-steps", 32, "--bptt-length", 16, "--minibatch-size", 64]


def states(num_states, seed=0):
    """Frames of a chain, one random picture for each state; and statistics in which they are nothing special."""
    frames = torch.randint(
        256, (num_states, 3, 42, 42), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed)
    )
    stats = RunningMeanStd((3, 42, 42))
    stats.update(torch.randint(256, (64, 3, 42, 42), generator=torch.Generator().manual_seed(seed + 1)))
    return frames, stats


def train_once(rnd, optimizer, x):
    loss = rnd(x).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def test_the_return_filter_runs_over_time_in_each_environment():
    num_steps, num_envs, gamma = 11, 3, 0.9
    rng = np.random.default_rng(0)
    normalizer = ReturnNormalizer(num_envs, gamma)
    sums, history = [0.0] * num_envs, []
    for _ in range(4):  # rollouts: neither the sums nor the deviation starts anew
        errors = rng.gamma(2, [0.1, 1, 10], size=(num_steps, num_envs))  # each environment on a level of its own
        for t in range(num_steps):
            for env in range(num_envs):
                sums[env] = gamma * sums[env] + errors[t, env]
                history.append(sums[env])
        bonuses = normalizer(torch.from_numpy(errors).float())
        np.testing.assert_allclose(bonuses, errors / np.sqrt(np.var(history) + 1e-8), rtol=1e-4)
    np.testing.assert_allclose(normalizer.sums, sums, rtol=1e-5)
    assert normalizer.stats.count == 4 * num_steps * num_envs


def test_frames_are_normalised_pixel_by_pixel_and_clipped():
    frames, stats = states(50)
    frames[:, 0, 0, 0] = 7  # a pixel that never changes
    stats = RunningMeanStd((3, 42, 42))
    for chunk in frames.split(20):
        stats.update(chunk)
    odd_frame = torch.full((1, 3, 42, 42), 255, dtype=torch.uint8)
    x = normalize(torch.cat([frames, odd_frame]), stats).numpy()
    pixels = frames.double().numpy()
    expected = (pixels - pixels.mean(0)) / np.sqrt(pixels.var(0) + 1e-8)
    np.testing.assert_allclose(x[:-1], np.clip(expected, -5, 5), atol=1e-4)
    assert x[-1, 0, 0, 0] == 5, "where nothing ever changed, any change is clipped"
    assert np.abs(x).max() == 5


def test_error_is_the_mean_over_512_features_and_the_target_is_larger_than_nothing():
    frames, stats = states(6)
    rnd = RND()
    x = normalize(frames, stats)
    difference = (rnd.predictor(x) - rnd.target(x)).detach().numpy()
    np.testing.assert_allclose(rnd(x).detach(), [np.sum(row**2) / 512 for row in difference], rtol=1e-5)
    assert rnd.target(x).var(0).mean() > 0.1, "frames must differ in the target's eyes"


def test_the_gradient_reaches_the_predictor_only():
    frames, stats = states(6)
    rnd = RND()
    rnd(normalize(frames, stats)).mean().backward()
    assert all(parameter.grad is None for parameter in rnd.target.parameters())
    assert all(parameter.grad.abs().max() > 0 for parameter in rnd.predictor.parameters())


def test_a_new_state_pays_more_than_a_visited_one_and_visits_add_up():
    torch.manual_seed(0)
    frames, stats = states(5)
    rnd = RND()
    optimizer = torch.optim.Adam(rnd.predictor.parameters(), lr=3e-4)
    x = normalize(frames, stats)
    before = rnd(x).detach()
    for step in range(40):
        visited = [0, 1, 2] if step % 4 == 0 else [0, 1]  # state 2 is rarer than 0 and 1; 3 and 4 are never seen
        train_once(rnd, optimizer, x[visited])
    after = rnd(x).detach()
    assert max(after[[0, 1]]) < after[2] < min(after[[3, 4]])
    assert max(after[[0, 1, 2]]) < 0.5 * min(before)


def test_comes_back_from_its_state_bit_for_bit():
    frames, stats = states(8)
    x = normalize(frames, stats)

    def new_parts():
        rnd = RND()
        return rnd, torch.optim.Adam(rnd.predictor.parameters(), lr=1e-4), ReturnNormalizer(4, 0.99)

    original, other = new_parts(), new_parts()
    for _ in range(3):
        train_once(*original[:2], x)
        original[2](original[0](x).detach().view(2, 4))
    saved = copy.deepcopy([part.state_dict() for part in original])
    for part, state in zip(other, saved):
        part.load_state_dict(state)
    results = []
    for rnd, optimizer, normalizer in (original, other):
        train_once(rnd, optimizer, x)
        results.append((rnd(x).detach(), normalizer(rnd(x).detach().view(2, 4))))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


def test_a_run_resumed_with_other_environments_starts_them_at_the_mean():
    normalizer, other = ReturnNormalizer(4, 0.5), ReturnNormalizer(2, 0.5)
    normalizer(torch.tensor([[1.0, 2.0, 3.0, 6.0]]))
    other.load_state_dict(normalizer.state_dict())
    assert other.sums.tolist() == [3, 3]
    assert other(torch.ones(5, 2)).shape == (5, 2)


def test_a_rollout_looks_at_the_frame_each_step_led_to(train_here):
    run = train_here("ppo_lstm_rnd.py", *SMALL, "--total-timesteps", 128, "--int-coef", 2)
    obs, looked_at, ends = run["obs"], run["next_observations"], run["ends"].bool()
    assert ends.sum() == 8 * 4  # an episode of the corridor is four steps
    assert (looked_at[ends] == 255).all(), "an episode's last frame is white; the next one's first is coloured"
    assert torch.equal(looked_at[:-1][~ends[:-1]], obs[1:][~ends[:-1]])
    # the statistics are those of the very frames that are paid for, from the first rollout on
    pixels = looked_at.flatten(0, 1).double()
    torch.testing.assert_close(run["observation_stats"].mean, pixels.mean(0))
    torch.testing.assert_close(run["observation_stats"].var, pixels.var(0, correction=0))
    expected = 10 * (run["rewards"] + 2 * run["errors"].view(32, 4) / run["return_normalizer"].stats.std.float())
    torch.testing.assert_close(run["total_rewards"], expected)
    # frames that look alike pay alike, however the steps were cut into chunks: all last frames are the same
    assert run["intrinsic_rewards"][ends].std() < 1e-5 * run["intrinsic_rewards"][ends].mean()
    assert set(run["method"]) == {"rnd", "rnd_optimizer", "observation_stats", "return_normalizer", "bonus_log"}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--rnd-minibatch-size", 0], "--rnd-minibatch-size must be at least 1"),
        (["--int-gamma", 1], "--int-gamma 1.0 must be at least 0 and below 1"),
    ],
)
def test_bad_flags_are_refused(flags, message, train_here, tmp_path):
    with pytest.raises(SystemExit, match=message):
        train_here("ppo_lstm_rnd.py", *SMALL, *flags)
    assert not list(tmp_path.iterdir())
