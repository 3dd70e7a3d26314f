"""E3B: the rank-one updates against the inverse of the whole matrix, episode by episode, and the inverse dynamics."""

import copy
import textwrap
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from conftest import ROOT

from common.checkpoints import require_finite
from ppo_lstm_e3b import Dynamics, EllipticalBonus
from tools import sync_core

SMALL = ["--env", "memory", "--num-envs", 4, "--num-steps", 32, "--bptt-length", 16, "--minibatch-size", 64]
SLOTS = sync_core.split((ROOT / "ppo_lstm_e3b.py").read_text(), "ppo_lstm_e3b.py")[1]


def from_the_definition(features, dones, ridge):
    """Features (T, N, D): at every step the sum over the episode so far, and its inverse, from scratch.

    The first frame of an episode is part of the sum, but pays nothing.
    """
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
            bonuses[t, env] = 0 if dones[t, env] else phi @ torch.inverse(covariance) @ phi
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


def test_the_first_frame_pays_nothing_but_is_part_of_the_ellipsoid():
    bonus = EllipticalBonus(2, 4, 0.1, "cpu")
    chain = torch.eye(4)[
        torch.tensor([[0, 0], [0, 1]])
    ]  # (T, N, D): one environment stays where it started, one does not
    torch.testing.assert_close(
        bonus(chain, torch.tensor([[1.0, 1], [0, 0]])), torch.tensor([[0, 0], [1 / 1.1, 1 / 0.1]])
    )


def test_an_episode_forgets_the_one_before_and_only_in_its_own_environment():
    features = torch.ones(4, 2, 4)
    bonus = EllipticalBonus(2, 4, 0.1, "cpu")
    bonuses = bonus(features, torch.tensor([[1.0, 1], [0, 0], [0, 1], [0, 0]]))
    assert bonuses[0].tolist() == [0, 0]
    assert bonuses[2, 1] == 0
    assert torch.equal(bonuses[3, 1], bonuses[1, 1]), "a second step pays like any second step"
    assert bonuses[3, 0] < bonuses[2, 0] < bonuses[1, 0]
    again = bonus(features[:2], torch.tensor([[0.0, 1.0], [0, 0]]))
    assert again[0, 0] < bonuses[3, 0], "no episode ended: the rollout's end changes nothing"
    assert again[1, 1] == bonuses[1, 1]


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
    dynamics = Dynamics(4)
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
    dynamics = Dynamics(3)
    optimizer = torch.optim.Adam(dynamics.parameters(), lr=1e-3)
    for _ in range(40):
        train_once(dynamics, optimizer, *moves(32))
    frames, next_frames, actions = moves(128)
    assert (dynamics(frames, next_frames).argmax(1) == actions).float().mean() > 0.8  # chance is a third
    assert (dynamics(next_frames, frames).argmax(1) == 2 - actions).float().mean() > 0.8, "the order matters"


def test_update_names_the_action_of_every_transition_once():
    """The script's own update: a step of Adam on the cross entropy of each minibatch, together all transitions."""
    torch.manual_seed(0)
    frames, next_frames, actions = moves(10)
    dynamics = Dynamics(3)
    expected, seen = copy.deepcopy(dynamics), []
    optimizer, other_optimizer = (torch.optim.Adam(model.parameters(), lr=1e-3) for model in (dynamics, expected))

    def record(*transitions):
        seen.append(transitions)
        return dynamics(*transitions)

    rollout = dict(obs=frames.view(5, 2, 3, 42, 42), next_observations=next_frames.view(5, 2, 3, 42, 42))
    args = SimpleNamespace(dynamics_minibatch_size=4)
    variables = dict(rollout, actions=actions.view(5, 2), dynamics=record, dynamics_optimizer=optimizer, args=args)
    variables.update(batch_size=10, torch=torch, F=F, device="cpu", require_finite=require_finite)
    exec(textwrap.dedent(SLOTS["update"]), variables)
    assert [len(mb_frames) for mb_frames, _ in seen] == [4, 4, 2]
    order = [(mb_frames[:, None] == frames).all((2, 3, 4)).int().argmax(1) for mb_frames, _ in seen]
    assert sorted(torch.cat(order).tolist()) == list(range(10))
    for indices, (_, mb_next_frames), loss in zip(order, seen, variables["inverse_losses"]):
        assert torch.equal(mb_next_frames, next_frames[indices])
        transitions = frames[indices], next_frames[indices], actions[indices]
        torch.testing.assert_close(loss, F.cross_entropy(expected(*transitions[:2]), transitions[2]).detach())
        train_once(expected, other_optimizer, *transitions)
    for parameter, other in zip(dynamics.parameters(), expected.parameters()):
        torch.testing.assert_close(parameter, other)


def test_comes_back_from_its_state_bit_for_bit():
    torch.manual_seed(0)
    transitions = moves(32)

    def new_parts():
        dynamics = Dynamics(3)
        return dynamics, torch.optim.Adam(dynamics.parameters(), lr=1e-4)

    original, other = new_parts(), new_parts()
    for _ in range(3):
        train_once(*original, *transitions)
    for part, state in zip(other, copy.deepcopy([part.state_dict() for part in original])):
        part.load_state_dict(state)
    for parts in (original, other):
        train_once(*parts, *transitions)
    assert torch.equal(original[0].encode(transitions[0]), other[0].encode(transitions[0]))


@pytest.mark.parametrize("normalized", [True, False], ids=["normalised", "as-it-is"])
def test_a_rollout_is_paid_by_the_definition(normalized, train_here):
    """With an encoder that does not learn, so that it can be asked again after the rollout."""
    flags = ["--total-timesteps", 128, "--dynamics-learning-rate", 1e-30, "--ext-coef", 3, "--int-coef", 2]
    run = train_here("ppo_lstm_e3b.py", *SMALL, *flags, *([] if normalized else ["--no-norm-bonus"]))
    assert not run["features"].requires_grad
    with torch.no_grad():
        features = torch.stack([run["dynamics"].encode(row) for row in run["obs"]])
    dones, ends = run["dones"], run["ends"].bool()
    assert dones.sum() == 8 * 4  # an episode of the corridor is four steps
    bonus = from_the_definition(features, dones, 0.1)
    assert ((bonus == 0) == dones.bool()).all()
    assert run["rewards"].sum() > 0
    expected = 3 * run["rewards"] + 2 * bonus / (bonus.mean() if normalized else 1)
    torch.testing.assert_close(run["total_rewards"], expected, rtol=1e-3, atol=1e-4)
    # the inverse model sees the true last frame, which is white in the corridor, not the next episode's first
    assert (run["next_observations"][ends] == 255).all()
    assert torch.equal(run["next_observations"][:-1][~ends[:-1]], run["obs"][1:][~ends[:-1]])
    for name in ("dynamics", "dynamics_optimizer"):
        assert run["saved"][name] is run[name], "it must be in checkpoints"
    # the policy's optimiser does not move the encoder, nor the encoder's the policy
    owned = {id(parameter) for group in run["dynamics_optimizer"].param_groups for parameter in group["params"]}
    assert owned == {id(parameter) for parameter in run["dynamics"].parameters()}
    assert owned.isdisjoint(id(parameter) for parameter in run["agent"].parameters())
