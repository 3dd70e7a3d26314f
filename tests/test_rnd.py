"""Random Network Distillation: the errors by hand, the predictor on a chain, a whole rollout by the definition."""

import copy
import textwrap
from types import SimpleNamespace

import numpy as np
import torch
from conftest import ROOT

from common.checkpoints import require_finite
from common.running_stats import RunningMeanStd
from ppo_lstm_rnd import RND, normalize
from tools import sync_core

SMALL = ["--env", "memory", "--num-envs", 4, "--num-steps", 32, "--bptt-length", 16, "--minibatch-size", 64]
SLOTS = sync_core.split((ROOT / "ppo_lstm_rnd.py").read_text(), "ppo_lstm_rnd.py")[1]


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

    def new_parts():
        rnd = RND()
        return rnd, torch.optim.Adam(rnd.predictor.parameters(), lr=1e-4), RunningMeanStd((3, 42, 42))

    original, other = new_parts(), new_parts()
    original[2].update(frames)
    for _ in range(3):
        train_once(*original[:2], normalize(frames, original[2]))
    for part, state in zip(other, copy.deepcopy([part.state_dict() for part in original])):
        part.load_state_dict(state)
    errors = []
    for rnd, optimizer, observation_stats in (original, other):
        x = normalize(frames, observation_stats)
        train_once(rnd, optimizer, x)
        errors.append(rnd(x).detach())
    assert torch.equal(*errors)


def test_update_teaches_the_predictor_every_frame_once():
    """The script's own update: a step of Adam on the mean error of each minibatch, together all frames."""
    torch.manual_seed(1)
    frames, stats = states(10)
    rnd = RND()
    expected, seen = copy.deepcopy(rnd), []
    optimizer, other_optimizer = (torch.optim.Adam(model.predictor.parameters(), lr=1e-3) for model in (rnd, expected))

    def record(observations, stats):
        seen.append(observations)
        return normalize(observations, stats)

    args = SimpleNamespace(predictor_minibatch_size=4)
    variables = dict(rnd=rnd, predictor_optimizer=optimizer, observation_stats=stats, b_next_obs=frames, args=args)
    variables.update(batch_size=10, normalize=record, torch=torch, device="cpu", require_finite=require_finite)
    exec(textwrap.dedent(SLOTS["update"]), variables)
    assert [len(chunk) for chunk in seen] == [4, 4, 2]
    assert sorted(frame.tolist() for frame in torch.cat(seen)) == sorted(frame.tolist() for frame in frames)
    for chunk, loss in zip(seen, variables["predictor_losses"]):
        torch.testing.assert_close(loss, expected(normalize(chunk, stats)).mean().detach())
        train_once(expected, other_optimizer, normalize(chunk, stats))
    for parameter, other in zip(rnd.parameters(), expected.parameters()):
        torch.testing.assert_close(parameter, other)


def test_a_rollout_is_paid_by_the_definition(train_here):
    """With a predictor that does not learn, so that it can be asked again, and noise, so that no frame comes twice."""
    flags = ["--total-timesteps", 128, "--predictor-learning-rate", 1e-30, "--ext-coef", 3, "--int-coef", 2]
    run = train_here("ppo_lstm_rnd.py", *SMALL, *flags, "--noisy-tv")
    obs, looked_at, ends = run["obs"], run["next_observations"], run["ends"].bool()
    assert ends.sum() == 8 * 4  # an episode of the corridor is four steps
    # beside the noise an episode's last frame is white; the next one's first is coloured
    assert (looked_at[ends][..., :16] == 255).all()
    assert torch.equal(looked_at[:-1][~ends[:-1]], obs[1:][~ends[:-1]])
    # the statistics are those of the very frames that are paid for, from the first rollout on
    pixels = looked_at.flatten(0, 1).double().numpy()
    x = torch.from_numpy(np.clip((pixels - pixels.mean(0)) / np.sqrt(pixels.var(0) + 1e-8), -5, 5)).float()
    with torch.no_grad():
        differences = (run["rnd"].predictor(x) - run["rnd"].target(x)).numpy()
    bonus = torch.tensor([np.mean(row**2) for row in differences]).view(32, 4)
    assert bonus.std() > 0.05 * bonus.mean()
    assert len(bonus.unique()) == 128
    assert run["rewards"].sum() > 0
    expected = 3 * run["rewards"] + 2 * bonus / bonus.mean()
    torch.testing.assert_close(run["total_rewards"], expected, rtol=1e-3, atol=1e-4)
    for name in ("rnd", "predictor_optimizer", "observation_stats"):
        assert run["saved"][name] is run[name], "it must be in checkpoints"
