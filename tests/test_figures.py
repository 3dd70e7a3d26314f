"""benchmark/figures.py: numbers against plain loops, and every command on a real run."""

import subprocess
import sys

import numpy as np
import pytest
import torch
import transformers
from conftest import ROOT, as_program
from PIL import Image

from benchmark import figures
from common.encoders import DinoEncoder
from common.memory_corridor import MemoryCorridor
from common.visitation import VisitCounts

SMALL = ["--env", "memory", "--num-envs", 4, "--num-steps", 32, "--total-timesteps", 256]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dino")
    torch.manual_seed(0)
    config = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "patch_size": 14, "image_size": 98}
    transformers.Dinov2Model(transformers.Dinov2Config(**config)).save_pretrained(folder)
    return folder


def test_visits_until_a_step():
    visits, rng, seen = VisitCounts(MemoryCorridor(1)), np.random.default_rng(0), []
    for _ in range(20):
        positions = np.stack([rng.integers(4, size=1500), np.zeros(1500)], 1)
        visits.add(positions)
        seen += positions[:, 0].tolist()
    cells, counts, until = figures.visits_until(visits.state_dict(), 20_000)
    assert 10_000 < until <= 20_000
    for (x, _), count in zip(cells, counts):
        assert count == seen[:until].count(x)
    assert counts.sum() == until
    assert figures.visits_until(visits.state_dict(), 30_000)[2] == 30_000
    assert len(figures.visits_until(visits.state_dict(), 10)[0]) == 0


def test_patch_tokens_lie_where_their_patches_are(model):
    encoder = DinoEncoder(str(model), torch.device("cpu"))
    frames = np.zeros((2, 98, 98, 3), np.uint8)
    frames[1, 14:28, 42:56] = 255  # the patch in the second line, fourth column
    first, second = figures.patch_tokens(encoder, frames)
    assert first.shape == (7, 7, 32)
    changed = (first - second).norm(dim=-1)
    assert divmod(int(changed.argmax()), 7) == (1, 3)


def test_components_are_those_of_the_covariance():
    tokens = torch.randn(3, 4, 4, 6, dtype=torch.float64) * torch.tensor([9.0, 5, 3, 1, 1, 1])
    colours, mask = figures.shares(tokens)
    flat = tokens.flatten(0, 2).numpy()
    vectors = np.linalg.eigh(np.cov(flat.T))[1][:, ::-1]
    projected = (flat - flat.mean(0)) @ vectors
    for i in range(3):
        expected = (projected[:, i] - projected[:, i].min()) / np.ptp(projected[:, i])
        shown = colours[..., i].ravel()
        assert min(abs(shown - expected).max(), abs(1 - shown - expected).max()) < 1e-9, "but for the sign"
    first = projected[:, 0] > 0
    assert (mask.ravel() == first).all() or (mask.ravel() != first).all()


def test_every_command(train_here, model, tmp_path):
    train_here("ppo_lstm_jci.py", *SMALL)
    (run,) = (tmp_path / "runs").iterdir()
    rng = np.random.default_rng(0)
    film = [np.kron(rng.integers(256, size=(72, 128, 3)), np.ones((10, 10, 1))).astype(np.uint8) for _ in range(60)]
    figures.imageio.mimsave(run / "episode.mp4", film, fps=9, macro_block_size=1)  # the hardest to compress
    commands = [
        ("progression", run, "--steps", 128),
        ("atlas", run),
        ("tokens", "--model", model, "--frames", 2),
        ("animation", run),
    ]
    for command in commands:
        out = tmp_path / "figures" / f"{command[0]}.webp"
        with as_program(tmp_path, "figures.py", *command, "--out", out):
            figures.main()
        picture = Image.open(out)
        assert np.asarray(picture.convert("RGB")).std() > 5
    assert out.stat().st_size < figures.MOST_BYTES
    assert picture.n_frames >= 15


def test_what_is_missing_is_said_in_a_sentence(train_here, tmp_path):
    train_here("ppo_lstm.py", *SMALL)
    (run,) = (tmp_path / "runs").iterdir()
    for command, sentence in (("atlas", "give a run of ppo_lstm_jci.py"), ("animation", "--video writes it")):
        arguments = [sys.executable, ROOT / "benchmark" / "figures.py", command, run, "--out", tmp_path / "x.png"]
        process = subprocess.run(arguments, capture_output=True, text=True)
        assert process.returncode == 1
        assert sentence in process.stderr
        assert len(process.stderr.strip().splitlines()) == 1
