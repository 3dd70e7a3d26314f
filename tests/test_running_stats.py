"""Running statistics against numpy's, of everything at once."""

import numpy as np
import pytest
import torch

from common.running_stats import MovingMean, RunningMeanStd


@pytest.mark.parametrize("shape", [(), (3, 2)], ids=["scalar", "per-pixel"])
def test_batches_of_any_size_equal_all_at_once(shape):
    rng = np.random.default_rng(0)
    batches = [rng.normal(5 * i, 1 + i, size=(size, *shape)) for i, size in enumerate([7, 1, 300, 20])]
    stats = RunningMeanStd(shape)
    for batch in batches:
        stats.update(torch.from_numpy(batch))
    everything = np.concatenate(batches)
    np.testing.assert_allclose(stats.mean, everything.mean(0), rtol=1e-12)
    np.testing.assert_allclose(stats.var, everything.var(0), rtol=1e-12)
    np.testing.assert_allclose(stats.std, everything.std(0), rtol=1e-6)
    assert stats.mean.shape == stats.var.shape == shape
    assert stats.count == 328


def test_the_first_batch_sets_mean_and_variance_exactly():
    batch = torch.randn(13, 4, dtype=torch.float64)
    stats = RunningMeanStd((4,))
    stats.update(batch)
    assert torch.equal(stats.mean, batch.mean(0))
    assert torch.equal(stats.var, batch.var(0, correction=0))


def test_small_types_do_not_overflow_or_lose_digits():
    stats = RunningMeanStd()
    for _ in range(100):
        stats.update(torch.tensor([255, 254], dtype=torch.uint8))
    assert stats.mean == 254.5
    assert abs(stats.var - 0.25) < 1e-12
    stats = RunningMeanStd()
    stats.update(torch.tensor([1e6, 1e6 + 1], dtype=torch.float32))
    assert stats.var == 0.25


def test_constant_input_has_a_deviation_to_divide_by():
    stats = RunningMeanStd((2,))
    stats.update(torch.ones(5, 2))
    assert (stats.std == 1e-4).all()


def test_comes_back_from_its_state_and_shares_nothing_with_it():
    stats, copy = RunningMeanStd((3,)), RunningMeanStd((3,))
    stats.update(torch.randn(10, 3))
    state = stats.state_dict()
    saved_mean = state["mean"].clone()
    copy.load_state_dict(state)
    batch = torch.randn(6, 3)
    stats.update(batch)
    assert torch.equal(state["mean"], saved_mean), "a saved state must not move with the statistics"
    copy.update(batch)
    for name in ("mean", "var", "count"):
        assert torch.equal(getattr(stats, name), getattr(copy, name))


@pytest.mark.parametrize("momentum", [0.8, 0.0])
def test_the_moving_mean_weighs_batches_less_the_older_they_are(momentum):
    rng = np.random.default_rng(1)
    batches = [rng.normal(size=(size, 3)) + 10 * i for i, size in enumerate([5, 1, 40, 7])]
    moving = MovingMean(momentum)
    for last in range(len(batches)):
        moving.update(torch.from_numpy(batches[last]))
        # a batch counts as one, however large; the first has no older one to share its weight with
        weights = [momentum**last] + [(1 - momentum) * momentum ** (last - i) for i in range(1, last + 1)]
        assert sum(weights) == pytest.approx(1)
        assert moving.mean == pytest.approx(sum(w * batch.mean() for w, batch in zip(weights, batches)))
    assert isinstance(moving.mean, float)


def test_the_first_moving_mean_is_that_of_the_first_batch():
    moving = MovingMean(0.8)
    moving.update(torch.tensor([[1.0, 2.0], [3.0, 6.0]]))
    assert moving.mean == 3
    moving.update(torch.full((2, 2), 8.0))
    assert moving.mean == pytest.approx(0.8 * 3 + 0.2 * 8)


def test_the_moving_mean_comes_back_from_a_checkpoint(tmp_path):
    moving, copies = MovingMean(0.8), []
    for batch in (None, torch.tensor([4.0]), torch.tensor([9.0])):  # saved before the first rollout, too
        if batch is not None:
            moving.update(batch)
        torch.save(moving.state_dict(), tmp_path / "checkpoint.pt")
        copies.append(MovingMean(0.8))
        copies[-1].load_state_dict(torch.load(tmp_path / "checkpoint.pt", weights_only=True))
        assert copies[-1].mean == moving.mean
    copies[0].update(torch.tensor([7.0]))
    assert copies[0].mean == 7, "nothing was seen before"
    for part in (moving, copies[-1]):
        part.update(torch.tensor([-2.0, 6.0]))
    assert copies[-1].mean == moving.mean == pytest.approx(0.8 * (0.8 * 4 + 0.2 * 9) + 0.2 * 2)
