"""The agent learns to remember: it solves the memory corridor, and cannot without its LSTM state."""

import numpy as np
import torch

from common.memory_corridor import COLOURS, MemoryCorridor
from ppo_lstm import Agent, to_obs


def success_rate(agent, forget):
    """Share of episodes with reward 1; `forget` zeroes the LSTM state before every step."""
    envs = MemoryCorridor(num_envs=50)
    frames, _ = envs.reset(seed=123)
    state, done = agent.initial_state(50, "cpu"), torch.ones(50)
    rewards = []
    with torch.no_grad():
        for _ in range(8 * envs.length):
            if forget:
                done = torch.ones(50)
            hidden, state = agent.get_states(to_obs(frames, "cpu")[None], state, done[None])
            frames, reward, terminations, _, _ = envs.step(agent.get_policy(hidden[0]).sample().numpy())
            rewards += reward[terminations].tolist()
            done = torch.from_numpy(terminations).float()
    assert len(rewards) == 8 * 50
    return np.mean(rewards)


def test_agent_solves_the_corridor_with_its_memory_and_not_without(train):
    flags = ["--num-envs", 16, "--num-steps", 32, "--bptt-length", 8, "--minibatch-size", 64, "--ext-coef", 1]
    flags += ["--anneal-lr"]
    run = train("ppo_lstm.py", "--env", "memory", *flags, "--total-timesteps", 16384, "--save-model")
    agent = Agent(len(COLOURS))
    agent.load_state_dict(torch.load(run / "agent.pt", weights_only=True))
    assert success_rate(agent, forget=False) > 0.9
    assert success_rate(agent, forget=True) < 0.4  # four colours: chance is 0.25


def test_corridor_pays_only_the_colour_of_its_entrance():
    envs = MemoryCorridor(num_envs=8)
    frames, infos = envs.reset(seed=0)
    colour = np.array([np.flatnonzero((COLOURS == frame[0, 0]).all(axis=1))[0] for frame in frames])
    for place in range(envs.length):
        assert (infos["position"][:, 0] == place).all()
        actions = np.where(np.arange(8) % 2, colour, (colour + 1) % 4)  # right in odd environments
        frames, rewards, terminations, truncations, infos = envs.step(actions)
        at_exit = place == envs.length - 1
        np.testing.assert_array_equal(rewards, (np.arange(8) % 2) * at_exit)
        assert terminations.all() == at_exit
        assert not truncations.any()
    assert (infos["final_obs"] == 255).all()
    assert (frames != 255).any(axis=(1, 2, 3)).all(), "the next episode has begun"
