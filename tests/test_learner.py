"""The learner: advantages against brute force, and the LSTM's conventions."""

import functools

import numpy as np
import pytest
import torch
from torch.distributions.categorical import Categorical

from common.my_way_home import MyWayHome
from ppo_lstm import Agent, compute_advantages, to_obs

T, N = 40, 5


@pytest.fixture
def rollout():
    generator = torch.Generator().manual_seed(1)
    obs = torch.randint(256, (T, N, 3, 42, 42), dtype=torch.uint8, generator=generator)
    dones = (torch.rand(T, N, generator=generator) < 0.1).float()
    state = tuple(torch.randn(N, 256, generator=generator) * 0.1 for _ in range(2))
    torch.manual_seed(0)
    return Agent(4), obs, dones, state


def brute_force_advantages(rewards, values, last_values, ends, terminated, final_values, gamma, gae_lambda):
    """A_t = sum_l (gamma lambda)^l delta_{t+l} up to the end of the episode, written as the definition says."""
    steps, envs = rewards.shape
    advantages = np.zeros((steps, envs))
    for n in range(envs):
        for t in range(steps):
            weight = 1.0
            for u in range(t, steps):
                if terminated[u, n]:
                    next_value = 0.0  # death: nothing comes after it
                elif ends[u, n]:
                    next_value = final_values[u, n]  # a time-out: the value of the true last frame
                elif u + 1 < steps:
                    next_value = values[u + 1, n]
                else:
                    next_value = last_values[n]
                advantages[t, n] += weight * (rewards[u, n] + gamma * next_value - values[u, n])
                if ends[u, n]:
                    break
                weight *= gamma * gae_lambda
    return advantages


def test_advantages_equal_brute_force_with_deaths_and_timeouts():
    rng = np.random.default_rng(0)
    rewards, values, final_values = rng.normal(size=(3, T, N))
    last_values = rng.normal(size=N)
    terminated = rng.random((T, N)) < 0.07
    truncated = (rng.random((T, N)) < 0.07) & ~terminated
    ends = terminated | truncated
    expected = brute_force_advantages(rewards, values, last_values, ends, terminated, final_values, 0.97, 0.9)
    assert truncated[:-1].any()
    assert terminated[:-1].any()
    # as the scripts do it: final_values are 0 but for time-outs
    following = torch.from_numpy(np.concatenate([values[1:], last_values[None]]))
    next_values = torch.where(torch.from_numpy(ends), torch.from_numpy(final_values * truncated), following)
    arguments = map(torch.from_numpy, (rewards, values))
    advantages = compute_advantages(*arguments, next_values, torch.from_numpy(ends).double(), 0.97, 0.9)
    np.testing.assert_allclose(advantages, expected, atol=1e-12)


def test_batched_pass_equals_stepwise_pass(rollout):
    agent, obs, dones, state = rollout
    with torch.no_grad():
        actions = torch.randint(4, (T, N))
        hidden, last_state = agent.get_states(obs, state, dones)
        logprobs, values = agent.get_policy(hidden).log_prob(actions), agent.get_value(hidden)
        for t in range(T):
            hidden, state = agent.get_states(obs[t : t + 1], state, dones[t : t + 1])
            logprob, value = agent.get_policy(hidden).log_prob(actions[t : t + 1]), agent.get_value(hidden)
            torch.testing.assert_close(logprob[0], logprobs[t], rtol=0, atol=1e-5)
            torch.testing.assert_close(value[0], values[t], rtol=0, atol=1e-5)
    for batched, stepwise in zip(last_state, state):
        torch.testing.assert_close(batched, stepwise, rtol=0, atol=1e-5)


def test_done_empties_the_state_before_its_step(rollout):
    agent, obs, _, state = rollout
    dones = torch.zeros(T, N)
    dones[17, 2] = 1
    fresh = agent.initial_state(N, "cpu")

    def get_values(*arguments):
        return agent.get_value(agent.get_states(*arguments)[0])

    with torch.no_grad():
        values = get_values(obs, state, dones)
        values_from_there = get_values(obs[17:], fresh, torch.zeros(T - 17, N))
        values_without = get_values(obs, state, torch.zeros(T, N))
    torch.testing.assert_close(values[17:, 2], values_from_there[:, 2], rtol=0, atol=1e-5)  # as if it began at step 17
    torch.testing.assert_close(values[:17, 2], values_without[:17, 2], rtol=0, atol=1e-6)
    others = [0, 1, 3, 4]
    torch.testing.assert_close(values[:, others], values_without[:, others], rtol=0, atol=1e-6)
    assert (values[17, 2] - values_without[17, 2]).abs() > 1e-4, "the state must matter for this test to mean anything"


def test_network_is_the_papers(rollout):
    """Four convolutions to 288 features, then both cells on the same features with one carried state."""
    agent, obs, _, (h, c) = rollout
    frames = obs[0].float() / 255
    for layer in range(0, 8, 2):
        convolution = agent.network[layer]
        assert (convolution.kernel_size, convolution.stride, convolution.padding) == ((3, 3), (2, 2), (1, 1))
        frames = torch.nn.functional.elu(convolution(frames))
    features = frames.flatten(1)
    assert features.shape == (N, 288)
    h, c = agent.lstm_1(features, (h, c))
    h, c = agent.lstm_2(features, (h, c))
    logits = agent.actor[2](torch.tanh(agent.actor[0](h)))
    value = agent.critic[2](torch.tanh(agent.critic[0](h)))[:, 0]
    actions = torch.arange(N)[None] % 4
    hidden, state = agent.get_states(obs[:1], tuple(rollout[3]), torch.zeros(1, N))
    policy = agent.get_policy(hidden)
    torch.testing.assert_close(policy.log_prob(actions)[0], Categorical(logits=logits).log_prob(actions[0]))
    torch.testing.assert_close(policy.entropy()[0], Categorical(logits=logits).entropy(), rtol=0, atol=1e-5)
    torch.testing.assert_close(agent.get_value(hidden)[0], value, rtol=0, atol=1e-5)
    torch.testing.assert_close(state[0], h, rtol=0, atol=1e-5)
    torch.testing.assert_close(state[1], c, rtol=0, atol=1e-5)


def test_actions_are_drawn_with_the_policys_probabilities(rollout):
    agent = rollout[0]
    torch.manual_seed(3)
    hidden = torch.randn(1, 256)
    with torch.no_grad():
        actions = agent.get_policy(hidden.expand(100_000, -1)).sample()
        logits = agent.actor(hidden)[0].double().numpy()
    probabilities = np.exp(logits) / np.exp(logits).sum()
    assert np.ptp(probabilities) > 0.05, "not uniform, or this test says little"
    np.testing.assert_allclose(np.bincount(actions) / 100_000, probabilities, atol=0.01)  # 6 standard deviations


def test_a_time_out_is_worth_the_value_of_its_true_last_frame(train_here, monkeypatch):
    """A run of the real game with episodes of 10 steps; the weights do not move, so its values can be recomputed."""
    monkeypatch.setattr("common.my_way_home.MyWayHome", functools.partial(MyWayHome, max_episode_steps=10))
    flags = ["--num-envs", 3, "--num-steps", 32, "--total-timesteps", 96, "--learning-rate", 1e-30]
    run = train_here("ppo_lstm.py", *flags)
    agent, ends = run["agent"], run["ends"].bool()
    first_ends = ends.float().argmax(0).tolist()
    assert run["metrics"]["charts/episodes"] == ends.sum() == 9
    assert first_ends == [9, 6, 3], "time limits of the first episodes are spread evenly"
    state, values, final_values = agent.initial_state(3, "cpu"), torch.zeros(32, 3), torch.zeros(32, 3)
    with torch.no_grad():
        for t in range(32):
            hidden, state = agent.get_states(run["obs"][t : t + 1], state, run["dones"][t : t + 1])
            values[t] = agent.get_value(hidden[0])
            hidden, _ = agent.get_states(run["next_observations"][t : t + 1], state, torch.zeros(1, 3))
            final_values[t] = agent.get_value(hidden[0])
    torch.testing.assert_close(run["values"], values, rtol=0, atol=1e-5)
    torch.testing.assert_close(run["final_values"][ends], final_values[ends], rtol=0, atol=1e-5)
    assert (run["final_values"][~ends] == 0).all()
    torch.testing.assert_close(run["next_values"][ends], final_values[ends], rtol=0, atol=1e-5)
    assert (final_values - values)[ends].abs().min() > 0, "the last frame is not the one before"
    off = train_here("ppo_lstm.py", *flags, "--no-bootstrap-timeouts")
    assert (off["next_values"][ends] == 0).all()


def test_observations_are_whole_frames_scaled_down():
    frames = np.zeros((2, 120, 160, 3), np.uint8)
    frames[0, :, 80:] = 200  # right half
    frames[1, 60:, :, 2] = 100  # lower half, blue
    obs = to_obs(frames, "cpu")
    assert obs.shape == (2, 3, 42, 42)
    assert obs.dtype == torch.uint8
    assert (obs[0, :, :, :20] == 0).all()
    assert (obs[0, :, :, 22:] == 200).all()
    assert (obs[1, 2, 22:] == 100).all()
    assert (obs[1, :2] == 0).all()
