"""Pictures of a checkpoint: where the agent has been, and what its clusters look like, where and when they were born.

They are drawn from the checkpoint's dictionary alone, so that a run that has ended can be drawn as well.
"""

import sys
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.colors import ListedColormap, LogNorm, PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

WALL, FLOOR, START, GOAL = "#444444", "#e6e6e6", "#d62728", "#2ca02c"
COLUMNS, MOST_TILES = 10, 60  # of the mean images


def draw_pictures(saved, args, global_step):
    """{tag: (H, W, 3) uint8}, the pictures that the parts of a checkpoint have data for"""
    script = Path(sys.argv[0]).stem
    name = script if args.exp_name == script else f"{args.exp_name} ({script})"
    place = {"vizdoom": f"MyWayHome, {args.task}", "habitat": "Habitat", "memory": "memory corridor"}[args.env]
    title = f"{name} on {place}, step {global_step:,}"
    visits = {**saved["visits"].state_dict(), "map": saved["visits"].map}
    pictures = {"exploration/visits": draw_visits(visits, title)}
    if "atlas" in saved:
        pictures["exploration/clusters"] = draw_clusters(visits, saved["atlas"].state_dict(), title)
    return pictures


def draw_visits(visits, title):
    """Visits in colour (log scale) over the map, whose reachable cells are grey."""
    figure = Figure(figsize=(8, 6), dpi=100, layout="constrained")
    axis = figure.subplots()
    extent = draw_map(axis, visits)
    counts = visit_grid(visits, visits["cells"].numpy(), visits["counts"].numpy())
    if np.isfinite(counts).any():
        norm = LogNorm(1, max(2, np.nanmax(counts)))
        shown = axis.imshow(counts.T, cmap="viridis", norm=norm, **extent)
        figure.colorbar(shown, ax=axis, label="visits of a cell (steps)")
    reachable = set(map(tuple, visits["map"]["reachable"].tolist()))
    reached = reachable & set(map(tuple, visits["cells"].tolist()))
    share = f"{len(reached) / len(reachable):.1%} of {len(reachable)} reachable cells visited"
    axis.set_title(f"{title}\n{share}", fontsize=11)
    return pixels(figure)


def draw_clusters(visits, atlas, title):
    """The map of where and when rows were born beside mean images, framed in the colour of their birth."""
    num_rows = len(atlas["steps"])
    figure = Figure(figsize=(13, 6.8), dpi=100)
    figure.text(0.5, 0.965, f"{title}: {num_rows} clusters", ha="center", va="center", fontsize=13)
    map_axis = figure.add_axes((0.065, 0.2, 0.355, 0.68))
    draw_map(map_axis, visits)
    map_axis.set_title("where and when they were born", fontsize=11)
    births = atlas["births"].numpy()
    norm = PowerNorm(0.5, 0, max(1, births.max(initial=0)))  # most are born early
    points = map_axis.scatter(
        *atlas["birthplaces"].T, c=births, norm=norm, edgecolors="white", linewidths=0.5, zorder=4
    )
    bar_axis = figure.add_axes((0.065, 0.09, 0.355, 0.02))
    style = {"orientation": "horizontal", "ticks": MaxNLocator(4), "format": EngFormatter(sep=" ")}
    figure.colorbar(points, cax=bar_axis, label="born at step", **style)

    tiles_axis = figure.add_axes((0.43, 0.02, 0.56, 0.86))
    tiles_axis.axis("off")
    shown = np.unique(np.linspace(0, num_rows - 1, min(num_rows, MOST_TILES)).astype(int))
    which = "all of them" if len(shown) == num_rows else f"{len(shown)} of them"
    tiles_axis.set_title(f"mean images of {which}, oldest first: number, steps, appearances", fontsize=11)
    draw_tiles(tiles_axis, atlas, shown, points.cmap(norm(births[shown])))
    return pixels(figure)


def draw_tiles(axis, atlas, rows, colours):
    """Mean images of the rows in lines of ten, framed in the colours, with number, steps and appearances below."""
    height = 42 + 22  # in pixels, with two lines of text
    num_lines = max(1, -(-len(rows) // COLUMNS))
    sheet = np.full((num_lines * height, COLUMNS * 48, 3), 255, np.uint8)
    for i, (row, colour) in enumerate(zip(rows.tolist(), colours)):
        top, left = i // COLUMNS * height, i % COLUMNS * 48
        sheet[top : top + 46, left : left + 46] = (255 * colour[:3]).astype(np.uint8)
        image = atlas["images"][row].permute(1, 2, 0).clamp(0, 255).byte().numpy()
        sheet[top + 2 : top + 44, left + 2 : left + 44] = image
        steps, appearances = int(atlas["steps"][row]), int(atlas["appearances"][row])
        text = f"{row}\n{short(steps)}, {short(appearances)}"
        axis.text(left + 23, top + 47, text, ha="center", va="top", fontsize=7, linespacing=1.1)
    axis.imshow(sheet, interpolation="nearest")
    axis.set_anchor("N")


def draw_map(axis, visits):
    """Reachable cells, walls, start and goal in the map's own units; returns how to show a grid of cells over them."""
    world, reachable = visits["map"], visits["map"]["reachable"].numpy()
    low, high = cell_range(visits)
    left, bottom = low * world["cell_size"] + world["corner"]
    right, top = (high + 1) * world["cell_size"] + world["corner"]
    show = {"origin": "lower", "extent": (left, right, bottom, top), "interpolation": "nearest"}
    floor = visit_grid(visits, reachable, np.ones(len(reachable)))
    axis.imshow(floor.T, cmap=ListedColormap([FLOOR]), **show)
    axis.add_collection(LineCollection(world["walls"].numpy(), colors=WALL, linewidths=1.2, zorder=3))
    for places, marker, colour, name in ((world["starts"], "o", START, "start"), (world["goals"], "*", GOAL, "goal")):
        size = 14 if marker == "*" else 8 if len(places) == 1 else 4
        style = {"markersize": size, "markeredgecolor": "white", "linestyle": "none", "zorder": 5}
        axis.plot(*places.numpy().T, marker=marker, color=colour, label=name, **style)
    margin = 0.03 * max(right - left, top - bottom)
    axis.set_xlim(left - margin, right + margin)
    axis.set_ylim(bottom - margin, top + margin)
    axis.set_xlabel(world["unit"])
    axis.set_ylabel(world["unit"])
    axis.legend(loc="lower right", framealpha=0.9, fontsize=9)
    return show


def visit_grid(visits, cells, values):
    """(W, H) float: the values at the cells (K, 2), NaN elsewhere"""
    low, high = cell_range(visits)
    grid = np.full(high - low + 1, np.nan)
    grid[tuple((cells - low).T)] = values
    return grid


def cell_range(visits):
    cells = np.concatenate([visits["map"]["reachable"].numpy(), visits["cells"].numpy()])
    return cells.min(axis=0), cells.max(axis=0)


def short(number):
    """1234 -> 1.2k"""
    return str(number) if number < 1000 else f"{number / 1000:.1f}k" if number < 10_000 else f"{number / 1000:.0f}k"


def pixels(figure):
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[:, :, :3]
