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


@pytest.mark.parametrize("kappa", [0.3, 0.8, 0.95, 1.0])
def test_bonus_equals_the_listing_over_consecutive_batches(kappa):
    table, listed = ClusterTable(kappa, DIMENSION), [[np.zeros(DIMENSION), 0]]
    for embeddings, labels in batches(seed=3):
        bonuses, rows = table.visit(torch.from_numpy(embeddings), labels, 0)
        np.testing.assert_allclose(bonuses, listing(listed, embeddings, labels, kappa), rtol=1e-6)
        assert table.counts.tolist() == [count for _, count in listed[1:]]
        similarity = cosine_similarity(table.centres, np.stack([centre for centre, _ in listed[1:]]))
        np.testing.assert_allclose(np.diag(similarity), 1, atol=1e-5)
        assert rows.max() < len(table.counts)
    assert len(table.counts) > 1 or kappa == 0.3
    assert table.counts.sum() == 8 * 300


def test_a_cluster_can_match_a_row_opened_moments_before_in_the_same_batch():
    table = ClusterTable(0.9, 2)
    embeddings = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.01], [0.0, 1.0]])
    bonuses, rows = table.visit(embeddings, np.array([5, 5, 2, 9]), 0)
    assert rows.tolist() == [0, 0, 0, 1]
    np.testing.assert_allclose(bonuses, [1, 2**-0.5, 3**-0.5, 1])  # the third step continues the count of the first two
    assert table.appearances.tolist() == [2, 1]


def test_a_new_state_pays_more_than_a_visited_one():
    table = ClusterTable(0.8, 5)
    chain = torch.eye(5)
    first, _ = table.visit(chain[[0, 0, 1, 0]], np.arange(4), 0)
    again, _ = table.visit(chain[[0, 1, 2]], np.arange(3), 0)
    np.testing.assert_allclose(first, [1, 2**-0.5, 1, 3**-0.5])
    np.testing.assert_allclose(again, [4**-0.5, 2**-0.5, 1])


def test_zero_embeddings_do_not_become_nan():
    bonuses, _ = ClusterTable(0.8, 4).visit(torch.zeros(3, 4), np.array([0, 0, 1]), 0)
    assert torch.isfinite(bonuses).all()


def test_rows_remember_mean_image_position_and_birth():
    table = ClusterTable(0.9, DIMENSION)
    seen = {}  # row -> images, positions
    rng = np.random.default_rng(0)
    births = []
    for step, (embeddings, labels) in enumerate(batches(seed=5, num_batches=4, length=120)):
        images = torch.from_numpy(rng.integers(256, size=(120, 3, 42, 42), dtype=np.uint8))
        positions = torch.from_numpy(rng.normal(size=(120, 2)).astype(np.float32))
        _, rows = table.visit(torch.from_numpy(embeddings), labels, 1000 * step)
        table.remember(rows, images, positions)
        for row, image, position in zip(rows.tolist(), images, positions):
            seen.setdefault(row, []).append((image.double(), position.double()))
        births += [1000 * step] * (len(table.counts) - len(births))
    assert table.births.tolist() == births
    for row, visits in seen.items():
        assert table.counts[row] == len(visits)
        torch.testing.assert_close(
            table.images[row].double(), sum(i for i, _ in visits) / len(visits), rtol=0, atol=0.01
        )
        torch.testing.assert_close(
            table.positions[row].double(), sum(p for _, p in visits) / len(visits), rtol=0, atol=1e-4
        )


def test_table_comes_back_from_its_state():
    table, copy = ClusterTable(0.8, DIMENSION), ClusterTable(0.8, DIMENSION)
    all_batches = list(batches(seed=1))
    for embeddings, labels in all_batches[:-1]:
        _, rows = table.visit(torch.from_numpy(embeddings), labels, 7)
        table.remember(rows, torch.zeros(len(rows), 3, 42, 42), torch.zeros(len(rows), 2))
    copy.load_state_dict(table.state_dict())
    embeddings, labels = all_batches[-1]
    expected, rows = table.visit(torch.from_numpy(embeddings), labels, 8)
    bonuses, copied_rows = copy.visit(torch.from_numpy(embeddings), labels, 8)
    assert torch.equal(bonuses, expected)
    assert torch.equal(rows, copied_rows)


def test_episodes_are_cut_where_an_environment_starts_anew():
    dones = torch.tensor([[1, 1, 0], [0, 0, 0], [0, 1, 0], [0, 1, 1]])
    stretches = [stretch.tolist() for stretch in split_episodes(dones)]
    # step t of environment n has index 3 t + n
    assert stretches == [[0, 3, 6, 9], [1, 4], [7], [10], [2, 5, 8], [11]]
