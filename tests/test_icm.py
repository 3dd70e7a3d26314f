"""Curiosity: the two losses, who learns from which, and the bonus as the script pays it."""

import textwrap
from copy import deepcopy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import ROOT

from common.running_stats import RunningMeanStd
from ppo_lstm_icm import DynamicsModels, rollout_features, to_obs
from tools import sync_core

SLOTS = sync_core.split((ROOT / "ppo_lstm_icm.py").read_text(), "ppo_lstm_icm.py")[1]
CPU = torch.device("cpu")


def make_models(seed=0, num_actions=4):
    torch.manual_seed(seed)
    return DynamicsModels(num_actions)


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


def run_slot(name, variables):
    exec(textwrap.dedent(SLOTS[name]), variables)
    return variables


def by_hand(models, frame, action, next_frame):
    """One transition through the layers one by one: logits of the inverse model, error of the forward model."""

    def phi(frame):
        x = frame[None].double() / 255
        for layer in models.encoder:
            if isinstance(layer, torch.nn.Conv2d):
                x = F.elu(F.conv2d(x, layer.weight.double(), layer.bias.double(), stride=2, padding=1))
        return x.reshape(288)

    def mlp(model, x):
        hidden = (model[0].weight.double() @ x + model[0].bias.double()).clamp(min=0)
        return model[2].weight.double() @ hidden + model[2].bias.double()

    here, there = phi(frame), phi(next_frame)
    one_hot = torch.zeros(models.num_actions, dtype=torch.float64)
    one_hot[action] = 1
    prediction = mlp(models.forward_model, torch.cat([here, one_hot]))
    error = 288 * 0.5 * ((prediction - there) ** 2).mean()  # as the authors' code writes it
    return mlp(models.inverse_model, torch.cat([here, there])), error


def test_both_models_equal_a_pass_by_hand():
    models = make_models()
    obs, next_obs, actions = random_frames(6), random_frames(6), torch.randint(4, (6,))
    features, next_features = models.embed(obs), models.embed(next_obs)
    logits = models.inverse_logits(features, next_features)
    errors = models.forward_errors(features, actions, next_features)
    assert [layer.out_features for layer in models.forward_model if hasattr(layer, "out_features")] == [256, 288]
    assert [layer.out_features for layer in models.inverse_model if hasattr(layer, "out_features")] == [256, 4]
    for i in range(6):
        expected_logits, expected_error = by_hand(models, obs[i], actions[i], next_obs[i])
        torch.testing.assert_close(logits[i].double(), expected_logits, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(errors[i].double(), expected_error, rtol=1e-4, atol=1e-6)


def gradients(models, loss):
    """The parts of the models into which a loss sends gradients."""
    models.zero_grad()
    loss.backward(retain_graph=True)
    parts = ("encoder", "inverse_model", "forward_model")
    reached = set()
    for part in parts:
        grads = [parameter.grad for parameter in getattr(models, part).parameters()]
        assert len({grad is None for grad in grads}) == 1, "a part gets gradients as a whole"
        if grads[0] is not None and all(grad.abs().max() > 0 for grad in grads):
            reached.add(part)
    return reached


def test_each_loss_trains_phi_and_its_own_model_only():
    models = make_models()
    actions = torch.randint(4, (8,))
    features, next_features = models.embed(random_frames(8)), models.embed(random_frames(8))
    inverse_loss = F.cross_entropy(models.inverse_logits(features, next_features), actions)
    forward_loss = models.forward_errors(features, actions, next_features).mean()
    assert gradients(models, inverse_loss) == {"encoder", "inverse_model"}
    assert gradients(models, forward_loss) == {"encoder", "forward_model"}


@pytest.mark.parametrize("loss", ["forward", "inverse"])
def test_gradients_enter_phi_from_both_ends_of_a_transition(loss):
    """As in the original, phi(o_t+1) is not held fixed, neither for the inverse nor for the forward model."""
    models = make_models()
    actions = torch.randint(4, (8,))
    features, next_features = models.embed(random_frames(8)), models.embed(random_frames(8))
    if loss == "forward":
        value = models.forward_errors(features, actions, next_features).mean()
        prediction = models.forward_model(torch.cat([features, F.one_hot(actions, 4)], -1))
        expected = (next_features - prediction) / 8
        torch.testing.assert_close(torch.autograd.grad(value, next_features, retain_graph=True)[0], expected)
    else:
        value = F.cross_entropy(models.inverse_logits(features, next_features), actions)
    for end in (features, next_features):
        assert torch.autograd.grad(value, end, retain_graph=True)[0].abs().max() > 0


def test_rollout_features_equal_embedding_every_frame():
    torch.manual_seed(1)
    models = make_models()
    obs, _, next_observations, ends = random_rollout(9, 3)
    features, next_features = rollout_features(models, obs, next_observations, ends)
    torch.testing.assert_close(features, models.embed(obs).detach(), rtol=0, atol=1e-6)
    torch.testing.assert_close(next_features, models.embed(next_observations).detach(), rtol=0, atol=1e-6)
    assert not features.requires_grad
    assert not next_features.requires_grad
    # without an end, too
    _, next_features = rollout_features(models, obs, next_observations, torch.zeros_like(ends))
    torch.testing.assert_close(next_features[:-1], features[1:])


def test_step_keeps_the_true_last_frame_of_an_episode():
    frames = np.random.default_rng(0).integers(256, size=(2, 3, 60, 80, 3), dtype=np.uint8)  # first ones, last ones
    variables = {
        "next_observations": torch.zeros((4, 3, 3, 42, 42), dtype=torch.uint8),
        "step": 2,
        "next_obs": to_obs(frames[0], CPU),
        "ended": np.array([False, True, False]),
        "infos": {"final_obs": frames[1]},
        "to_obs": to_obs,
        "device": CPU,
    }
    kept = run_slot("step", variables)["next_observations"]
    expected = torch.stack([to_obs(frames[last], CPU)[env] for env, last in enumerate([0, 1, 0])])
    assert torch.equal(kept[2], expected)
    assert kept[[0, 1, 3]].max() == 0


@pytest.mark.parametrize("normalize", [True, False])
def test_bonus_is_the_forward_error_of_each_transition(normalize):
    torch.manual_seed(2)
    models, normalizer = make_models(), RunningMeanStd()
    args = SimpleNamespace(normalize_bonus=normalize, reward_scale=10.0, int_coef=0.3)
    seen = []
    for _ in range(2):  # the deviation is that of all rollouts so far
        obs, actions, next_observations, ends = random_rollout(5, 2)
        extrinsic = torch.randn(5, 2)
        variables = dict(models=models, normalizer=normalizer, args=args, obs=obs, actions=actions, ends=ends)
        variables.update(next_observations=next_observations, rollout_features=rollout_features, torch=torch)
        run_slot("reward", {**variables, "total_rewards": (total := extrinsic.clone())})
        errors = torch.zeros(5, 2, dtype=torch.float64)
        for t in range(5):
            for env in range(2):
                transition = obs[t, env], actions[t, env], next_observations[t, env]
                errors[t, env] = by_hand(models, *transition)[1].detach()
        seen.append(errors)
        bonus = errors / torch.stack(seen).std(correction=0) if normalize else errors
        torch.testing.assert_close(total.double(), extrinsic.double() + 3 * bonus, rtol=1e-3, atol=1e-5)


def train_once(models, optimizer, obs, actions, next_observations, minibatch_size=16):
    """The script's own update."""
    args = SimpleNamespace(models_minibatch_size=minibatch_size, forward_coef=0.2, inverse_coef=0.8)
    variables = dict(models=models, models_optimizer=optimizer, obs=obs, actions=actions, args=args, device=CPU)
    variables.update(next_observations=next_observations, batch_size=actions.numel(), torch=torch, F=F)
    return torch.stack(run_slot("update", variables)["models_losses"])


def test_update_minimises_both_losses_with_their_weights():
    """One minibatch of all transitions is a step of Adam on 0.8 inverse + 0.2 forward."""
    torch.manual_seed(3)
    obs, actions, next_observations, _ = random_rollout(8, 2)
    models, copy = make_models(), make_models()
    losses = train_once(models, torch.optim.Adam(models.parameters(), lr=1e-3), obs, actions, next_observations)
    optimizer = torch.optim.Adam(copy.parameters(), lr=1e-3)
    features, next_features = copy.embed(obs), copy.embed(next_observations)
    logits = copy.inverse_logits(features, next_features).flatten(0, 1)
    inverse_loss = F.cross_entropy(logits, actions.flatten())
    prediction = copy.forward_model(torch.cat([features, F.one_hot(actions, 4)], -1))
    forward_loss = 0.5 * F.mse_loss(prediction, next_features)
    (0.8 * inverse_loss + 0.2 * forward_loss).backward()
    optimizer.step()
    accuracy = (logits.argmax(1) == actions.flatten()).double().mean().item()
    np.testing.assert_allclose(losses[0], [forward_loss.item(), inverse_loss.item(), accuracy], rtol=1e-5)
    for parameter, expected in zip(models.parameters(), copy.parameters()):
        torch.testing.assert_close(parameter, expected, rtol=0, atol=5e-4)  # where a gradient is 0 its sign is noise


def chain(num_states=5):
    """Frames of a corridor with a pattern of its own in every place."""
    torch.manual_seed(4)
    return F.interpolate(torch.rand(num_states, 3, 6, 6) * 255, (42, 42)).to(torch.uint8)


def test_a_new_transition_pays_more_than_a_known_one():
    models, places = make_models(), chain()
    optimizer = torch.optim.Adam(models.parameters(), lr=1e-3)
    known, actions = torch.tensor([[0, 1, 2, 1]]), torch.tensor([[0, 0, 1, 1]])  # right, right, left, left
    leads_to = torch.tensor([[1, 2, 1, 0]])
    for _ in range(200):
        losses = train_once(models, optimizer, places[known], actions, places[leads_to])
    assert losses[-1, 2] == 1, "four transitions can be told apart"

    def bonus(here, action, there):
        here, there = models.embed(places[[here]]), models.embed(places[[there]])
        return models.forward_errors(here, torch.tensor([action]), there).item()

    worst_known = max(bonus(*transition) for transition in torch.cat([known, actions, leads_to]).T.tolist())
    for transition in [(2, 0, 3), (3, 0, 4), (3, 1, 2), (0, 0, 4)]:
        assert bonus(*transition) > 5 * worst_known


def test_everything_comes_back_from_its_state():
    torch.manual_seed(5)
    rollouts = [random_rollout(8, 2) for _ in range(3)]
    models, normalizer = make_models(seed=6), RunningMeanStd()
    optimizer = torch.optim.Adam(models.parameters(), lr=1e-3)
    for obs, actions, next_observations, _ in rollouts[:2]:
        train_once(models, optimizer, obs, actions, next_observations, 5)
        with torch.no_grad():
            errors = models.forward_errors(models.embed(obs), actions, models.embed(next_observations))
        normalizer.update(errors.flatten())
    saved = deepcopy([part.state_dict() for part in (models, optimizer, normalizer)])  # as a file would
    copy, copied_normalizer = make_models(seed=7), RunningMeanStd()
    copied_optimizer = torch.optim.Adam(copy.parameters(), lr=1e-3)
    for part, state in zip((copy, copied_optimizer, copied_normalizer), saved):
        part.load_state_dict(state)

    obs, actions, next_observations, ends = rollouts[2]
    results = []
    for parts in ((models, optimizer, normalizer), (copy, copied_optimizer, copied_normalizer)):
        torch.manual_seed(8)  # the order of the minibatches
        losses = train_once(*parts[:2], obs, actions, next_observations, 5)
        features, next_features = rollout_features(parts[0], obs, next_observations, ends)
        results.append((losses, parts[0].forward_errors(features, actions, next_features) / parts[2].std))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


def test_bad_minibatch_size_ends_in_one_sentence(train):
    process = train("ppo_lstm_icm.py", "--models-minibatch-size", 0, check=False)
    assert process.returncode != 0
    assert process.stderr.strip() == "--models-minibatch-size must be at least 1."
