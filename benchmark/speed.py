"""How fast the parts are, as ratios measured in one run on the same data, and how fast the whole program is.

    python benchmark/speed.py                      # about ten minutes
    python benchmark/speed.py --authors-batch      # and the authors' batch, 8192 steps: scikit-learn takes minutes
    python benchmark/speed.py --json speed.json    # also write {"gmm_texture": ..., ...}

gmm_texture     scikit-learn's GaussianMixture over gmm_labels: a rollout of 2048 steps, 64 components, texture features
gmm_random      the same for the paper's random features
gmm_authors     ... 8192 steps, 250 components
table_1000      the paper's listing over ClusterTable: an episode's 250 clusters against 1000 rows
lstm_chain      a plain loop over two LSTM cells over chained_lstm: forward and backward, 64 steps of 8 sequences
X_iteration     an iteration of ppo_lstm_X.py over one of ppo_lstm.py, both with their default flags

One thread for everything but the iterations.
"""

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture
from threadpoolctl import threadpool_limits

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from listing import listing

from common.chained_lstm import chained_lstm
from common.clustering import gmm_labels
from common.encoders import RandomEncoder, TextureEncoder
from common.my_way_home import MyWayHome
from ppo_lstm_jci import ClusterTable, to_obs


def seconds(function, repeats):
    """The fastest of several calls: what the machine's other work adds is not part of the cost."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def doom_frames():
    """(256, 32, 3, 42, 42): 256 steps of 32 games with random actions."""
    rng, envs = np.random.default_rng(1), MyWayHome("sparse", 32)
    frames, _ = envs.reset(seed=1, options={"stagger": True})
    obs = []
    for _ in range(256):
        obs.append(to_obs(frames, "cpu"))
        frames, *_ = envs.step(rng.choice([1, 2, 3, 3], size=32))
    envs.close()
    return torch.stack(obs)


def compare_gmm(embeddings, num_clusters):
    def scikit_learn():
        mixture = GaussianMixture(num_clusters, covariance_type="full", reg_covar=1e-6, random_state=1)
        return mixture.fit(embeddings).predict(embeddings)

    embeddings = embeddings.double().numpy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        slow = seconds(scikit_learn, 1)
    return slow, seconds(lambda: gmm_labels(embeddings, num_clusters), 5)


def compare_table(embeddings, other_embeddings):
    """`embeddings` (T, D) are one episode, `other_embeddings` fill the table with 1000 rows."""
    labels = gmm_labels(embeddings, 250)
    rows = torch.nn.functional.normalize(other_embeddings[:1000])
    kappa = 0.97  # high enough for both branches: some clusters match, some open a row
    rows_of_the_paper = [[row, 10] for row in rows.numpy()]

    def paper():
        return listing([row.copy() for row in rows_of_the_paper], embeddings.numpy(), labels, kappa)

    def ours():
        table = ClusterTable(kappa, rows.shape[1], 1)
        table.centres, table.steps = rows, torch.full((len(rows),), 10)
        table.episodes, table.visited = torch.ones_like(table.steps), torch.zeros(1, len(rows), dtype=torch.bool)
        return table.count_steps(*table.match(embeddings, labels)) ** -0.5

    np.testing.assert_allclose(ours(), paper(), rtol=1e-5)
    return seconds(paper, 3), seconds(ours, 20)


def compare_lstm():
    first, second = torch.nn.LSTMCell(288, 256), torch.nn.LSTMCell(288, 256)
    inputs, dones = torch.randn(64, 8, 288, requires_grad=True), torch.zeros(64, 8)
    dones[20, 1] = dones[40, 3] = 1
    state = torch.zeros(8, 256), torch.zeros(8, 256)

    def plain():
        h, c = state
        outputs = []
        for x, done in zip(inputs, dones):
            h, c = (1 - done)[:, None] * h, (1 - done)[:, None] * c
            h, c = first(x, (h, c))
            h, c = second(x, (h, c))
            outputs.append(h)
        torch.stack(outputs).sum().backward()

    def chained():
        chained_lstm(inputs, dones, state, first, second)[0].sum().backward()

    return seconds(plain, 10), seconds(chained, 10)


METHODS = ("jci", "cells", "rnd", "recode", "e3b", "icm", "ride")


def iteration_seconds(script, num_iterations, **environment):
    """Mean seconds of an iteration after the first, and where they go."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, ROOT / script, "--total-timesteps", str(num_iterations * 2048)]
        subprocess.run(command, cwd=folder, check=True, capture_output=True, env={**os.environ, **environment})
        (file,) = Path(folder).glob("runs/*/timings.csv")
        with file.open(newline="") as lines:
            rows = list(csv.DictReader(lines))[1:]
    means = {name: np.mean([float(row[name]) for row in rows]) for name in rows[0]}
    shares = {name[len("time/") :]: share for name, share in means.items() if name.startswith("time/")}
    return shares.pop("iteration"), shares


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--authors-batch", action="store_true", help="also 8192 embeddings, 250 components")
    parser.add_argument("--json", metavar="FILE", help="write the ratios as one flat object")
    args = parser.parse_args()

    ratios = {}
    print(f"{'':17}{'reference':>12}{'ours':>12}{'ratio':>9}")

    def report(name, reference, ours, ratio=None):
        ratios[name] = round(reference / ours if ratio is None else ratio, 3)
        print(f"{name:17}{reference:10.4f} s{ours:10.4f} s{ratios[name]:9.2f}", flush=True)

    torch.set_num_threads(1)
    with threadpool_limits(1):
        frames = doom_frames()
        texture, random = TextureEncoder()(frames.flatten(0, 1)), RandomEncoder()(frames.flatten(0, 1))
        report("gmm_texture", *compare_gmm(texture[:2048], 64))
        report("gmm_random", *compare_gmm(random[:2048], 64))
        if args.authors_batch:
            report("gmm_authors", *compare_gmm(random, 250))
        report("table_1000", *compare_table(random[:525], random[-1000:]))
        report("lstm_chain", *compare_lstm())

    scripts = ["ppo_lstm.py", *(f"ppo_lstm_{method}.py" for method in METHODS)]
    runs = {script: [] for script in scripts}
    for _ in range(2):  # in turn, so that a busy minute of the machine does not fall on one of them alone
        for script in scripts:
            runs[script].append(iteration_seconds(script, 5))
    fastest = {script: min(runs[script], key=lambda run: run[0]) for script in scripts}
    bare_seconds = fastest["ppo_lstm.py"][0]
    for method in METHODS:
        method_seconds = fastest[f"ppo_lstm_{method}.py"][0]
        report(f"{method}_iteration", bare_seconds, method_seconds, method_seconds / bare_seconds)
    print("\nwhere an iteration goes")
    for script, (_, shares) in fastest.items():
        print(f"  {script:20}" + "  ".join(f"{part} {share:.0%}" for part, share in shares.items()))
    print("\nagent steps per second of ppo_lstm_jci.py")
    for threads in ("1", "2"):
        speed = 2048 / iteration_seconds("ppo_lstm_jci.py", 12, OMP_NUM_THREADS=threads)[0]
        ratios[f"steps_per_second_{threads}_threads"] = round(speed)
        print(f"  {threads} threads  {speed:.0f}")
    if args.json:
        Path(args.json).write_text(json.dumps(ratios, indent=2) + "\n")


if __name__ == "__main__":
    main()
