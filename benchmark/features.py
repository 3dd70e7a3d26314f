"""Which frozen features tell places apart? An offline test of minutes that predicts training runs of hours.

    python benchmark/features.py                                        # the table of docs/features.md
    python benchmark/features.py --figure features.png                  # and maps of the bonus
    python benchmark/features.py --encoders texture --kappas 0.98 0.99  # other thresholds

Random walks from the start of MyWayHome-Sparse fill a table of clusters, as ppo_lstm_jci.py would. Then frames from all
over the map ask it what a first visit would pay: 1 / sqrt(N_k + 1), N_k the episodes that have visited the row they
match. Averaged over cells of 64 map units, this is compared with what it stands for, 1 / sqrt(N_cell + 1):

rows         rows of the table
spearman     rank correlation of the two over all cells: 1 if the bonus ranks places as true visits do
information  mutual information of row and cell in nats
"""

import argparse
import sys
from pathlib import Path

import matplotlib
import numpy as np
import torch
import torch.nn.functional as F
from scipy.stats import spearmanr
from sklearn.metrics import mutual_info_score

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common.clustering import gmm_labels
from common.encoders import RandomEncoder, TextureEncoder
from common.my_way_home import MyWayHome
from ppo_lstm_jci import ClusterTable, to_obs

matplotlib.use("Agg")
import matplotlib.pyplot as plt

ENCODERS = {"texture": (TextureEncoder, 0.987), "random": (RandomEncoder, 0.8)}
CELL_SIZE, NUM_ENVS, NUM_STEPS = 64, 32, 64
PLACES = {"S": (240, -176), "G": (1040, -352)}  # start and goal


def random_walk(task, num_rollouts, seed):
    """Frames (R, T, N, 3, 42, 42), cells (R, T, N, 2) and dones (R, T, N) of R rollouts with random actions."""
    envs, rng = MyWayHome(task, NUM_ENVS), np.random.default_rng(seed)
    frames, infos = envs.reset(seed=seed, options={"stagger": True})
    actions, ended = rng.integers(4, size=NUM_ENVS), np.ones(NUM_ENVS, bool)
    obs, positions, dones = [], [], []
    for _ in range(num_rollouts * NUM_STEPS):
        obs.append(to_obs(frames, "cpu"))
        positions.append(infos["position"])
        dones.append(ended)
        changed = rng.random(NUM_ENVS) < 0.35  # actions are held for a while, or the player would hardly move
        actions = np.where(changed, rng.choice([1, 2, 3, 3], size=NUM_ENVS), actions)
        frames, _, terminations, truncations, infos = envs.step(actions)
        ended = terminations | truncations
    envs.close()
    shape = (num_rollouts, NUM_STEPS, NUM_ENVS)
    cells = np.floor(np.array(positions) / CELL_SIZE).astype(int)
    return torch.stack(obs).unflatten(0, shape[:2]), cells.reshape(*shape, 2), np.array(dones).reshape(shape)


def true_counts(cells, dones):
    """{cell: episodes that have visited it}"""
    counts, visited = {}, [set() for _ in range(NUM_ENVS)]
    for row, ended in zip(cells.reshape(-1, NUM_ENVS, 2).tolist(), dones.reshape(-1, NUM_ENVS)):
        for env, cell in enumerate(map(tuple, row)):
            if ended[env]:
                visited[env] = set()
            if cell not in visited[env]:
                visited[env].add(cell)
                counts[cell] = counts.get(cell, 0) + 1
    return counts


def fill_table(encoder, kappa, walk):
    table = ClusterTable(kappa, encoder.embedding_size, NUM_ENVS)
    for obs, dones in zip(walk[0], walk[2]):
        embeddings = encoder(obs.flatten(0, 1))
        rows, _ = table.match(embeddings, gmm_labels(embeddings, NUM_STEPS * NUM_ENVS // 32))
        table.count_episodes(rows.view(NUM_STEPS, NUM_ENVS), torch.from_numpy(dones))
    return table


def ask(table, encoder, probe):
    """For every probed frame (B,): the row it matches, else -1, and what its first visit would pay."""
    similarity, rows = (F.normalize(encoder(probe[0].flatten(0, 2))) @ table.centres.T).max(1)
    rows = torch.where(similarity < table.kappa, -1, rows)
    counts = torch.where(rows < 0, 0, table.episodes[rows])
    return rows.numpy(), ((counts + 1) ** -0.5).numpy()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoders", nargs="+", choices=list(ENCODERS), default=list(ENCODERS))
    parser.add_argument("--draws", type=int, default=3, help="random weights of each encoder")
    parser.add_argument("--kappas", type=float, nargs="+", help="thresholds [default: each encoder's own]")
    parser.add_argument("--figure", metavar="PNG", help="draw the bonus over the map")
    args = parser.parse_args()

    walk, probe = random_walk("sparse", 20, seed=1), random_walk("dense", 10, seed=2)  # 41 k and 20 k frames
    counts = true_counts(walk[1], walk[2])
    cells, cell_of_frame = np.unique(probe[1].reshape(-1, 2), axis=0, return_inverse=True)
    cell_of_frame = cell_of_frame.ravel()
    ideal = np.array([(counts.get(tuple(cell), 0) + 1) ** -0.5 for cell in cells.tolist()])
    maps = {}
    print("| features | kappa | draw | rows | spearman | information |\n|---|---|---|---|---|---|")
    for name in args.encoders:
        encoder_class, usual_kappa = ENCODERS[name]
        for kappa in args.kappas or [usual_kappa]:
            for draw in range(1, args.draws + 1):
                torch.manual_seed(draw)
                encoder = encoder_class()
                table = fill_table(encoder, kappa, walk)
                rows, bonuses = ask(table, encoder, probe)
                bonus_map = np.bincount(cell_of_frame, bonuses) / np.bincount(cell_of_frame)
                maps.setdefault(f"{name}, kappa {kappa}", []).append(bonus_map)
                spearman, information = spearmanr(bonus_map, ideal).statistic, mutual_info_score(rows, cell_of_frame)
                numbers = f"{len(table.centres)} | {spearman:.2f} | {information:.2f}"
                print(f"| {name} | {kappa} | {draw} | {numbers} |", flush=True)

    if args.figure:
        draw_maps(ideal, maps, cells, args.figure)


def draw_maps(ideal, maps, cells, path):
    """The ideal in the first column, then a row for each encoder and threshold, with its draws."""
    num_draws = max(map(len, maps.values()))
    size = (3.6 * (1 + num_draws), 3 * len(maps))
    figure, axes = plt.subplots(len(maps), 1 + num_draws, figsize=size, squeeze=False, layout="constrained")
    low, high = cells.min(0), cells.max(0)

    def show(axis, title, values):
        image = np.full(high - low + 1, np.nan)
        image[tuple((cells - low).T)] = values
        for name, (x, y) in PLACES.items():
            axis.text(
                x / CELL_SIZE - low[0] - 0.5,
                y / CELL_SIZE - low[1] - 0.5,
                name,
                color="white",
                ha="center",
                va="center",
            )
        axis.set_title(title, fontsize=10)
        return axis.imshow(image.T, origin="lower", vmin=0, vmax=1, cmap="viridis")

    for axis in axes.flat:
        axis.axis("off")
    shown = show(axes[0, 0], "1 / sqrt(true visits)", ideal)
    for row, (name, draws) in zip(axes, maps.items()):
        for draw, values in enumerate(draws):
            show(row[1 + draw], f"{name}, draw {draw + 1}", values)
    figure.colorbar(shown, ax=axes, label="bonus of a first visit", shrink=0.7)
    figure.savefig(path, dpi=100)


if __name__ == "__main__":
    main()
