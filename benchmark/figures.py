"""The paper's figures, made from a run.

    python benchmark/figures.py progression runs/NAME --out docs/figures/progression.png    # the table over the map
    python benchmark/figures.py atlas runs/NAME --out docs/figures/atlas.png                # its clusters
    python benchmark/figures.py tokens --model dino --out tokens.png                        # what DINOv2 sees
    python benchmark/figures.py animation runs/NAME --out docs/figures/home.webp            # the film of evaluate.py

`atlas` and `progression` need nothing but the run's checkpoint; `animation` needs the episode.mp4 that `python
evaluate.py runs/NAME --video` writes; `tokens` needs a model of the hub or a folder of one, as --dino-model does.
"""

import argparse
import sys
from pathlib import Path

import imageio.v2 as imageio
import numpy as np
import torch
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from PIL import Image
from sklearn.decomposition import PCA

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common.checkpoints import read_newest
from common.encoders import IMAGENET_MEAN, IMAGENET_STD, DinoEncoder
from common.my_way_home import MyWayHome
from common.pictures import draw_clusters, draw_map, pixels, visit_grid
from common.run_folder import read_about

MOST_BYTES = 3_000_000  # of the animation


def read_run(folder):
    """A checkpoint that has clusters, and a title."""
    about, script = read_about(folder)
    checkpoint = read_newest(folder)
    if checkpoint is None or "atlas" not in checkpoint:
        sys.exit(f"{folder}: no checkpoint with clusters in it; give a run of ppo_lstm_jci.py.")
    if checkpoint["visits"].get("map") is None:
        sys.exit(f"{folder}: its checkpoint has no map; go on with it, or train a new run.")
    args = about["args"]
    place = f"MyWayHome, {args['task']}" if args["env"] == "vizdoom" else args["env"]
    return checkpoint, f"Just Cluster It on {place}"


def visits_until(visits, step):
    """(K, 2) cells and (K,) counts of the periods that end by then, and where the last of them ends."""
    history, total, counts = visits["history"], 0, {}
    for period in history["periods"].unique():
        chosen = history["periods"] == period
        if total + int(history["counts"][chosen].sum()) > step:
            break
        total += int(history["counts"][chosen].sum())
        for cell, number in zip(map(tuple, history["cells"][chosen].tolist()), history["counts"][chosen].tolist()):
            counts[cell] = counts.get(cell, 0) + number
    return np.array(list(counts)).reshape(-1, 2), np.array(list(counts.values())), total


def progression(args):
    """Visits and rows of the table after so many steps, and at the end."""
    checkpoint, title = read_run(args.run)
    visits, atlas, end = checkpoint["visits"], checkpoint["atlas"], checkpoint["global_step"]
    steps = [step for step in args.steps if step < end] + [end]
    figure = Figure(figsize=(4.2 * len(steps), 4.4), dpi=120, layout="constrained")
    norm = LogNorm(1, max(2, int(visits["counts"].max())))
    for axis, step in zip(figure.subplots(1, len(steps), squeeze=False)[0], steps):
        show = draw_map(axis, visits)
        cells, counts, seen_until = visits_until(visits, step)
        if len(cells):
            shown = axis.imshow(visit_grid(visits, cells, counts).T, cmap="viridis", norm=norm, **show)
        born = atlas["births"] <= step
        style = {"s": 26, "color": "#ff2d95", "edgecolors": "white", "linewidths": 0.6, "zorder": 4}
        axis.scatter(*atlas["birthplaces"][born].T, **style)
        name = f"at the end, {step:,} steps" if step == end else f"{step:,} steps"
        axis.set_title(f"{name}: {int(born.sum())} clusters", fontsize=11)
        axis.set(xlabel="", ylabel="", xticks=[], yticks=[])
    figure.colorbar(shown, ax=figure.axes, label="visits of a cell (steps)", shrink=0.85)
    figure.suptitle(f"{title}: where it has been (colour) and where its clusters were born (pink)")
    imageio.imwrite(args.out, pixels(figure))


def atlas(args):
    """The clusters of a run: mean images, and where and when they were born."""
    checkpoint, title = read_run(args.run)
    title = f"{title}, step {checkpoint['global_step']:,}"
    imageio.imwrite(args.out, draw_clusters(checkpoint["visits"], checkpoint["atlas"], title))


def patch_tokens(encoder, frames):
    """(N, H, W, 3) frames -> (N, S, S, D) tokens of the last layer, without the class and the register tokens"""
    pixels = encoder.prepare(frames, None).float() / 255
    mean, std = (torch.tensor(values)[:, None, None] for values in (IMAGENET_MEAN, IMAGENET_STD))
    with torch.inference_mode():
        tokens = encoder.model((pixels - mean) / std).last_hidden_state
    side = encoder.image_size // encoder.model.config.patch_size
    return tokens[:, -side * side :].unflatten(1, (side, side))


def shares(tokens):
    """(N, S, S, D) -> the three leading principal components, each scaled to 0..1 over all frames, and a mask.

    The mask is where the first component is above its mean: it parts near from far, or wall from floor.
    """
    flat = tokens.flatten(0, 2).double().numpy()
    components = PCA(3, random_state=0).fit_transform(flat)
    low, high = components.min(0), components.max(0)
    colours = ((components - low) / np.maximum(high - low, 1e-12)).reshape(*tokens.shape[:3], 3)
    return colours, (components[:, 0] > 0).reshape(tokens.shape[:3])


def tokens(args):
    """Frames of MyWayHome beside the principal components of DINOv2's patch tokens."""
    encoder = DinoEncoder(args.model, torch.device("cpu"))
    if getattr(encoder.model.config, "patch_size", None) is None:
        sys.exit(f"--model {args.model} has no patches: type --model facebook/dinov2-small, or a folder of it.")
    encoder.image_size = 28 * encoder.model.config.patch_size  # finer than in training, to be looked at
    envs = MyWayHome("dense", args.frames)
    frames, _ = envs.reset(seed=args.seed)
    envs.close()
    colours, mask = shares(patch_tokens(encoder, frames))
    figure = Figure(figsize=(2.4 * args.frames, 6.2), dpi=110, layout="constrained")
    axes = figure.subplots(3, args.frames, squeeze=False)
    for i in range(args.frames):
        axes[0, i].imshow(frames[i])
        axes[1, i].imshow(colours[i], aspect=120 / 160)
        axes[2, i].imshow(np.where(mask[i][:, :, None], colours[i], 1), aspect=120 / 160)
    for axis, name in zip(
        axes[:, 0], ("frame", "patch tokens: leading\ncomponents as colours", "... above the mean\nof the first")
    ):
        axis.set_ylabel(name, fontsize=10)
    for axis in axes.flat:
        axis.set(xticks=[], yticks=[])
    imageio.imwrite(args.out, pixels(figure))


def animation(args):
    """The film of evaluate.py, small enough to open a page with: smaller and coarser until it fits."""
    film = args.run / "episode.mp4"
    if not film.exists():
        sys.exit(f"{film} is missing: python evaluate.py {args.run} --video writes it.")
    pictures = [Image.fromarray(picture) for picture in imageio.mimread(film, memtest=False)]
    for width, quality, stride in ((900, 70, 1), (900, 50, 1), (800, 40, 1), (800, 40, 2), (640, 30, 3), (480, 20, 4)):
        kept = [picture.resize((width, width * 9 // 16), Image.LANCZOS) for picture in pictures[::stride]]
        durations = [90 * stride] * (len(kept) - 1) + [2000]  # it rests at the goal
        kept[0].save(args.out, save_all=True, append_images=kept[1:], duration=durations, loop=0, quality=quality)
        if args.out.stat().st_size < MOST_BYTES:
            break
    print(f"{args.out}: {len(kept)} pictures, {width} wide, {args.out.stat().st_size / 1e6:.1f} MB")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="progression | atlas | tokens | animation")
    for command in (progression, atlas, tokens, animation):
        one = commands.add_parser(command.__name__, help=command.__doc__, description=command.__doc__)
        one.set_defaults(command=command)
        if command is tokens:
            one.add_argument("--model", default="facebook/dinov2-small", help="of the hub, or a folder")
            one.add_argument("--frames", type=int, default=6)
            one.add_argument("--seed", type=int, default=1, help="of the places the frames are from")
        else:
            one.add_argument("run", type=Path, help="folder of a run, such as runs/NAME")
        if command is progression:
            one.add_argument("--steps", type=int, nargs="+", default=[50_000, 100_000, 200_000])
        one.add_argument("--out", type=Path, required=True, help="the picture to write; animations as .webp or .gif")
    args = parser.parse_args()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.command(args)


if __name__ == "__main__":
    main()
