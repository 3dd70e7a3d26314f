"""How fast the parts are, as ratios measured in one run on the same data. One thread for everything but the iterations.

    python benchmark/speed.py                      # about a quarter of an hour
    python benchmark/speed.py --authors-batch      # and the authors' batch, 8192 steps: scikit-learn takes minutes
    python benchmark/speed.py --json speed.json    # also write {"gmm_525_250": ..., ...}

gmm_T_M         scikit-learn's GaussianMixture over gmm_labels: T embeddings of MyWayHome frames, M components
table_1000      the paper's listing over ClusterTable.visit: an episode's 250 clusters against 1000 rows
lstm_chain      a plain loop over two LSTM cells over chained_lstm: forward and backward, 64 steps of 4 sequences
X_iteration     an iteration of ppo_lstm_X.py over one of ppo_lstm.py: 32 environments, 256 steps, random encoder
"""

import argparse
import json
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
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from threadpoolctl import threadpool_limits

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from listing import listing

from common.chained_lstm import chained_lstm
from common.clustering import gmm_labels
from common.encoders import RandomEncoder
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


def doom_embeddings():
    """(525, 32, 384): the embeddings of one episode in each of 32 games, with random actions."""
    torch.manual_seed(1)
    encoder, rng = RandomEncoder(), np.random.default_rng(1)
    envs = MyWayHome("sparse", 32)
    frames, _ = envs.reset(seed=1)
    embeddings = []
    for _ in range(525):
        embeddings.append(encoder(to_obs(frames, "cpu")))
        frames, *_ = envs.step(rng.choice([1, 2, 3, 3], size=32))
    envs.close()
    return torch.stack(embeddings)


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
        table = ClusterTable(kappa, rows.shape[1])
        table.centres, table.counts = rows, torch.full((len(rows),), 10)
        table.appearances, table.births = torch.ones_like(table.counts), torch.zeros_like(table.counts)
        return table.visit(embeddings, labels, 0)[0]

    np.testing.assert_allclose(ours(), paper(), rtol=1e-5)
    return seconds(paper, 3), seconds(ours, 20)


def compare_lstm():
    first, second = torch.nn.LSTMCell(288, 256), torch.nn.LSTMCell(288, 256)
    inputs, dones = torch.randn(64, 4, 288, requires_grad=True), torch.zeros(64, 4)
    dones[20, 1] = dones[40, 3] = 1
    state = torch.zeros(4, 256), torch.zeros(4, 256)

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


METHODS = ("jci", "rnd", "recode", "e3b", "icm", "ride")


def iteration_seconds(script):
    """Mean seconds of an iteration after the first, and where they go."""
    with tempfile.TemporaryDirectory() as folder:
        flags = ["--num-envs", "32", "--num-steps", "256", "--total-timesteps", str(3 * 8192)]
        subprocess.run([sys.executable, ROOT / script, *flags], cwd=folder, check=True, capture_output=True)
        events = EventAccumulator(str(next(Path(folder, "runs").iterdir())))
        events.Reload()
        tags = [tag for tag in events.Tags()["scalars"] if tag.startswith("time/")]
        shares = {tag[len("time/") :]: np.mean([e.value for e in events.Scalars(tag)][1:]) for tag in tags}
        return 8192 / np.mean([e.value for e in events.Scalars("charts/SPS")][1:]), shares


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
        embeddings = doom_embeddings()
        report("gmm_525_250", *compare_gmm(embeddings[:, 0], 250))
        report("gmm_500_30", *compare_gmm(embeddings[:500, 1], 30))
        report("gmm_2100_250", *compare_gmm(embeddings[:, 2:6].transpose(0, 1).flatten(0, 1), 250))
        if args.authors_batch:
            report("gmm_8192_250", *compare_gmm(embeddings[:256].flatten(0, 1), 250))
        report("table_1000", *compare_table(embeddings[:, 0], embeddings[:, 6:].flatten(0, 1)))
        report("lstm_chain", *compare_lstm())

    scripts = ["ppo_lstm.py", *(f"ppo_lstm_{method}.py" for method in METHODS)]
    runs = {script: [] for script in scripts}
    for _ in range(2):  # in turn, so that a busy minute of the machine does not fall on one of them alone
        for script in scripts:
            runs[script].append(iteration_seconds(script))
    fastest = {script: min(runs[script], key=lambda run: run[0]) for script in scripts}
    bare_seconds = fastest["ppo_lstm.py"][0]
    for method in METHODS:
        method_seconds = fastest[f"ppo_lstm_{method}.py"][0]
        report(f"{method}_iteration", bare_seconds, method_seconds, method_seconds / bare_seconds)
    print("\nwhere an iteration goes")
    for script, (_, shares) in fastest.items():
        print(f"  {script:20}" + "  ".join(f"{part} {share:.0%}" for part, share in shares.items()))
    if args.json:
        Path(args.json).write_text(json.dumps(ratios, indent=2) + "\n")


if __name__ == "__main__":
    main()
