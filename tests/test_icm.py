"""Curiosity: the two losses, who learns from which, and the bonus as the script pays it."""

import textwrap
from copy import deepcopy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import ROOT

from common.checkpoints import require_finite
from ppo_lstm_icm import Dynamics, rollout_features
from tools import sync_core

SLOTS = sync_core.split((ROOT / "ppo_lstm_icm.py").read_text(), "ppo_lstm_icm.py")[1]
SMALL = ["--env", "memory", "--num-envs", 4, "--num-steps", 32, "--bptt-length", 16, "--minibatch-size", 64]


def make_dynamics(seed=0, num_actions=4):
    torch.manual_seed(seed)
    return Dynamics(num_actions)


def random_frames(*shape):
    return torch.randint(256, (*shape, 3, 42, 42), dtype=torch.uint8)


def random_rollout(num_steps, num_envs):
    """A rollout in which environment n ends at every (n + 3)rd step; o_t+1 is o_t of the next row but for the ends."""
    obs = random_frames(num_steps, num_envs)
    ends = torch.zeros(num_steps, num_envs)
    for env in range(num_envs):
        ends[env + 2 :: env + 3, env] = 1
    next_observations = torch.cat([obs[1:], random_frames(1, num_envs)])
    next_observations[ends.bool()] = random_frames(int(ends.sum()))
    return obs, torch.randint(4, (num_steps, num_envs)), next_observations, ends


def by_hand(dynamics, frame, action, next_frame):
    """One transition through the layers one by one: logits of the inverse model, error of the forward model."""

    def phi(frame):
        x = frame[None].double() / 255
        for layer in dynamics.encoder:
            if isinstance(layer, torch.nn.Conv2d):
                x = F.elu(F.conv2d(x, layer.weight.double(), layer.bias.double(), stride=2, padding=1))
        return x.reshape(288)

    def mlp(model, x):
        hidden = (model[0].weight.double() @ x + model[0].bias.double()).clamp(min=0)
        return model[2].weight.double() @ hidden + model[2].bias.double()

    here, there = phi(frame), phi(next_frame)
    one_hot = torch.zeros(dynamics.num_actions, dtype=torch.float64)
    one_hot[action] = 1
    prediction = mlp(dynamics.forward_model, torch.cat([here, one_hot]))
    error = 288 * 0.5 * ((prediction - there) ** 2).mean()  # as the authors' code writes it
    return mlp(dynamics.inverse_model, torch.cat([here, there])), error


def test_both_models_equal_a_pass_by_hand():
    dynamics = make_dynamics()
    obs, next_obs, actions = random_frames(6), random_frames(6), torch.randint(4, (6,))
    features, next_features = dynamics.encode(obs), dynamics.encode(next_obs)
    logits = dynamics.inverse_logits(features, next_features)
    errors = dynamics.forward_errors(features, actions, next_features)
    assert [layer.out_features for layer in dynamics.forward_model if hasattr(layer, "out_features")] == [256, 288]
    assert [layer.out_features for layer in dynamics.inverse_model if hasattr(layer, "out_features")] == [256, 4]
    for i in range(6):
        expected_logits, expected_error = by_hand(dynamics, obs[i], actions[i], next_obs[i])
        torch.testing.assert_close(logits[i].double(), expected_logits, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(errors[i].double(), expected_error, rtol=1e-4, atol=1e-6)


def gradients(dynamics, loss):
    """The parts of the models into which a loss sends gradients."""
    dynamics.zero_grad()
    loss.backward(retain_graph=True)
    parts = ("encoder", "inverse_model", "forward_model")
    reached = set()
    for part in parts:
        grads = [parameter.grad for parameter in getattr(dynamics, part).parameters()]
        assert len({grad is None for grad in grads}) == 1, "a part gets gradients as a whole"
        if grads[0] is not None and all(grad.abs().max() > 0 for grad in grads):
            reached.add(part)
    return reached


def test_each_loss_trains_phi_and_its_own_model_only():
    dynamics = make_dynamics()
    actions = torch.randint(4, (8,))
    features, next_features = dynamics.encode(random_frames(8)), dynamics.encode(random_frames(8))
    inverse_loss = F.cross_entropy(dynamics.inverse_logits(features, next_features), actions)
    forward_loss = dynamics.forward_errors(features, actions, next_features).mean()
    assert gradients(dynamics, inverse_loss) == {"encoder", "inverse_model"}
    assert gradients(dynamics, forward_loss) == {"encoder", "forward_model"}


@pytest.mark.parametrize("loss", ["forward", "inverse"])
def test_gradients_enter_phi_from_both_ends_of_a_transition(loss):
    """As in the original, phi(o_t+1) is not held fixed, neither for the inverse nor for the forward model."""
    dynamics = make_dynamics()
    actions = torch.randint(4, (8,))
    features, next_features = dynamics.encode(random_frames(8)), dynamics.encode(random_frames(8))
    if loss == "forward":
        value = dynamics.forward_errors(features, actions, next_features).mean()
        prediction = dynamics.forward_model(torch.cat([features, F.one_hot(actions, 4)], -1))
        expected = (next_features - prediction) / 8
        torch.testing.assert_close(torch.autograd.grad(value, next_features, retain_graph=True)[0], expected)
    else:
        value = F.cross_entropy(dynamics.inverse_logits(features, next_features), actions)
    for end in (features, next_features):
        assert torch.autograd.grad(value, end, retain_graph=True)[0].abs().max() > 0


def test_rollout_features_equal_embedding_every_frame():
    torch.manual_seed(1)
    dynamics = make_dynamics()
    obs, _, next_observations, ends = random_rollout(9, 3)
    features, next_features = rollout_features(dynamics, obs, next_observations, ends)
    torch.testing.assert_close(features, dynamics.encode(obs).detach(), rtol=0, atol=1e-6)
    torch.testing.assert_close(next_features, dynamics.encode(next_observations).detach(), rtol=0, atol=1e-6)
    assert not features.requires_grad
    assert not next_features.requires_grad
    # without an end, too
    _, next_features = rollout_features(dynamics, obs, next_observations, torch.zeros_like(ends))
    torch.testing.assert_close(next_features[:-1], features[1:])


def train_once(dynamics, optimizer, obs, actions, next_observations, minibatch_size=16):
    """The script's own update."""
    args = SimpleNamespace(dynamics_minibatch_size=minibatch_size, forward_coef=0.2, inverse_coef=0.8)
    variables = dict(dynamics=dynamics, dynamics_optimizer=optimizer, obs=obs, actions=actions, args=args, device="cpu")
    variables.update(
        next_observations=next_observations, batch_size=actions.numel(), torch=torch, F=F, require_finite=require_finite
    )
    exec(textwrap.dedent(SLOTS["update"]), variables)
    return torch.stack(variables["dynamics_losses"])


def test_update_minimises_both_losses_with_their_weights():
    """One minibatch of all transitions is a step of Adam on 0.8 inverse + 0.2 forward."""
    torch.manual_seed(3)
    obs, actions, next_observations, _ = random_rollout(8, 2)
    dynamics, copy = make_dynamics(), make_dynamics()
    losses = train_once(dynamics, torch.optim.Adam(dynamics.parameters(), lr=1e-3), obs, actions, next_observations)
    optimizer = torch.optim.Adam(copy.parameters(), lr=1e-3)
    features, next_features = copy.encode(obs), copy.encode(next_observations)
    logits = copy.inverse_logits(features, next_features).flatten(0, 1)
    inverse_loss = F.cross_entropy(logits, actions.flatten())
    prediction = copy.forward_model(torch.cat([features, F.one_hot(actions, 4)], -1))
    forward_loss = 0.5 * F.mse_loss(prediction, next_features)
    (0.8 * inverse_loss + 0.2 * forward_loss).backward()
    optimizer.step()
    accuracy = (logits.argmax(1) == actions.flatten()).double().mean().item()
    np.testing.assert_allclose(losses[0], [forward_loss.item(), inverse_loss.item(), accuracy], rtol=1e-5)
    for parameter, expected in zip(dynamics.parameters(), copy.parameters()):
        torch.testing.assert_close(parameter, expected, rtol=0, atol=5e-4)  # where a gradient is 0 its sign is noise


def chain(num_states=5):
    """Frames of a corridor with a pattern of its own in every place."""
    torch.manual_seed(4)
    return F.interpolate(torch.rand(num_states, 3, 6, 6) * 255, (42, 42)).to(torch.uint8)


def test_a_new_transition_pays_more_than_a_known_one():
    dynamics, places = make_dynamics(), chain()
    optimizer = torch.optim.Adam(dynamics.parameters(), lr=1e-3)
    known, actions = torch.tensor([[0, 1, 2, 1]]), torch.tensor([[0, 0, 1, 1]])  # right, right, left, left
    leads_to = torch.tensor([[1, 2, 1, 0]])
    for _ in range(200):
        losses = train_once(dynamics, optimizer, places[known], actions, places[leads_to])
    assert losses[-1, 2] == 1, "four transitions can be told apart"

    def bonus(here, action, there):
        here, there = dynamics.encode(places[[here]]), dynamics.encode(places[[there]])
        return dynamics.forward_errors(here, torch.tensor([action]), there).item()

    worst_known = max(bonus(*transition) for transition in torch.cat([known, actions, leads_to]).T.tolist())
    for transition in [(2, 0, 3), (3, 0, 4), (3, 1, 2), (0, 0, 4)]:
        assert bonus(*transition) > 5 * worst_known


def test_everything_comes_back_from_its_state():
    torch.manual_seed(5)
    rollouts = [random_rollout(8, 2) for _ in range(3)]
    dynamics = make_dynamics(seed=6)
    optimizer = torch.optim.Adam(dynamics.parameters(), lr=1e-3)
    for obs, actions, next_observations, _ in rollouts[:2]:
        train_once(dynamics, optimizer, obs, actions, next_observations, 5)
    saved = deepcopy([part.state_dict() for part in (dynamics, optimizer)])  # as a file would
    copy = make_dynamics(seed=7)
    copied_optimizer = torch.optim.Adam(copy.parameters(), lr=1e-3)
    for part, state in zip((copy, copied_optimizer), saved):
        part.load_state_dict(state)

    obs, actions, next_observations, ends = rollouts[2]
    results = []
    for parts in ((dynamics, optimizer), (copy, copied_optimizer)):
        torch.manual_seed(8)  # the order of the minibatches
        losses = train_once(*parts, obs, actions, next_observations, 5)
        features, next_features = rollout_features(parts[0], obs, next_observations, ends)
        results.append((losses, parts[0].forward_errors(features, actions, next_features)))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


def test_a_rollout_is_paid_by_the_definition(train_here):
    """With models that do not learn, so that they can be asked again after the rollout."""
    flags = ["--total-timesteps", 128, "--dynamics-learning-rate", 1e-30, "--ext-coef", 3, "--int-coef", 2]
    run = train_here("ppo_lstm_icm.py", *SMALL, *flags)
    obs, actions, next_observations, ends = (run[name] for name in ("obs", "actions", "next_observations", "ends"))
    assert ends.sum() == 8 * 4  # an episode of the corridor is four steps
    assert (next_observations[ends.bool()] == 255).all(), (
        "the last frame is white; the next episode's first is coloured"
    )
    bonus = torch.zeros(32, 4)
    for t in range(32):
        for env in range(4):
            transition = obs[t, env], actions[t, env], next_observations[t, env]
            bonus[t, env] = by_hand(run["dynamics"], *transition)[1].item()
    assert bonus.std() > 0.1 * bonus.mean()
    assert run["rewards"].sum() > 0
    expected = 3 * run["rewards"] + 2 * bonus / bonus.mean()
    torch.testing.assert_close(run["total_rewards"], expected, rtol=1e-3, atol=1e-4)
    for name in ("dynamics", "dynamics_optimizer"):
        assert run["saved"][name] is run[name], "it must be in checkpoints"
    # the policy's optimiser does not move the models, nor theirs the policy
    owned = {id(parameter) for group in run["dynamics_optimizer"].param_groups for parameter in group["params"]}
    assert owned == {id(parameter) for parameter in run["dynamics"].parameters()}
    assert owned.isdisjoint(id(parameter) for parameter in run["agent"].parameters())
