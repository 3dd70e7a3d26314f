"""Plays the checkpoint of a run: success, return, length and coverage with 95 % intervals, and a video on request.

    python evaluate.py runs/NAME                                 # 100 episodes, actions sampled as in training
    python evaluate.py runs/NAME --greedy --task very-sparse     # the likeliest action, from another start
    python evaluate.py runs/NAME --episodes 10 --video           # what it sees, where it goes, what it is paid for

Works for every script and environment. eval.json and episode.mp4 are written into the run's folder; report.py shows
them. Docs: docs/evaluate.md
"""

import importlib
import json
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal, Optional

from common.cpu import at_most_threads  # before torch
import imageio.v2 as imageio
import numpy as np
import torch
import torch.nn.functional as F
import tyro
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from scipy import stats
from tqdm import tqdm

from common.checkpoints import read_newest
from common.encoders import make_encoder
from common.my_way_home import MyWayHome
from common.pictures import draw_map
from common.run_folder import read_about
from common.visitation import VisitCounts

ROOT = Path(__file__).resolve().parent


@dataclass
class Args:
    run: tyro.conf.Positional[Path]
    """folder of the run, such as runs/NAME"""
    episodes: int = 100
    """how many to play"""
    greedy: bool = False
    """take the likeliest action instead of sampling as in training"""
    task: Optional[Literal["dense", "sparse", "very-sparse"]] = None
    """another start in MyWayHome [default: the one it was trained on]"""
    video: bool = False
    """film the first episode of the first environment as episode.mp4"""
    seed: int = 1
    """seed of the environments and of the sampled actions"""
    num_envs: Optional[int] = None
    """environments side by side [default: 8, in Habitat 1]"""
    scene: Optional[str] = None
    """another path of Habitat's scene [default: the one it was trained in]"""
    scenes_dir: Optional[str] = None
    """another folder with the Replica download [default: the one of the training]"""
    out: Optional[Path] = None
    """folder for eval.json and episode.mp4 [default: the run's]"""
    cuda: bool = True
    """use a GPU if there is one"""


class Episode:
    """What one episode did, and, if it is recorded, what it saw."""

    def __init__(self):
        self.rewards, self.cells, self.seen = [], set(), []


def play(script, agent, envs, args, device):
    """Return the episodes played and the first one's record.

    Every environment plays its share of the episodes, however long they take: the first to finish are the short ones.
    """
    shares = [len(share) for share in np.array_split(np.arange(args.episodes), envs.num_envs)]
    played, running = [[] for _ in shares], [Episode() for _ in shares]
    frames, infos = envs.reset(seed=args.seed)
    state, done = agent.initial_state(envs.num_envs, device), torch.ones(envs.num_envs, device=device)
    progress = tqdm(total=args.episodes, unit=" episodes")
    while any(len(episodes) < share for episodes, share in zip(played, shares)):
        obs = script.to_obs(frames, device)
        with torch.inference_mode(), at_most_threads(envs.num_envs):
            hidden, state = agent.get_states(obs[None], state, done[None])
            policy, values = agent.get_policy(hidden[0]), agent.get_value(hidden[0])
            actions = policy.probs.argmax(-1) if args.greedy else policy.sample()
        if not played[0]:
            running[0].seen.append((frames[0], obs[0].cpu(), infos["position"][0], int(actions[0]), float(values[0])))
        frames, rewards, terminations, truncations, infos = envs.step(actions.cpu().numpy())
        ended = terminations | truncations
        done = torch.from_numpy(ended).float().to(device)
        positions = np.where(ended[:, None], infos["final_info"]["position"], infos["position"])
        for i, cell in enumerate(map(tuple, envs.cells(positions).tolist())):
            running[i].rewards.append(float(rewards[i]))
            running[i].cells.add(cell)
            if ended[i]:
                if len(played[i]) < shares[i]:
                    played[i].append(running[i])
                    progress.update()
                running[i] = Episode()
    progress.close()
    return [episode for episodes in played for episode in episodes]


def interval(values):
    """Mean and 95 % interval: Wilson's for shares, else the bootstrap's percentiles."""
    values = np.asarray(values)
    if values.dtype == bool:
        low, high = stats.binomtest(int(values.sum()), len(values)).proportion_ci(method="wilson")
    elif len(values) < 2:
        low = high = None  # one episode says nothing about the others
    else:
        low, high = stats.bootstrap((values,), np.mean, method="percentile", random_state=0).confidence_interval
    return {"mean": float(values.mean()), "low": none_or_float(low), "high": none_or_float(high)}


def none_or_float(number):
    return None if number is None else float(number)


def pay(record, checkpoint, script_args, envs, device):
    """What the steps of an episode would be paid by the tables of the checkpoint, which stay as they are.

    Returns rows (T,) of the cluster table, -1 where a frame is like none of them, and bonuses (T,); None where the
    method has no such thing.
    """
    frames, obs, positions = (np.stack(column) for column in list(zip(*record))[:3])
    if "table" in checkpoint:  # Just Cluster It: single frames are matched here, clusters of them in training
        encoder = make_encoder(script_args, device)
        encoder.load_state_dict(checkpoint["encoder"])
        images = encoder.prepare(frames, torch.from_numpy(obs))
        table, embeddings = checkpoint["table"], encoder(images.to(device)).cpu()
        similarity, rows = (F.normalize(embeddings) @ table["centres"].T).max(1)
        rows = torch.where(similarity < script_args.kappa, -1, rows).tolist()
        counts = table[script_args.count].tolist()
        keys, pays_once = rows, script_args.pay == "first-visit"
        counted = {row: counts[row] for row in set(rows) if row >= 0}
    elif "cell_counts" in checkpoint:
        keys = list(map(tuple, np.floor(positions / script_args.cell_size).astype(int).tolist()))
        rows, counted, pays_once = None, checkpoint["cell_counts"]["episodes"], True
    else:
        return None, None
    bonuses = [(counted.get(key, 0) + 1) ** -0.5 for key in keys]
    if pays_once:
        bonuses = [bonus * (key not in keys[:t]) for t, (key, bonus) in enumerate(zip(keys, bonuses))]
    return rows, bonuses


def larger_frames(args, script_args, record):
    """The same episode, rendered by the game at 640 x 480 if it can, else the frames that the agent saw."""
    frames, _, positions, actions, _ = zip(*record)
    if script_args.env != "vizdoom" or script_args.noisy_tv:
        return frames
    envs = MyWayHome(script_args.task, 1, scale=4)
    (frame,), infos = envs.reset(seed=args.seed)
    large = []
    for position, action in zip(positions, actions):
        large.append(frame)
        if not np.array_equal(position, infos["position"][0]):  # an engine died, then or now
            large = frames
            break
        (frame,), *_, infos = envs.step(np.array([action]))
    envs.close()
    return large


class Film:
    """An episode as a sequence of pictures (720, 1280, 3): first person, map and path, clusters, bonus or value."""

    def __init__(self, frames, record, rows, bonuses, visits, atlas, title):
        self.frames, self.rows, self.bonuses = frames, rows, bonuses
        self.positions = np.stack([step[2] for step in record])
        self.atlas = atlas
        self.figure = Figure(figsize=(12.8, 7.2), dpi=100, facecolor="white")
        self.canvas = FigureCanvasAgg(self.figure)
        self.figure.text(0.015, 0.965, title, fontsize=13, weight="bold", va="center")
        self.moving = []  # what changes from picture to picture
        self.add_view()
        self.add_map(visits)
        self.add_curve(bonuses if bonuses is not None else [step[4] for step in record])
        if rows is None:
            self.add_policy_view(record)
        else:
            self.add_clusters()
        self.canvas.draw()
        self.background = self.canvas.copy_from_bbox(self.figure.bbox)

    def add_view(self):
        axis = self.figure.add_axes((0.015, 0.33, 0.45, 0.60))
        axis.axis("off")
        smooth = "nearest" if self.frames[0].shape[0] < 200 else "antialiased"
        self.view = self.move(axis, axis.imshow(self.frames[0], interpolation=smooth))
        self.clock = self.move(axis, axis.text(0.02, 0.97, "", color="white", va="top", transform=axis.transAxes))
        self.clock.set_bbox({"facecolor": "black", "alpha": 0.6, "linewidth": 0, "pad": 3})

    def add_map(self, visits):
        axis = self.figure.add_axes((0.53, 0.39, 0.455, 0.545))
        draw_map(axis, visits)
        axis.set_anchor("C")
        self.path = self.move(axis, axis.plot([], [], color="#1f77b4", linewidth=1.5, zorder=4)[0])
        here = {"marker": "o", "markersize": 9, "markeredgecolor": "white", "zorder": 6}
        self.here = self.move(axis, axis.plot([], [], color="#1f77b4", **here)[0])

    def add_curve(self, values):
        axis = self.figure.add_axes((0.58, 0.075, 0.405, 0.20))
        axis.set_xlim(0, len(values))
        axis.set_ylim(min(0, *values), 1.05 * max(1e-6, *values))
        axis.set_xlabel("step")
        axis.spines[["top", "right"]].set_visible(False)
        name = "value of the critic" if self.bonuses is None else "bonus of each step"
        axis.set_title(name, fontsize=11, loc="left")
        self.values = values
        style = "default" if self.bonuses is None else "steps-mid"
        self.curve = self.move(axis, axis.plot([], [], color="#d95f02", linewidth=1.5, drawstyle=style)[0])

    def add_clusters(self):
        figure, visited = self.figure, list(dict.fromkeys(row for row in self.rows if row >= 0))
        figure.text(0.015, 0.292, "matched cluster", fontsize=11)
        axis = figure.add_axes((0.015, 0.05, 0.13, 0.231))
        axis.axis("off")
        self.matched = self.move(axis, axis.imshow(np.zeros((42, 42, 3), np.uint8)))
        self.matched_text = self.move(axis, axis.text(0, 43, "", va="top", fontsize=9))
        axis = figure.add_axes((0.165, 0.03, 0.375, 0.251))
        axis.axis("off")
        title = axis.text(0.165, 0.292, "", fontsize=11, transform=figure.transFigure)
        self.tiles_title = self.move(axis, title)
        columns = max(8, int(np.ceil(np.sqrt(2.6 * len(visited)))))
        lines = -(-max(1, len(visited)) // columns)
        self.places = {row: (i // columns * 46, i % columns * 46) for i, row in enumerate(visited)}
        self.sheet = np.full((lines * 46, columns * 46, 3), 255, np.uint8)
        for top, left in self.places.values():
            self.sheet[top : top + 42, left : left + 42] = 225
        axis.set_anchor("NW")
        self.tiles = self.move(axis, axis.imshow(self.sheet))

    def add_policy_view(self, record):
        self.obs = [step[1].permute(1, 2, 0).numpy() for step in record]
        axis = self.figure.add_axes((0.015, 0.03, 0.14, 0.25))
        axis.axis("off")
        axis.set_title("what the policy sees", fontsize=11, loc="left")
        self.policy_view = self.move(axis, axis.imshow(self.obs[0], interpolation="nearest"))
        if self.bonuses is None:
            words = "The bonus of this method comes from networks\nthat change with every step: it is not replayed."
        else:
            words = "The bonus is paid for cells of the true map,\nonce per episode."
        self.figure.text(0.18, 0.19, words, fontsize=11, va="center", linespacing=1.5)

    def move(self, axis, artist):
        artist.set_animated(True)
        self.moving.append((axis, artist))
        return artist

    def __iter__(self):
        for t, frame in enumerate(self.frames):
            self.canvas.restore_region(self.background)
            self.view.set_data(frame)
            self.clock.set_text(f"step {t + 1} of {len(self.frames)}")
            self.path.set_data(*self.positions[: t + 1].T)
            self.here.set_data(*self.positions[t : t + 1].T)
            self.curve.set_data(np.arange(t + 1), self.values[: t + 1])
            if self.rows is None:
                self.policy_view.set_data(self.obs[t])
            else:
                self.show_cluster(t)
            for axis, artist in self.moving:
                axis.draw_artist(artist)
            yield np.asarray(self.canvas.buffer_rgba())[:, :, :3].copy()

    def show_cluster(self, t):
        row = self.rows[t]
        image, text = np.full((42, 42, 3), 225, np.uint8), "like no cluster"
        if row >= 0:
            image = self.atlas["images"][row].permute(1, 2, 0).clamp(0, 255).byte().numpy()
            text = f"number {row}, {int(self.atlas['steps'][row]):,} steps"
            top, left = self.places[row]
            self.sheet[top : top + 42, left : left + 42] = image
            self.tiles.set_data(self.sheet)
        self.matched.set_data(image)
        self.matched_text.set_text(text)
        seen = len({row for row in self.rows[: t + 1] if row >= 0})
        self.tiles_title.set_text(f"visited in this episode: {seen} of {len(self.atlas['steps'])} clusters")


def main():
    args = tyro.cli(Args, description=__doc__)
    about, script_name = read_about(args.run)
    if not (ROOT / script_name).exists():
        sys.exit(f"{args.run}: {script_name}, which began this run, is not beside evaluate.py; copy it there.")
    if args.episodes < 1 or (args.num_envs is not None and args.num_envs < 1):
        sys.exit("--episodes and --num-envs must be at least 1.")
    script = importlib.import_module(script_name[: -len(".py")])
    known = {field.name for field in fields(script.Args)}
    script_args = script.Args(**{name: value for name, value in about["args"].items() if name in known})
    trained_task = script_args.task
    if args.task and script_args.env != "vizdoom":
        sys.exit(f"--task is for MyWayHome; this run is of --env {script_args.env}: leave it out.")
    for name in ("task", "scene", "scenes_dir"):
        setattr(script_args, name, getattr(args, name) or getattr(script_args, name))
    device = torch.device("cuda" if torch.cuda.is_available() and args.cuda else "cpu")
    checkpoint = read_newest(args.run)
    if checkpoint is None:
        sys.exit(f"{args.run}: no readable checkpoint in it; train longer, or go on with --resume {args.run}.")
    script_args.num_envs = min(args.episodes, args.num_envs or (1 if script_args.env == "habitat" else 8))
    args.out = args.out or args.run
    args.out.mkdir(parents=True, exist_ok=True)

    torch.manual_seed(args.seed)
    envs = script.make_envs(script_args)
    agent = script.Agent(envs.single_action_space.n).to(device)
    agent.load_state_dict(checkpoint["agent"])
    episodes = play(script, agent, envs, args, device)
    reachable = set(map(tuple, envs.reachable_cells().tolist()))
    has_goal = script_args.env != "habitat"
    record = episodes[0].seen
    rows, bonuses = pay(record, checkpoint, script_args, envs, device)
    result = {
        "script": script_name,
        "global_step": checkpoint["global_step"],
        "env": script_args.env,
        "task": script_args.task,
        "trained_task": trained_task,
        "greedy": args.greedy,
        "seed": args.seed,
        "episodes": len(episodes),
        "success": interval([sum(episode.rewards) > 0 for episode in episodes]) if has_goal else None,
        "return": interval([sum(episode.rewards) for episode in episodes]),
        "length": interval([len(episode.rewards) for episode in episodes]),
        "coverage": interval([len(episode.cells & reachable) / len(reachable) for episode in episodes]),
        "coverage_of_all": len(set.union(*(episode.cells for episode in episodes)) & reachable) / len(reachable),
        "returns": [sum(episode.rewards) for episode in episodes],
        "lengths": [len(episode.rewards) for episode in episodes],
        "recorded": {
            "positions": [[round(float(x), 3) for x in step[2]] for step in record],
            "actions": [step[3] for step in record],
            "values": [round(step[4], 5) for step in record],
            "rewards": [round(reward, 6) for reward in episodes[0].rewards],
            "rows": rows,
            "bonuses": bonuses,
        },
    }
    place = f"MyWayHome, {script_args.task}" if script_args.env == "vizdoom" else script_args.env
    how = "likeliest actions" if args.greedy else "sampled actions"
    print(f"{args.run} after {checkpoint['global_step']:,} steps: {len(episodes)} episodes of {place}, {how}")
    for name in ("success", "return", "length", "coverage"):
        print(f"  {name:9}{describe(result[name])}")
    print(f"  {'':9}{result['coverage_of_all']:.3f} of the reachable cells in all episodes together")

    if args.video:
        visits = {"cells": torch.zeros(0, 2, dtype=torch.int64), "map": VisitCounts(envs).map}
        envs.close()
        frames = larger_frames(args, script_args, record)
        title = f"{script_args.exp_name} on {place}, after {checkpoint['global_step']:,} steps, {how}"
        film = Film(frames, record, rows, bonuses, visits, checkpoint.get("atlas"), title)
        with imageio.get_writer(args.out / "episode.mp4", fps=9, macro_block_size=1) as writer:
            for picture in tqdm(film, total=len(frames), unit=" pictures"):
                writer.append_data(picture)
        result["video"] = "episode.mp4"
    else:
        envs.close()
    (args.out / "eval.json").write_text(json.dumps(result) + "\n")
    print(f"{args.out / 'eval.json'}" + (f" and {args.out / 'episode.mp4'}" if args.video else ""))


def describe(estimate):
    if estimate is None:
        return "there is no goal here"
    if estimate["low"] is None:
        return f"{estimate['mean']:.3f}  (one episode, no interval)"
    return f"{estimate['mean']:.3f}  [{estimate['low']:.3f}, {estimate['high']:.3f}]"


if __name__ == "__main__":
    main()
