"""How many rows of a cosine table does a room of MyWayHome fill under the random encoder?

Usage: python benchmark/rooms.py

Plays the task "dense", which starts everywhere, with random actions, and compares the dark second room of the task
"sparse" with the rest of the map: brightness, length of the embeddings, and the rows that equally many frames open at
kappa 0.8, each frame being a cluster of its own. Three encoders on pixels from 0 to 1 (--encoder random) and the same
on pixels from -0.5 to 0.5 (--encoder random-centred), each with three samples of frames.
"""

import sys
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common.encoders import RandomEncoder
from common.my_way_home import MyWayHome
from ppo_lstm_jci import ClusterTable, to_obs

SAMPLE = 400


def play(num_envs=24, num_steps=420):
    """Every second observation (B, 3, 42, 42), its position (B, 2) and its brightness (B,)."""
    envs, rng = MyWayHome("dense", num_envs), np.random.default_rng(0)
    frames, infos = envs.reset(seed=3)
    actions = rng.integers(4, size=num_envs)
    obs, positions = [], []
    for step in range(num_steps):
        changed = rng.random(num_envs) < 0.35  # actions are held for a while, or the player would hardly move
        actions = np.where(changed, rng.choice([1, 2, 3, 3], size=num_envs), actions)
        frames, *_, infos = envs.step(actions)
        if step % 2 == 0:
            obs.append(to_obs(frames, "cpu"))
            positions.append(infos["position"])
    envs.close()
    return torch.cat(obs), np.concatenate(positions)


def main():
    obs, positions = play()
    x, y = positions.T
    second_room = (x > 384) & (x < 575) & (y > -300) & (y < -110)
    brightness = obs.float().mean(dim=(1, 2, 3)).numpy()
    print(f"{'pixels':11}{'seed':6}{'where':14}{'frames':>7}{'brightness':>12}{'length':>8}   rows of {SAMPLE} frames")
    for seed, centred in ((seed, centred) for centred in (False, True) for seed in (1, 2, 3)):
        torch.manual_seed(seed)
        embeddings = RandomEncoder(centred)(obs)
        pixels = "-0.5 to 0.5" if centred else "0 to 1"
        rng = np.random.default_rng(seed)
        for name, here in (("second room", second_room), ("everywhere else", ~second_room)):
            rows = []
            for _ in range(3):
                table = ClusterTable(0.8, embeddings.shape[1])
                sample = rng.permutation(np.flatnonzero(here))[:SAMPLE]
                table.visit(embeddings[sample], np.arange(len(sample)), 0)
                rows.append(len(table.counts))
            length = embeddings[here].norm(dim=1).mean()
            print(f"{pixels:13}{seed:<4}{name:16}{here.sum():5}{brightness[here].mean():12.1f}{length:8.2f}   {rows}")


if __name__ == "__main__":
    main()
