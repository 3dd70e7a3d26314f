"""RECODE's memory against a plain transcription of the published algorithm, and against numbers worked out by hand."""

import numpy as np
import pytest
import torch

from common.encoders import RandomEncoder
from ppo_lstm_recode import Args, AtomMemory

DIMENSION = 16
SMALL = ["--env", "memory", "--num-envs", 4, "--num-steps", 32, "--bptt-length", 16, "--minibatch-size", 64]


class Transcription:
    """Algorithm 1 line by line with Python lists in double precision, and the start-up of docs/recode.md."""

    def __init__(self, args):
        self.args, self.atoms, self.counts = args, [], []
        self.scale, self.num_scales, self.removals = 0.0, 0, 0

    def visit(self, e, u, v):
        args, e = self.args, [float(x) for x in e]

        def squared_distance(f, g):
            return sum((a - b) ** 2 for a, b in zip(f, g))

        squared = [squared_distance(f, e) for f in self.atoms]
        total = 0.0
        for d, count in zip(squared, self.counts):
            if d < self.scale:
                total += (1 + count) * args.kernel_epsilon / (args.kernel_epsilon + d / self.scale)
        if len(self.atoms) < args.startup_atoms and total < 1:
            total = 1.0
        reward = 1 / (total**0.5 + args.reward_constant)
        if not self.atoms:
            self.atoms.append(e)
            self.counts.append(1.0)
            return reward

        nearest = sorted(squared)[: args.num_neighbours]
        self.num_scales += 1
        tau = args.distance_rate if self.num_scales * args.distance_rate > 1 else 1 / self.num_scales
        self.scale = (1 - tau) * self.scale + tau / len(nearest) * sum(nearest)
        self.counts = [args.count_decay * count for count in self.counts]
        i = squared.index(min(squared))
        if squared[i] > args.kappa * self.scale and u < args.insertion_probability:
            if len(self.atoms) < args.memory_size:
                self.atoms.append(e)
                self.counts.append(1.0)
                return reward
            weights = [1 / max(count, args.min_count) ** 2 for count in self.counts]
            j, passed = 0, weights[0]
            while passed < v * sum(weights) and j < len(weights) - 1:
                j += 1
                passed += weights[j]
            others = [n for n in range(len(self.atoms)) if n != j]
            n = min(others, key=lambda other: squared_distance(self.atoms[other], self.atoms[j]))
            self.counts[n] += self.counts[j]
            self.atoms[j], self.counts[j] = e, 1.0
            self.removals += 1
        else:
            count = self.counts[i]
            self.atoms[i] = [(count * a + b) / (count + 1) for a, b in zip(self.atoms[i], e)]
            self.counts[i] += 1
        return reward


def walk(num, seed):
    """Embeddings around places that come into view one by one, some of them repeated or nearly equal."""
    rng = np.random.default_rng(seed)
    places = 3 * rng.normal(size=(40, DIMENSION))
    visible = np.minimum(rng.integers(1 + np.arange(num) // 60), 39)
    embeddings = places[visible] + rng.normal(size=(num, DIMENSION)) * rng.choice([0, 1e-4, 0.3, 1], size=(num, 1))
    return embeddings.astype(np.float32), rng.random((num, 2))


@pytest.mark.parametrize(
    "flags",
    [
        {"insertion_probability": 0.3, "kappa": 0.05},
        {"insertion_probability": 1.0, "kappa": 0.01, "kernel_epsilon": 0.1, "startup_atoms": 0},
        {"insertion_probability": 0.6, "distance_rate": 0.05, "count_decay": 0.9, "num_neighbours": 50, "kappa": 0.05},
        {"insertion_probability": 0.6, "distance_rate": 0.9999, "count_decay": 1.0, "num_neighbours": 3},
        {"insertion_probability": 0.6, "count_decay": 0.3, "min_count": 1e-3},
    ],
    ids=["slow-scale", "insert-all", "fast-scale", "newest-scale", "floor"],
)
def test_every_bonus_atom_and_count_equals_the_transcription(flags):
    args = Args(memory_size=30, **flags)
    memory, listed = AtomMemory(args, DIMENSION), Transcription(args)
    embeddings, draws = walk(4000, seed=1)
    sizes = []
    for part in np.split(np.arange(4000), [1, 20, 700, 2500]):  # several rollouts, the first of a single step
        bonuses, num_insertions = memory.visit(embeddings[part], draws[part])
        changes = len(listed.atoms) + listed.removals
        expected = [listed.visit(embeddings[t], *draws[t]) for t in part]
        np.testing.assert_allclose(bonuses, expected, rtol=1e-4)  # atoms are float32
        np.testing.assert_allclose(memory.atoms[: memory.num_atoms], listed.atoms, rtol=0, atol=1e-5)
        np.testing.assert_allclose(memory.counts[: memory.num_atoms], listed.counts, rtol=1e-9)
        np.testing.assert_allclose(memory.distance_scale, listed.scale, rtol=1e-5)
        assert num_insertions == len(listed.atoms) + listed.removals - changes
        sizes.append(memory.num_atoms)
    assert sizes[0] == 1
    assert sizes[1] < 30 == sizes[-1], "the memory must be seen growing as well as full"
    assert listed.removals > 50


@pytest.mark.parametrize(("v", "atoms", "counts"), [(0.1, [1, 2], [1, 0.875]), (0.2, [0, 1], [0.875, 1])])
def test_four_steps_by_hand(v, atoms, counts):
    args = Args(memory_size=2, insertion_probability=1.0, kernel_epsilon=0.5, count_decay=0.5, startup_atoms=0)
    memory = AtomMemory(args, 1)
    embeddings = np.array([[0], [2], [0], [1]], dtype=np.float32)
    bonuses, num_insertions = memory.visit(embeddings, np.full((4, 2), v))
    # 0 becomes an atom, then 2, with d2 = 4; 0 finds itself (K = 1) with count 1/2, and 2 on the rim, which is outside;
    # d2 = (4 + (0 + 4) / 2) / 2 = 3; 1 is at squared distance 1 from the atoms, whose counts are 1.25 and 0.5
    counts_met = [0, 0, 1.5, (2.25 + 1.5) * 0.5 / (0.5 + 1 / 3)]
    np.testing.assert_allclose(bonuses, [1 / (count**0.5 + 0.01) for count in counts_met])
    assert num_insertions == 3
    # their counts fade to 0.625 and 0.25, so the removal's weights are 2.56 and 16: the first goes if v < 0.138
    np.testing.assert_allclose(memory.atoms[:, 0], atoms)
    np.testing.assert_allclose(memory.counts, counts)


def test_a_new_state_pays_more_than_a_visited_one_also_in_the_next_rollout():
    memory = AtomMemory(Args(insertion_probability=1.0), 5)
    chain = 10 * np.eye(5, dtype=np.float32)
    memory.visit(chain[np.arange(40) % 4], np.zeros((40, 2)))
    (fifth, first), _ = memory.visit(chain[[4, 0]], np.zeros((2, 2)))
    (fifth_again, fifth_later), _ = memory.visit(chain[[4, 4]], np.zeros((2, 2)))
    assert fifth > 2 * first
    assert fifth > fifth_again > fifth_later


def test_a_memory_that_has_just_been_started_does_not_pay_the_largest_bonus():
    embeddings, draws = walk(10, seed=2)
    capped, _ = AtomMemory(Args(), DIMENSION).visit(embeddings, draws)
    literal, _ = AtomMemory(Args(startup_atoms=0), DIMENSION).visit(embeddings, draws)
    assert literal[0] == 100
    assert capped.max() <= 1 / 1.01


def test_distances_between_nearly_equal_vectors_keep_their_digits():
    rng = np.random.default_rng(0)
    memory = AtomMemory(Args(memory_size=200), 384)
    e = (5 * rng.normal(size=384)).astype(np.float32)
    memory.atoms[:] = e + (rng.normal(size=(200, 384)) * 10.0 ** rng.integers(-5, 1, size=(200, 1)))
    memory.atoms[7] = e
    memory.num_atoms = 200
    expected = ((memory.atoms.astype(np.float64) - e) ** 2).sum(1)
    distances = memory.squared_distances(e)
    assert distances[7] == 0
    np.testing.assert_allclose(distances, expected, rtol=1e-5)
    by_products = (memory.atoms**2).sum(1) - 2 * memory.atoms @ e + e @ e
    assert (np.abs(by_products - expected) > expected).any(), "the test must be hard for the usual shortcut"


def test_removal_is_drawn_in_proportion_to_one_over_the_squared_count():
    removed = []
    for v in (np.arange(2100) + 0.5) / 2100:
        memory = AtomMemory(Args(memory_size=3), 1)
        memory.num_atoms, memory.counts[:] = 3, [1, 2, 4]
        memory.atoms[:, 0] = [0, 1, 5]
        removed.append(memory.make_room(v))
        merged = {0: [1, 3, 4], 1: [3, 2, 4], 2: [1, 6, 4]}[removed[-1]]  # into 1, the nearest; into 0; into 1
        assert memory.counts.tolist() == merged
    assert np.bincount(removed).tolist() == [1600, 400, 100]


def test_counts_that_have_faded_to_nothing_can_be_removed():
    memory = AtomMemory(Args(memory_size=4), 1)
    memory.num_atoms, memory.counts[:] = 4, [0, 1e-200, 1e-5, 3]
    memory.atoms[:, 0] = range(4)
    rows = {memory.make_room(v) for v in (0, 0.4, 0.6, 1 - 1e-16)}
    assert rows == {0, 1}
    assert np.isfinite(memory.counts).all()


def test_memory_comes_back_from_its_state(tmp_path, capsys):
    embeddings, draws = walk(900, seed=3)
    args = Args(memory_size=30, insertion_probability=0.5)
    for seen in (0, 20, 600):  # nothing yet, growing, full
        memory = AtomMemory(args, DIMENSION)
        memory.visit(embeddings[:seen], draws[:seen])
        state = memory.state_dict()
        expected, _ = memory.visit(embeddings[seen:], draws[seen:])  # must leave the state as it was
        torch.save(state, tmp_path / "checkpoint.pt")
        memory_again = AtomMemory(args, DIMENSION)
        memory_again.load_state_dict(torch.load(tmp_path / "checkpoint.pt", weights_only=True))
        bonuses, _ = memory_again.visit(embeddings[seen:], draws[seen:])
        assert torch.equal(bonuses, expected)
        assert np.array_equal(memory_again.atoms, memory.atoms)
        assert np.array_equal(memory_again.counts, memory.counts)
    with pytest.raises(SystemExit):
        AtomMemory(Args(memory_size=29), DIMENSION).load_state_dict(memory.state_dict())
    assert "the 30 atoms of the checkpoint" in capsys.readouterr().err


@pytest.mark.parametrize("encoder", ["random", "texture"])
def test_a_rollout_is_paid_by_the_definition(encoder, train_here):
    """The transcription above is given the rollout's frames, one after the other, and its random draws.

    With noise in them: all distances would be 0 as long as the corridor is grey.
    """
    flags = ["--total-timesteps", 128, "--ext-coef", 3, "--int-coef", 2, "--encoder", encoder]
    flags += ["--startup-atoms", 2, "--insertion-probability", 0.5, "--noisy-tv"]
    run = train_here("ppo_lstm_recode.py", *SMALL, *flags)
    listed, bonus = Transcription(run["args"]), torch.zeros(32, 4)
    embeddings = run["encoder"](run["next_observations"].flatten(0, 1)).view(32, 4, -1)
    draws = run["draws"].reshape(32, 4, 2)
    for t in range(32):
        for env in range(4):
            bonus[t, env] = listed.visit(embeddings[t, env].tolist(), *draws[t, env])
    assert bonus.std() > 0.1 * bonus.mean()
    assert run["rewards"].sum() > 0
    expected = 3 * run["rewards"] + 2 * bonus / bonus.mean()
    torch.testing.assert_close(run["total_rewards"], expected, rtol=1e-3, atol=1e-4)
    assert run["metrics"]["intrinsic/num_atoms"] == run["metrics"]["intrinsic/insertions"] == len(listed.atoms) > 2
    for name in ("memory", "encoder"):
        assert run["saved"][name] is run[name], "it must be in checkpoints"


@pytest.mark.parametrize("looks_at", ["obs", "frames"])
def test_the_bonus_is_that_of_the_frame_a_step_leads_to(looks_at, train_here, monkeypatch):
    """In the corridor steps lead to grey, grey, white and the end, white; only starts have colours.

    Encoders see what the policy sees or, as DINO does, the frames themselves, which are as large in the corridor.
    """

    def prepare(self, frames, obs):
        return torch.from_numpy(frames).permute(0, 3, 1, 2)

    if looks_at == "frames":
        monkeypatch.setattr(RandomEncoder, "prepare", prepare)
    images = train_here("ppo_lstm_recode.py", *SMALL, "--total-timesteps", 128, "--encoder", "random")["images"]
    expected = torch.tensor([128, 128, 255, 255], dtype=torch.uint8).repeat(8)[:, None, None, None, None]
    assert torch.equal(images, expected.expand(32, 4, 3, 42, 42))
