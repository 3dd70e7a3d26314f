"""RIDE: visits within an episode, and the bonus as the script pays it. The networks are those of test_icm.py."""

import textwrap
from copy import deepcopy

import numpy as np
import pytest
import torch
from conftest import ROOT

from common.frame_keys import SimHash, exact_keys
from common.my_way_home import MyWayHome
from ppo_lstm_ride import Dynamics, EpisodicCounts, rollout_features, to_obs
from tools import sync_core

SLOTS = sync_core.split((ROOT / "ppo_lstm_ride.py").read_text(), "ppo_lstm_ride.py")[1]
ICM_SLOTS = sync_core.split((ROOT / "ppo_lstm_icm.py").read_text(), "ppo_lstm_icm.py")[1]
SMALL = ["--env", "memory", "--num-envs", 4, "--num-steps", 32, "--bptt-length", 16, "--minibatch-size", 64]
STATES = torch.randint(256, (5, 3, 42, 42), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def play(episodes_of_envs, num_steps):
    """The rollout arrays of environments that live through lists of states, one list (first to last) per episode."""
    states, next_states, dones = (np.zeros((num_steps, len(episodes_of_envs)), dtype=int) for _ in range(3))
    for env, episodes in enumerate(episodes_of_envs):
        steps = [(a, b, i == 0) for episode in episodes for i, (a, b) in enumerate(zip(episode, episode[1:]))]
        states[:, env], next_states[:, env], dones[:, env] = zip(*steps[:num_steps])
    ends = np.concatenate([dones[1:], [[len(episode_of(env, num_steps)) == 0 for env in episodes_of_envs]]])
    return states, next_states, torch.from_numpy(dones), torch.from_numpy(ends)


def episode_of(episodes, step):
    """What is left of the episode in which a step would be taken; nothing if one has just ended."""
    for episode in episodes:
        if step < len(episode) - 1:
            return episode[step:] if step else []
        step -= len(episode) - 1
    return []


def counted_by_hand(episodes, num_steps):
    """For every step, how often the state it leads to has occurred in its episode up to then, first frame included."""
    counts = []
    for episode in episodes:
        counts += [episode[: i + 1].count(state) for i, state in enumerate(episode)][1:]
    return counts[:num_steps]


def random_episodes(rng, num_steps):
    episodes, total = [], 0
    while total < num_steps:
        length = rng.integers(1, 12)
        episodes.append(rng.integers(4, size=length + 1).tolist())
        total += length
    return episodes


@pytest.mark.parametrize("rollout_length", [1, 7, 60])
def test_counts_equal_a_count_by_hand_over_rollouts_of_any_length(rollout_length):
    rng = np.random.default_rng(1)
    num_steps = 60 // rollout_length * rollout_length
    episodes = [random_episodes(rng, num_steps) for _ in range(3)]
    states, next_states, dones, _ = play(episodes, num_steps)
    counts, parts = EpisodicCounts(3), []
    for start in range(0, num_steps, rollout_length):
        rows = slice(start, start + rollout_length)
        parts.append(counts.visit(states[rows].tolist(), next_states[rows].tolist(), dones[rows]))
    expected = np.stack([counted_by_hand(episodes[env], num_steps) for env in range(3)], axis=1)
    np.testing.assert_array_equal(torch.cat(parts), expected)


def test_the_first_frame_is_a_visit_and_the_last_one_belongs_to_the_old_episode():
    states, next_states, dones, _ = play([[[0, 0, 1, 0, 2], [2, 1, 2, 1]]], 7)
    counts = EpisodicCounts(1).visit(states.tolist(), next_states.tolist(), dones)
    assert counts.flatten().tolist() == [2, 1, 3, 1, 1, 2, 2]


def test_a_resumed_run_starts_counting_anew():
    counts = EpisodicCounts(2)
    assert counts.visit([[0, 0]], [[1, 1]], torch.ones(1, 2)).tolist() == [[1, 1]]
    assert counts.visit([[1, 1]], [[1, 1]], torch.tensor([[1.0, 0.0]])).tolist() == [[2, 2]]
    assert counts.visit([[1, 1]], [[1, 1]], torch.tensor([[1.0, 0.0]])).tolist() == [[2, 3]]


def pay(episodes, dynamics, num_steps, keys=exact_keys):
    """The script's own bonus, for environments that live through episodes of STATES."""
    states, next_states, dones, ends = play(episodes, num_steps)
    variables = dict(
        dynamics=dynamics,
        episodic_counts=EpisodicCounts(len(episodes)),
        count_keys=keys,
        rollout_features=rollout_features,
        obs=STATES[states],
        next_observations=STATES[next_states],
        dones=dones,
        ends=ends,
        device="cpu",
    )
    exec(textwrap.dedent(SLOTS["reward"]), variables)
    return variables["intrinsic_rewards"]


def test_bonus_is_impact_over_the_root_of_the_visits():
    torch.manual_seed(2)
    dynamics = Dynamics(4)
    episodes = [[[0, 1, 0, 1, 4], [2, 2, 3, 2, 3, 2]], [[3, 4, 3, 0, 1, 2, 1, 2, 1, 0]]]
    bonus = pay(episodes, dynamics, 9)
    phi = [dynamics.encode(state[None])[0].detach().double() for state in STATES]
    expected = np.zeros((9, 2))
    for env in range(2):
        impacts = [(phi[b] - phi[a]).norm().item() for episode in episodes[env] for a, b in zip(episode, episode[1:])]
        expected[:, env] = impacts / np.sqrt(counted_by_hand(episodes[env], 9))
    assert expected[4, 0] == 0  # from 2 to 2 nothing changes
    np.testing.assert_allclose(bonus, expected, rtol=1e-3, atol=1e-5)


def test_a_new_state_pays_more_than_a_visited_one_until_the_next_episode():
    torch.manual_seed(3)
    bonus = pay([[[0, 1, 0, 1, 0], [0, 1, 0]]], Dynamics(4), 6).flatten()
    impact = bonus[0]
    np.testing.assert_allclose(bonus / impact, [1, 2**-0.5, 2**-0.5, 3**-0.5, 1, 2**-0.5], rtol=1e-5)


def test_everything_comes_back_from_its_state():
    torch.manual_seed(4)
    parts, copies = (Dynamics(4), SimHash(6)), (Dynamics(4), SimHash(6))
    assert parts[1](STATES[None]) != copies[1](STATES[None])
    for part, copy in zip(parts, copies):
        copy.load_state_dict(deepcopy(part.state_dict()))
    episodes = [[[0, 1, 2, 3, 4, 1, 0, 3, 2]]]
    bonuses = [pay(episodes, dynamics, 8, keys=hasher) for dynamics, hasher in (parts, copies)]
    assert torch.equal(*bonuses)
    assert bonuses[0].max() > 0


def test_phi_is_trained_as_in_curiosity():
    """test_icm.py tests the update and the networks, so they must be the same here."""
    assert SLOTS["update"] == ICM_SLOTS["update"]
    networks = ICM_SLOTS["modules"].replace("docs/icm.md", "docs/ride.md")
    assert SLOTS["modules"].startswith(networks)


# an episode of the corridor leads from a colour to grey, grey, white and, at its end, white again; frames of a single
# brightness have no contrast for the hash to see, so that they all share a key
@pytest.mark.parametrize(("count_key", "visits"), [("hash", [1, 2, 3, 4]), ("frame", [1, 2, 1, 2])])
def test_a_rollout_is_paid_by_the_definition(count_key, visits, train_here):
    """With models that do not learn, so that phi can be asked again after the rollout."""
    flags = ["--total-timesteps", 128, "--dynamics-learning-rate", 1e-30, "--ext-coef", 3, "--int-coef", 2]
    run = train_here("ppo_lstm_ride.py", *SMALL, *flags, "--count-key", count_key)
    counts = torch.tensor(visits).repeat(8)[:, None].expand(32, 4)
    bonus = torch.zeros(32, 4)
    with torch.no_grad():
        for t in range(32):
            for env in range(4):
                here, there = (run[name][t, env][None] for name in ("obs", "next_observations"))
                impact = run["dynamics"].encode(there) - run["dynamics"].encode(here)
                bonus[t, env] = impact.double().square().sum().sqrt() / counts[t, env] ** 0.5
    assert (bonus.view(8, 4, 4).amax((0, 2)) > 0.1).tolist() == [True, False, True, False]
    assert run["rewards"].sum() > 0
    expected = 3 * run["rewards"] + 2 * bonus / bonus.mean()
    torch.testing.assert_close(run["total_rewards"], expected, rtol=1e-3, atol=1e-4)
    assert run["metrics"]["intrinsic/episodic_count_mean"] == sum(visits) / 4
    for name in ("dynamics", "dynamics_optimizer", "hasher"):
        assert run["saved"][name] is run[name], "it must be in checkpoints"


def test_hashed_frames_of_doom_repeat_within_an_episode():
    """A random walk: similar views share a key, so visits beyond the first are counted; the same frame is rarer."""
    rng = np.random.default_rng(0)
    envs = MyWayHome("sparse", 2)
    frames = [to_obs(envs.reset(seed=1)[0], "cpu")]
    for _ in range(200):
        frames.append(to_obs(envs.step(rng.integers(4, size=2))[0], "cpu"))
    envs.close()
    frames = torch.stack(frames)
    torch.manual_seed(1)
    mean_counts = []
    for keys in (exact_keys(frames), SimHash(16)(frames), SimHash(8)(frames)):
        dones = torch.zeros(200, 2)
        dones[0] = 1
        mean_counts.append(EpisodicCounts(2).visit(keys[:-1], keys[1:], dones).mean().item())
    exact, fine, coarse = mean_counts
    assert 1 < exact < fine < coarse < 50
    assert fine > 1.3
