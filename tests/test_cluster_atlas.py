"""The atlas against plain means over everything that was seen."""

import numpy as np
import torch

from common.cluster_atlas import ClusterAtlas


def test_rows_remember_mean_image_position_birth_and_appearances():
    atlas, rng = ClusterAtlas(), np.random.default_rng(0)
    seen, births, birthplaces, appearances = {}, {}, {}, {}
    for global_step in (0, 1000, 2000, 3000):
        clusters = rng.integers(20, size=120)
        clusters = np.unique(clusters, return_inverse=True)[1]  # every number occurs
        row_of_cluster = rng.integers(3 + global_step // 400, size=20)
        if global_step == 0:
            row_of_cluster[:3] = [0, 1, 2]  # rows are opened in order
        rows = row_of_cluster[clusters]
        _, rows = np.unique(rows, return_inverse=True) if global_step == 0 else (None, rows)
        images = torch.from_numpy(rng.integers(256, size=(120, 3, 42, 42), dtype=np.uint8))
        positions = torch.from_numpy(rng.normal(size=(120, 2)).astype(np.float32))
        rows, clusters = torch.from_numpy(rows), torch.from_numpy(clusters)
        atlas.add(rows, clusters, images, positions, global_step)
        for row, image, position in zip(rows.tolist(), images, positions):
            seen.setdefault(row, []).append((image.double(), position.double()))
        for row in range(len(atlas.births)):
            births.setdefault(row, global_step)
            if row not in birthplaces:
                birthplaces[row] = positions[rows.tolist().index(row)].tolist()
        for row, cluster in set(zip(rows.tolist(), clusters.tolist())):
            appearances[row] = appearances.get(row, 0) + 1
    assert len(seen) > 5
    assert atlas.births.tolist() == [births[row] for row in range(len(atlas.births))]
    assert atlas.appearances.tolist() == [appearances.get(row, 0) for row in range(len(atlas.births))]
    assert atlas.birthplaces.tolist() == [birthplaces[row] for row in range(len(atlas.births))]
    for row, visits in seen.items():
        assert atlas.steps[row] == len(visits)
        mean_image, mean_position = (sum(column) / len(visits) for column in zip(*visits))
        torch.testing.assert_close(atlas.images[row].double(), mean_image, rtol=0, atol=0.01)
        torch.testing.assert_close(atlas.positions[row].double(), mean_position, rtol=0, atol=1e-4)


def test_comes_back_from_its_state():
    atlas, copy = ClusterAtlas(), ClusterAtlas()
    arguments = torch.tensor([0, 1, 0]), torch.tensor([0, 1, 2]), torch.ones(3, 3, 42, 42), torch.ones(3, 2)
    atlas.add(*arguments, 7)
    copy.load_state_dict(atlas.state_dict())
    for each in (atlas, copy):
        each.add(*arguments, 8)
    assert atlas.appearances.tolist() == copy.appearances.tolist() == [4, 2]
    assert torch.equal(atlas.images, copy.images)


def test_history_tells_when_every_step_was_and_stays_short():
    atlas, rng, seen = ClusterAtlas(), np.random.default_rng(0), []
    for rollout in range(600):
        rows = np.append(np.arange(5), rng.integers(5 + rollout // 100, size=995))
        if rollout % 100 == 0:
            rows[5:10] = 4 + rollout // 100  # no row is left out when it is its turn to be opened
        rows = torch.from_numpy(rows)
        atlas.add(rows, rows, torch.zeros(1000, 3, 42, 42, dtype=torch.uint8), torch.zeros(1000, 2), 1000 * rollout)
        seen.append(rows)
    seen = torch.cat(seen)
    lengths = [length for length in atlas.history.sum(0).tolist() if length]
    assert 32 <= len(lengths) <= 64
    assert sum(lengths) == len(seen) == 600_000
    assert max(lengths[:-1]) <= 2 * min(lengths[:-1])
    for counts, stretch in zip(atlas.history.T, seen.split(lengths)):
        assert counts.tolist() == [int((stretch == row).sum()) for row in range(len(atlas.steps))]
