"""E3B: the rank-one updates against the inverse of the whole matrix, episode by episode, and the inverse dynamics."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from common.running_stats import RunningMeanStd
from ppo_lstm_e3b import EllipticalBonus, InverseDynamics

SMALL = ["--env", "memory", "--num-envs", 4, "--num-steps", 32, "--bptt-length", 16, "--minibatch-size", 64]


def from_the_definition(features, dones, ridge):
    """Features (T, N, D): at every step the sum over the episode so far, and its inverse, from scratch."""
    num_steps, num_envs, size = features.shape
    bonuses = torch.zeros(num_steps, num_envs)
    for env in range(num_envs):
        episode = []
        for t in range(num_steps):
            if dones[t, env]:
                episode = []
            covariance = ridge * torch.eye(size, dtype=torch.float64)
            for phi in episode:
                covariance += torch.outer(phi, phi)
            phi = features[t, env].double()
            bonuses[t, env] = phi @ torch.inverse(covariance) @ phi
            episode.append(phi)
    return bonuses


@pytest.mark.parametrize("ridge", [0.1, 2.0])
def test_bonuses_equal_the_definition_with_episodes_that_end_anywhere(ridge):
    num_steps, num_envs, size = 60, 3, 8
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(num_steps, num_envs, size, generator=generator) * torch.tensor([0.1, 1, 10])[:, None]
    dones = (torch.rand(num_steps, num_envs, generator=generator) < 0.1).float()
    dones[0] = 1
    assert dones[1:].sum(0).min() >= 1, "every environment starts an episode inside the rollout"
    bonus = EllipticalBonus(num_envs, size, ridge, "cpu")
    rollouts = zip(features.split(20), dones.split(20))  # an episode goes on from one rollout to the next
    bonuses = torch.cat([bonus(*rollout) for rollout in rollouts])
    torch.testing.assert_close(bonuses, from_the_definition(features, dones, ridge), rtol=1e-4, atol=1e-6)


def test_a_new_state_pays_more_than_a_visited_one():
    chain = torch.eye(5)[[0, 0, 0, 1, 0, 2]][:, None]  # (T, 1, D): states are directions
    bonuses = EllipticalBonus(1, 5, 0.1, "cpu")(chain, torch.zeros(6, 1)).flatten()
    # C is diagonal: a direction that was visited n times pays 1 / (ridge + n)
    torch.testing.assert_close(bonuses, torch.tensor([1 / 0.1, 1 / 1.1, 1 / 2.1, 1 / 0.1, 1 / 3.1, 1 / 0.1]))


def test_an_episode_forgets_the_one_before_and_only_in_its_own_environment():
    features = torch.ones(3, 2, 4)
    bonus = EllipticalBonus(2, 4, 0.1, "cpu")
    bonuses = bonus(features, torch.tensor([[1.0, 1], [0, 0], [0, 1]]))
    assert torch.equal(bonuses[2, 1], bonuses[0, 1]), "a first step pays like any first step"
    assert bonuses[2, 0] < bonuses[1, 0] < bonuses[0, 0]
    again = bonus(features[:1], torch.tensor([[0.0, 1.0]]))
    assert again[0, 0] < bonuses[2, 0], "no episode ended: the rollout's end changes nothing"
    assert again[0, 1] == bonuses[0, 1]


def test_a_resumed_run_needs_no_covariances():
    features = torch.randn(10, 2, 6)
    used, fresh = EllipticalBonus(2, 6, 0.1, "cpu"), EllipticalBonus(2, 6, 0.1, "cpu")
    used(torch.randn(30, 2, 6), torch.zeros(30, 2))
    dones = torch.zeros(10, 2)
    dones[0] = 1  # fresh episodes everywhere
    assert torch.equal(used(features, dones), fresh(features, dones))


def test_a_player_who_stands_still_is_paid_one_over_the_steps_however_large_the_features():
    phi = 10 * torch.randn(288, generator=torch.Generator().manual_seed(0))
    bonuses = EllipticalBonus(1, 288, 0.1, "cpu")(phi.expand(525, 1, 288), torch.zeros(525, 1)).flatten()
    size = (phi.double() ** 2).sum()
    expected = size / (0.1 + torch.arange(525) * size)  # C^-1 phi = phi / (ridge + n |phi|^2) after n equal steps
    torch.testing.assert_close(bonuses, expected.float(), rtol=1e-4, atol=0)


def test_the_gradient_of_the_inverse_loss_reaches_encoder_and_inverse_model():
    torch.manual_seed(0)
    dynamics = InverseDynamics(4)
    frames = torch.randint(256, (2, 16, 3, 42, 42), dtype=torch.uint8)
    F.cross_entropy(dynamics(*frames), torch.randint(4, (16,))).backward()
    for name, parameter in dynamics.named_parameters():
        assert parameter.grad.abs().max() > 0, name
    assert {name.split(".")[0] for name, _ in dynamics.named_parameters()} == {"encoder", "inverse"}


def moves(num_moves):
    """A bright bar that an action shifts to the left (0), not at all (1), or to the right (2), in front of noise."""
    actions = torch.randint(3, (num_moves,))
    places = torch.randint(6, 30, (num_moves,))
    frames = torch.randint(60, (2, num_moves, 3, 42, 42), dtype=torch.uint8)
    for i in range(num_moves):
        frames[0, i, :, :, places[i] : places[i] + 6] = 255
        places[i] += 5 * (actions[i] - 1)
        frames[1, i, :, :, places[i] : places[i] + 6] = 255
    return frames[0], frames[1], actions


def train_once(dynamics, optimizer, frames, next_frames, actions):
    loss = F.cross_entropy(dynamics(frames, next_frames), actions)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def test_the_inverse_model_learns_which_action_was_taken():
    torch.manual_seed(0)
    dynamics = InverseDynamics(3)
    optimizer = torch.optim.Adam(dynamics.parameters(), lr=1e-3)
    for _ in range(40):
        train_once(dynamics, optimizer, *moves(32))
    frames, next_frames, actions = moves(128)
    assert (dynamics(frames, next_frames).argmax(1) == actions).float().mean() > 0.8  # chance is a third
    assert (dynamics(next_frames, frames).argmax(1) == 2 - actions).float().mean() > 0.8, "the order matters"


def test_comes_back_from_its_state_bit_for_bit():
    torch.manual_seed(0)
    transitions = moves(32)

    def new_parts():
        dynamics = InverseDynamics(3)
        return dynamics, torch.optim.Adam(dynamics.parameters(), lr=1e-4), RunningMeanStd()

    original, other = new_parts(), new_parts()
    for _ in range(3):
        train_once(*original[:2], *transitions)
        original[2].update(torch.rand(5))
    saved = copy.deepcopy([part.state_dict() for part in original])
    for part, state in zip(other, saved):
        part.load_state_dict(state)
    for dynamics, optimizer, stats in (original, other):
        train_once(dynamics, optimizer, *transitions)
        stats.update(torch.ones(3))
    assert torch.equal(original[0].encode(transitions[0]), other[0].encode(transitions[0]))
    assert torch.equal(original[2].std, other[2].std)


@pytest.mark.parametrize("normalized", [True, False], ids=["normalised", "as-it-is"])
def test_a_rollout_is_paid_by_the_definition(normalized, train_here):
    flags = ["--total-timesteps", 128, "--int-coef", 2, *([] if normalized else ["--no-normalize-bonus"])]
    run = train_here("ppo_lstm_e3b.py", *SMALL, *flags)
    features, dones, ends = run["features"].view(32, 4, 288), run["dones"], run["ends"].bool()
    assert not features.requires_grad
    assert dones.sum() == 8 * 4  # an episode of the corridor is four steps
    bonuses = from_the_definition(features, dones, 0.1)
    deviation = np.std(bonuses.double().numpy())
    assert run["metrics"]["intrinsic/normalizer_std"] == pytest.approx(deviation, rel=1e-4)
    expected = 10 * (run["rewards"] + 2 * bonuses / (deviation if normalized else 1))
    torch.testing.assert_close(run["total_rewards"], expected, rtol=1e-3, atol=1e-5)
    # the inverse model sees the true last frame, which is white in the corridor, not the next episode's first
    assert (run["next_observations"][ends] == 255).all()
    assert torch.equal(run["next_observations"][:-1][~ends[:-1]], run["obs"][1:][~ends[:-1]])
    # the policy's optimiser does not move the encoder, nor the encoder's the policy
    owned = {id(parameter) for group in run["dynamics_optimizer"].param_groups for parameter in group["params"]}
    assert owned == {id(parameter) for parameter in run["dynamics"].parameters()}
    assert owned.isdisjoint(id(parameter) for parameter in run["agent"].parameters())


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--ridge", 0], "--ridge 0.0 must be above 0"),
        (["--inverse-minibatch-size", 0], "--inverse-minibatch-size must be at least 1"),
    ],
)
def test_bad_flags_are_refused(flags, message, train_here, tmp_path):
    with pytest.raises(SystemExit, match=message):
        train_here("ppo_lstm_e3b.py", *SMALL, *flags)
    assert not list(tmp_path.iterdir())
