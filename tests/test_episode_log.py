"""Episode statistics against a plain loop over finished episodes."""

import numpy as np
import pytest
import torch

from common.episode_log import EpisodeLog


def by_hand(rewards, intrinsic_rewards, ends):
    """(return, length, intrinsic return) of all finished episodes, in order of their end."""
    episodes, running = [], [(0.0, 0, 0.0)] * rewards.shape[1]
    for t in range(len(rewards)):
        for env in range(rewards.shape[1]):
            total, length, intrinsic = running[env]
            running[env] = (total + rewards[t, env], length + 1, intrinsic + intrinsic_rewards[t, env])
            if ends[t, env]:
                episodes.append(running[env])
                running[env] = (0.0, 0, 0.0)
    return episodes


@pytest.mark.parametrize("rollout", [7, 50, 400])
def test_episodes_may_go_on_over_several_rollouts(rollout):
    rng = np.random.default_rng(0)
    rewards, intrinsic_rewards = rng.normal(size=(2, 400, 3))
    ends = rng.random((400, 3)) < 0.15
    log = EpisodeLog(3)
    assert np.isnan(log.metrics()["charts/episodic_return"])
    for start in range(0, 400, rollout):
        part = slice(start, start + rollout)
        log.add(
            *(torch.from_numpy(x[part]) for x in (rewards, intrinsic_rewards)), torch.from_numpy(ends[part]).float()
        )
    episodes = by_hand(rewards, intrinsic_rewards, ends)
    assert len(episodes) > 120, "more than are remembered"
    metrics = log.metrics()
    expected = np.mean(episodes[-100:], axis=0)
    names = ("charts/episodic_return", "charts/episodic_length", "charts/episodic_intrinsic_return")
    np.testing.assert_allclose([metrics[name] for name in names], expected)
    assert metrics["charts/episodes"] == len(episodes)
    assert metrics["charts/goals"] == sum(episode[0] > 0 for episode in episodes)
    assert metrics["charts/success"] == np.mean([episode[0] > 0 for episode in episodes[-100:]])


def test_the_target_needs_a_hundred_episodes():
    log = EpisodeLog(1)
    ends = torch.ones(99, 1)
    log.add(torch.ones(99, 1), torch.zeros(99, 1), ends)
    assert not log.has_reached(0.9)
    log.add(torch.ones(1, 1), torch.zeros(1, 1), ends[:1])
    assert log.has_reached(0.9)
    assert not log.has_reached(1.0), "exceeded, not equalled"
    log.add(torch.full((20, 1), -1.0), torch.zeros(20, 1), ends[:20])
    assert not log.has_reached(0.9), "only the last hundred count"


def test_a_resumed_log_goes_on_without_the_episodes_under_way():
    log, copy = EpisodeLog(2), EpisodeLog(2)
    ends = torch.tensor([[0.0, 1], [0, 0]])
    log.add(torch.ones(2, 2), torch.ones(2, 2), ends)
    copy.load_state_dict(log.state_dict())
    assert copy.metrics() == log.metrics()
    copy.add(torch.ones(1, 2), torch.ones(1, 2), torch.ones(1, 2))
    assert copy.metrics()["charts/episodic_length"] == 1, "fresh episodes of one step, like the one that had ended"
    assert copy.metrics()["charts/episodes"] == 3
