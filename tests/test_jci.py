"""The bonus of Just Cluster It against the listing in the paper's appendix."""

import numpy as np
import pytest
import torch
from listing import listing
from sklearn.metrics.pairwise import cosine_similarity

from ppo_lstm_jci import ClusterTable, split_episodes

DIMENSION = 16


def batches(seed, num_batches=8, length=300):
    """Embeddings around a few directions, so that batches meet old rows, new ones, and their own new ones."""
    rng = np.random.default_rng(seed)
    directions = rng.normal(size=(12, DIMENSION))
    for batch in range(num_batches):
        visible = rng.integers(3 + batch, size=length)  # new directions come into view over time
        embeddings = directions[visible] + 0.45 * rng.normal(size=(length, DIMENSION))
        yield embeddings.astype(np.float32), rng.integers(40, size=length) * 7 + visible % 2


def visit(table, embeddings, labels):
    """The paper's bonus of every step, as the script computes it, and its row."""
    rows, clusters = table.match(torch.as_tensor(embeddings), labels)
    return table.count_steps(rows, clusters) ** -0.5, rows


@pytest.mark.parametrize("kappa", [0.3, 0.8, 0.95, 1.0])
def test_bonus_equals_the_listing_over_consecutive_batches(kappa):
    table, listed = ClusterTable(kappa, DIMENSION, 1), [[np.zeros(DIMENSION), 0]]
    for embeddings, labels in batches(seed=3):
        bonuses, rows = visit(table, embeddings, labels)
        np.testing.assert_allclose(bonuses, listing(listed, embeddings, labels, kappa), rtol=1e-6)
        assert table.steps.tolist() == [count for _, count in listed[1:]]
        similarity = cosine_similarity(table.centres, np.stack([centre for centre, _ in listed[1:]]))
        np.testing.assert_allclose(np.diag(similarity), 1, atol=1e-5)
        assert rows.max() < len(table.centres)
    assert len(table.centres) > 1 or kappa == 0.3
    assert table.steps.sum() == 8 * 300


def test_a_cluster_can_match_a_row_opened_moments_before_in_the_same_batch():
    embeddings = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.01], [0.0, 1.0]])
    bonuses, rows = visit(ClusterTable(0.9, 2, 1), embeddings, np.array([5, 5, 2, 9]))
    assert rows.tolist() == [0, 0, 0, 1]
    np.testing.assert_allclose(bonuses, [1, 2**-0.5, 3**-0.5, 1])  # the third step continues the count of the first two


def test_a_new_state_pays_more_than_a_visited_one():
    table = ClusterTable(0.8, 5, 1)
    chain = torch.eye(5)
    first, _ = visit(table, chain[[0, 0, 1, 0]], np.arange(4))
    again, _ = visit(table, chain[[0, 1, 2]], np.arange(3))
    np.testing.assert_allclose(first, [1, 2**-0.5, 1, 3**-0.5])
    np.testing.assert_allclose(again, [4**-0.5, 2**-0.5, 1])


def test_zero_embeddings_do_not_become_nan():
    bonuses, _ = visit(ClusterTable(0.8, 4, 1), torch.zeros(3, 4), np.array([0, 0, 1]))
    assert torch.isfinite(bonuses).all()


def count_by_hand(rows, dones, counts, visited):
    """First visits and episode counts of (T, N) rows with a dictionary and a set for each environment."""
    is_first, seen_by = np.zeros(rows.shape, bool), np.zeros(rows.shape, int)
    for t in range(len(rows)):
        for env, row in enumerate(rows[t].tolist()):
            if dones[t, env]:
                visited[env] = set()
            if row not in visited[env]:
                visited[env].add(row)
                counts[row] = counts.get(row, 0) + 1
                is_first[t, env] = True
        for env, row in enumerate(rows[t].tolist()):
            seen_by[t, env] = counts[row]  # those that arrive in the same step have visited it, too
    return is_first, seen_by


def with_rows(table, num_rows):
    """The table grown to so many rows, as `match` does it."""
    rows, _ = table.match(torch.eye(DIMENSION)[:num_rows], np.arange(num_rows))
    assert rows.tolist() == list(range(num_rows))
    return table


def test_episodes_are_counted_across_rollouts_episode_ends_and_a_resumption():
    rng = np.random.default_rng(0)
    num_envs, table, counts, visited = 5, ClusterTable(0.9, DIMENSION, 5), {}, [set() for _ in range(5)]
    for rollout in range(12):
        num_rows = 3 + rollout  # new rows come into view
        with_rows(table, num_rows)
        rows = torch.from_numpy(rng.integers(num_rows, size=(20, num_envs)))
        dones = torch.from_numpy(rng.random((20, num_envs)) < 0.08).float()
        if rollout == 0:
            dones[0] = 1
        if rollout == 7:  # a resumed run: counts come back, environments start fresh episodes
            state, table = table.state_dict(), ClusterTable(0.9, DIMENSION, num_envs)
            table.load_state_dict(state)
            dones[0], visited = 1, [set() for _ in range(num_envs)]
        is_first, seen_by = table.count_episodes(rows, dones)
        expected_first, expected_counts = count_by_hand(rows, dones, counts, visited)
        assert is_first.tolist() == expected_first.tolist()
        assert seen_by.tolist() == expected_counts.tolist()
        assert table.episodes.tolist() == [counts.get(row, 0) for row in range(num_rows)]
    assert 0.05 < is_first.float().mean() < 0.95


def test_a_row_pays_once_until_the_next_episode():
    table = with_rows(ClusterTable(0.9, DIMENSION, 1), 2)
    rows, dones = torch.tensor([[0], [0], [1], [0], [0], [0]]), torch.tensor([[1.0], [0], [0], [0], [1], [0]])
    is_first, seen_by = table.count_episodes(rows, dones)
    bonuses = is_first * seen_by**-0.5
    np.testing.assert_allclose(bonuses.flatten(), [1, 0, 1, 0, 2**-0.5, 0])
    is_first, _ = table.count_episodes(torch.tensor([[0], [1]]), torch.zeros(2, 1))
    assert is_first.flatten().tolist() == [False, True], "the end of a rollout is no end of an episode"


def test_table_comes_back_from_its_state():
    table, copy = ClusterTable(0.8, DIMENSION, 2), ClusterTable(0.8, DIMENSION, 2)
    all_batches = list(batches(seed=1))
    for embeddings, labels in all_batches[:-1]:
        visit(table, embeddings, labels)
    copy.load_state_dict(table.state_dict())
    expected, rows = visit(table, *all_batches[-1])
    bonuses, copied_rows = visit(copy, *all_batches[-1])
    assert torch.equal(bonuses, expected)
    assert torch.equal(rows, copied_rows)


SMALL = ["--env", "memory", "--num-envs", 4, "--num-steps", 32, "--num-clusters", 8, "--total-timesteps", 256]


@pytest.mark.parametrize("count", ["episodes", "steps"])
@pytest.mark.parametrize("pay", [None, "first-visit", "every-step"])
def test_the_script_pays_what_was_asked_for(count, pay, train_here):
    """The second of two rollouts, whose rows and counts are known from the table's own state before it."""
    flags = ["--count", count, *(["--pay", pay] if pay else []), "--int-coef", 2, "--ext-coef", 3]
    run = train_here("ppo_lstm_jci.py", *SMALL, *flags)
    rows, dones, bonuses = run["rows"].view(32, 4), run["dones"], run["intrinsic_rewards"]
    steps_before = run["table"].steps - rows.flatten().bincount(minlength=len(run["table"].steps))
    counts = {}
    is_first, _ = count_by_hand(rows, dones, counts, [set() for _ in range(4)])
    if count == "episodes":
        before = run["table"].episodes - torch.tensor([counts.get(row, 0) for row in range(len(steps_before))])
        counts = {row: int(number) for row, number in enumerate(before)}
        paid = count_by_hand(rows, dones, counts, [set() for _ in range(4)])[1] ** -0.5
    else:
        paid = np.zeros((32, 4))
        embeddings, labels = run["embeddings"].numpy(), run["labels"]
        centres = run["table"].centres.numpy()
        listed = [[np.zeros(centres.shape[1]), 0], *([c, int(n)] for c, n in zip(centres, steps_before))]
        paid = listing(listed, embeddings, labels, run["args"].kappa).reshape(32, 4)
    if pay == "first-visit" or (pay is None and count == "episodes"):
        paid = paid * is_first
    np.testing.assert_allclose(bonuses, paid, rtol=1e-5)
    assert 0 < (bonuses > 0).float().mean() <= 1
    mean = run["bonus_mean"].mean
    torch.testing.assert_close(run["total_rewards"], 3 * run["rewards"] + 2 * bonuses / mean)


def test_one_component_for_32_frames_unless_told_otherwise(train_here):
    flags = ["--env", "memory", "--num-envs", 5, "--num-steps", 32, "--total-timesteps", 160]
    assert train_here("ppo_lstm_jci.py", *flags)["args"].num_clusters == 5
    assert train_here("ppo_lstm_jci.py", *flags, "--num-clusters", 7)["args"].num_clusters == 7


def test_episodes_are_cut_where_an_environment_starts_anew():
    dones = torch.tensor([[1, 1, 0], [0, 0, 0], [0, 1, 0], [0, 1, 1]])
    stretches = [stretch.tolist() for stretch in split_episodes(dones)]
    # step t of environment n has index 3 t + n
    assert stretches == [[0, 3, 6, 9], [1, 4], [7], [10], [2, 5, 8], [11]]
