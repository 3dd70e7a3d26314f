"""One self-contained page of a run, or of several side by side: curves, visits over time, clusters, an episode, flags.

    python report.py runs/NAME                      # writes runs/NAME/report.html
    python report.py runs/ONE runs/OTHER --out comparison.html
    python report.py                                # the newest run in runs/

The page needs no server and no network: open it in any browser, or send it by mail. Docs: docs/evaluate.md
"""

import base64
import csv
import io
import json
import math
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

import numpy as np
import torch
import tyro
from PIL import Image
from plotly.offline import get_plotlyjs

from common.checkpoints import read_newest
from common.run_folder import read_about

TEMPLATE = Path(__file__).resolve().parent / "common" / "report.html"
SPRITE_COLUMNS = 50
MOST_ROWS = 400  # points of a curve
MOST_VIDEO_BYTES = 2_500_000  # of all videos in the page together


@dataclass
class Args:
    runs: tyro.conf.Positional[list[Path]] = field(default_factory=list)
    """folders of runs; several are compared [default: the newest in runs/]"""
    out: Optional[Path] = None
    """the page to write [default: report.html in the run's folder, or runs/report.html for several]"""


def read_rows(file):
    """{column: list of floats, None where there is nothing}, thinned out to at most MOST_ROWS rows"""
    if not file.exists():
        return {}
    with file.open(newline="") as lines:
        header, *rows = list(csv.reader(lines)) or [[]]
    rows = [row for row in rows if len(row) == len(header)]  # a killed run may leave half a row
    kept = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), MOST_ROWS)).astype(int))
    columns = zip(*([to_number(value) for value in rows[i]] for i in kept))
    return dict(zip(header, map(list, columns)))


def to_number(text):
    number = float(text)
    return number if math.isfinite(number) else None


def picture(array):
    """(H, W, 3) uint8 -> data URL"""
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, "WEBP", quality=70)
    return data_url("image/webp", buffer.getvalue())


def data_url(kind, content):
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def rounded(tensor, digits=2):
    return np.round(tensor.double().numpy(), digits).tolist()


def merged(parts, number):
    """Neighbouring parts added up, so that at most `number` are left."""
    return [sum(chunk[1:], chunk[0]) for chunk in np.array_split(parts, min(number, len(parts)))]


def visits_data(visits, num_periods):
    """The map, and for each period the visits [cell, count, cell, count, ...], cells by their place in `cells`."""
    world = visits.get("map")
    if world is None:
        return None  # from before it was known
    history, index = visits["history"], {tuple(cell): i for i, cell in enumerate(visits["cells"].tolist())}
    num_found = int(history["periods"].max()) + 1 if len(history["periods"]) else 1
    parts = history["periods"].numpy() * num_periods // max(num_periods, num_found)  # neighbours become one
    periods = [{} for _ in range(min(num_periods, num_found))]
    for part, cell, number in zip(parts.tolist(), map(tuple, history["cells"].tolist()), history["counts"].tolist()):
        periods[part][index[cell]] = periods[part].get(index[cell], 0) + number
    periods = [[number for pair in sorted(period.items()) for number in pair] for period in periods]
    return {
        **{name: rounded(part) if isinstance(part, torch.Tensor) else part for name, part in world.items()},
        "reachable": world["reachable"].tolist(),
        "cells": visits["cells"].tolist(),
        "periods": periods,
        "ends": np.cumsum([sum(period[1::2]) for period in periods]).tolist(),
    }


def atlas_data(checkpoint, num_periods):
    """The rows' numbers, and their mean images in one picture of SPRITE_COLUMNS columns."""
    atlas = checkpoint["atlas"]
    num_rows = len(atlas["steps"])
    if num_rows == 0:
        return None
    sheet = np.zeros((-(-num_rows // SPRITE_COLUMNS) * 42, min(num_rows, SPRITE_COLUMNS) * 42, 3), np.uint8)
    images = atlas["images"].permute(0, 2, 3, 1).clamp(0, 255).byte().numpy()
    for row, image in enumerate(images):
        top, left = row // SPRITE_COLUMNS * 42, row % SPRITE_COLUMNS * 42
        sheet[top : top + 42, left : left + 42] = image
    history = atlas.get("history", atlas["steps"][:, None]).long().numpy().T
    periods = np.array(merged(history[history.sum(1) > 0], num_periods))
    return {
        "sprite": picture(sheet),
        "columns": min(num_rows, SPRITE_COLUMNS),
        "lines": -(-num_rows // SPRITE_COLUMNS),
        "births": atlas["births"].tolist(),
        "birthplaces": rounded(atlas.get("birthplaces", atlas["positions"])),
        "positions": rounded(atlas["positions"]),
        "steps": atlas["steps"].tolist(),
        "appearances": atlas["appearances"].tolist(),
        "episodes": checkpoint["table"]["episodes"].tolist(),
        "history": periods.T.tolist(),
        "ends": np.cumsum(periods.sum(1)).tolist(),
    }


def run_data(folder, num_runs, video_bytes_left):
    """All that the page shows of a run; where something is missing, None, and the page says so in words."""
    about, script = read_about(folder)
    checkpoint = read_newest(folder)
    num_periods = max(8, 64 // num_runs)
    evaluation = None
    if (folder / "eval.json").exists():
        evaluation = json.loads((folder / "eval.json").read_text())
    args = about["args"]
    place = {"vizdoom": f"MyWayHome, {args['task']}", "habitat": "Habitat", "memory": "memory corridor"}[args["env"]]
    timings = read_rows(folder / "timings.csv")
    run = {
        "name": folder.resolve().name,
        "path": str(folder),
        "label": f"{args['exp_name']}, seed {args['seed']}",
        "script": script,
        "place": place,
        "args": args,
        "starts": about["starts"],
        "progress": read_rows(folder / "progress.csv"),
        "timings": timings,
        "checkpoint_step": checkpoint and checkpoint["global_step"],
        "map": checkpoint and visits_data(checkpoint["visits"], num_periods),
        "atlas": atlas_data(checkpoint, num_periods) if checkpoint and "atlas" in checkpoint else None,
        "keeps_clusters": bool(checkpoint and "atlas" in checkpoint),
        "evaluation": evaluation,
        "video": None,
        "video_file": None,
    }
    for video in [folder / "episode.mp4", *sorted((folder / "videos").glob("*.mp4"), reverse=True)]:
        if video.exists():
            run["video_file"] = str(video.relative_to(folder))
            if video.stat().st_size <= video_bytes_left:
                run["video"] = data_url("video/mp4", video.read_bytes())
            break
    return run


def newest_run():
    runs = sorted(Path("runs").glob("*/args.json"), key=lambda file: file.stat().st_mtime)
    if not runs:
        sys.exit("There is no run in runs/: type make train, or give the folder of a run.")
    return runs[-1].parent


def main():
    args = tyro.cli(Args, description=__doc__)
    folders = args.runs or [newest_run()]
    out = args.out or (folders[0] / "report.html" if len(folders) == 1 else folders[0].parent / "report.html")
    runs, video_bytes_left = [], MOST_VIDEO_BYTES
    for folder in folders:
        runs.append(run_data(folder, len(folders), video_bytes_left))
        video_bytes_left -= len(runs[-1]["video"] or "")
    labels = [run["label"] for run in runs]
    for run in runs:
        if labels.count(run["label"]) > 1:
            run["label"] = run["name"]
    data = json.dumps(runs, separators=(",", ":"), allow_nan=False).replace("</", "<\\/")
    page = TEMPLATE.read_text().replace("/*PLOTLY*/", get_plotlyjs()).replace("/*DATA*/", data)
    out.write_text(page)
    size = out.stat().st_size / 1e6
    print(f"{out} ({size:.1f} MB): open it in a browser.")


if __name__ == "__main__":
    main()
