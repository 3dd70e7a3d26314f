"""True cell counts: by hand, and as the script pays them."""

import numpy as np
import pytest
import torch

from ppo_lstm_cells import CellCounts

SMALL = ["--env", "memory", "--num-envs", 4, "--num-steps", 32]


def by_hand(cells, dones):
    """(T, N) bonuses: at every step, go through everything that has happened so far."""
    num_steps, num_envs = dones.shape
    first_visits = []  # (t, env, cell)
    for env in range(num_envs):
        start = 0
        for t in range(num_steps):
            start = t if dones[t, env] else start
            if not any((cells[u, env] == cells[t, env]).all() for u in range(start, t)):
                first_visits.append((t, env, tuple(cells[t, env])))
    bonuses = np.zeros((num_steps, num_envs))
    for t, env, cell in first_visits:
        bonuses[t, env] = sum(u <= t and other == cell for u, _, other in first_visits) ** -0.5
    return bonuses


@pytest.mark.parametrize("rollout", [10, 60])
def test_bonuses_equal_a_count_by_hand(rollout):
    rng = np.random.default_rng(0)
    cells, dones = rng.integers(-2, 2, size=(60, 3, 2)), rng.random((60, 3)) < 0.1
    dones[0] = True
    counts = CellCounts(3)
    bonuses = [
        counts.visit(torch.from_numpy(cells[t : t + rollout]), torch.from_numpy(dones[t : t + rollout]).float())
        for t in range(0, 60, rollout)
    ]
    np.testing.assert_allclose(torch.cat(bonuses), by_hand(cells, dones), rtol=1e-6)


def test_counts_come_back_from_their_state():
    counts, copy = CellCounts(1), CellCounts(1)
    place, start = torch.tensor([[[3, -1]]]), torch.ones(1, 1)
    counts.visit(place, start)
    copy.load_state_dict(counts.state_dict())
    assert copy.visit(place, start).item() == pytest.approx(2**-0.5)


def test_a_rollout_is_paid_by_the_definition(train_here):
    run = train_here("ppo_lstm_cells.py", *SMALL, "--total-timesteps", 128, "--int-coef", 2, "--ext-coef", 3)
    bonuses = torch.from_numpy(by_hand(run["positions"].long().numpy(), run["dones"].numpy())).float()
    assert (run["positions"][:, :, 0].unique() == torch.arange(4)).all()
    torch.testing.assert_close(run["intrinsic_rewards"], bonuses)
    torch.testing.assert_close(run["total_rewards"], 3 * run["rewards"] + 2 * bonuses / bonuses.mean())


def test_cell_size_is_the_side_of_a_cell(train_here):
    assert train_here("ppo_lstm_cells.py", *SMALL, "--total-timesteps", 128)["metrics"]["intrinsic/num_cells"] == 4
    flags = ["--total-timesteps", 128, "--cell-size", 2]
    assert train_here("ppo_lstm_cells.py", *SMALL, *flags)["metrics"]["intrinsic/num_cells"] == 2
