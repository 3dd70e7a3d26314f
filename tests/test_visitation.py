import math

import numpy as np
import pytest

from common.visitation import VisitCounts


class Map:
    def __init__(self, reachable):
        self.reachable = reachable

    def cells(self, positions):
        return np.floor(positions / 16).astype(int)

    def reachable_cells(self):
        return self.reachable

    def world(self):
        return {"unit": "map units", "walls": np.zeros((1, 2, 2))}


def test_cells_coverage_and_entropy():
    visits = VisitCounts(Map([(0, 0), (1, 0), (-1, 0), (5, 5)]))
    visits.add(np.array([[0.0, 0.0], [15.9, 15.9], [16.0, 3.0], [-0.1, 8.0]]))
    assert visits.counts == {(0, 0): 2, (1, 0): 1, (-1, 0): 1}
    assert visits.unique_cells() == 3
    assert visits.coverage() == 3 / 4
    assert visits.entropy() == pytest.approx(-(0.5 * math.log(0.5) + 2 * 0.25 * math.log(0.25)))
    visits.add(np.array([[1000.0, 1000.0]]))  # outside the reachable cells: counted, but no coverage
    assert visits.unique_cells() == 4
    assert visits.coverage() == 3 / 4


def test_counts_come_back_from_their_state():
    visits = VisitCounts(Map([(0, 0)]))
    visits.add(np.random.default_rng(0).normal(size=(500, 2)) * 100)
    copy = VisitCounts(Map([(0, 0)]))
    copy.load_state_dict(visits.state_dict())
    assert copy.counts == visits.counts
    assert sum(copy.counts.values()) == 500


def test_history_tells_when_every_visit_was_and_stays_short():
    visits, rng = VisitCounts(Map([(0, 0)])), np.random.default_rng(0)
    steps = []
    for rollout in range(1000):
        positions = rng.integers(-3, 4, size=(1000, 2)) * 16.0 + rollout // 100 * 160
        visits.add(positions)
        steps += map(tuple, np.floor(positions / 16).astype(int).tolist())
    assert 32 <= len(visits.history) <= 64
    start = 0
    for period in visits.history:  # each is a stretch of the run
        end = start + sum(period.values())
        expected = {}
        for cell in steps[start:end]:
            expected[cell] = expected.get(cell, 0) + 1
        assert period == expected
        start = end
    assert start == len(steps) == 1_000_000
    lengths = [sum(period.values()) for period in visits.history]
    assert max(lengths[:-1]) <= 2 * min(lengths[:-1])
    copy = VisitCounts(Map([(0, 0)]))
    copy.load_state_dict(visits.state_dict())
    assert copy.history == visits.history
