"""Pixels of the pictures against the places that they stand for."""

import argparse
import time

import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from common import pictures
from common.cluster_atlas import ClusterAtlas
from common.memory_corridor import MemoryCorridor
from common.my_way_home import MyWayHome
from common.visitation import VisitCounts

ARGS = argparse.Namespace(exp_name="jci", env="vizdoom", task="sparse")


@pytest.fixture
def envs():
    envs = MyWayHome("sparse", 1)  # no engine starts: the map is read from the file
    yield envs
    envs.close()


def state_of(visits):
    return {**visits.state_dict(), "map": visits.map}


def make_atlas(positions, num_rows):
    atlas, rows = ClusterAtlas(), torch.arange(num_rows).repeat(2)
    images = torch.from_numpy(np.random.default_rng(1).integers(256, size=(num_rows, 3, 1, 1), dtype=np.uint8))
    positions = torch.from_numpy(positions[np.arange(2 * num_rows) % len(positions)]).float()
    atlas.add(rows, rows, images.expand(-1, 3, 42, 42).repeat(2, 1, 1, 1), positions, 2048)
    return atlas


def test_the_map_shows_walls_start_goal_and_floor_where_they_are(envs):
    visits = VisitCounts(envs)
    figure = Figure(figsize=(10, 8))
    axis = figure.subplots()
    pictures.draw_map(axis, state_of(visits))
    image = pictures.pixels(figure)

    def colour(x, y):
        column, row_from_below = axis.transData.transform((x, y))
        return image[image.shape[0] - 1 - int(row_from_below), int(column)] / 255

    np.testing.assert_allclose(colour(240, -176), to_rgb(pictures.START), atol=0.02)
    np.testing.assert_allclose(colour(1040, -352), to_rgb(pictures.GOAL), atol=0.02)
    for (x1, y1), (x2, y2) in envs.world()["walls"]:
        neighbours = [colour((x1 + x2) / 2 + dx, (y1 + y2) / 2 + dy) for dx in (-1, 0, 1) for dy in (-1, 0, 1)]
        assert np.min(neighbours) < 0.5, "a wall is dark"
    np.testing.assert_allclose(colour(470, -90), to_rgb(pictures.FLOOR), atol=0.02)
    assert (colour(850, -450) == 1).all(), "nothing is there"


def test_visits_are_drawn_in_their_cells(envs):
    visits = VisitCounts(envs)
    positions = np.random.default_rng(0).choice(envs.reachable_cells(), size=300) * 16.0 + 8
    visits.add(positions)
    state = state_of(visits)
    grid = pictures.visit_grid(state, state["cells"].numpy(), state["counts"].numpy())
    low, _ = pictures.cell_range(state)
    expected = np.full(grid.shape, np.nan)
    for x, y in positions:
        cell = int(x // 16) - low[0], int(y // 16) - low[1]
        expected[cell] = np.nan_to_num(expected[cell]) + 1
    np.testing.assert_array_equal(grid, expected)


@pytest.mark.parametrize("num_rows", [1, 12, 2000])
def test_mean_images_have_their_numbers_below_and_points_on_the_map(envs, num_rows, monkeypatch):
    figures = []
    pixels = pictures.pixels
    monkeypatch.setattr(pictures, "pixels", lambda figure: figures.append(figure) or pixels(figure))
    visits = VisitCounts(envs)
    positions = envs.reachable_cells() * 16.0 + 8
    visits.add(positions)
    atlas = make_atlas(positions, num_rows)
    start = time.process_time()
    image = pictures.draw_clusters(state_of(visits), atlas.state_dict(), "title")
    assert time.process_time() - start < 5, "a checkpoint every ten iterations must not notice it"
    assert image.shape == (680, 1300, 3)
    map_axis, _, tiles_axis = figures[0].axes
    (points,) = map_axis.collections[1:]
    np.testing.assert_allclose(points.get_offsets(), atlas.birthplaces)
    sheet = tiles_axis.images[0].get_array()
    texts = tiles_axis.texts
    assert len(texts) == min(num_rows, 60)
    shown = [int(text.get_text().split("\n")[0]) for text in texts]
    assert shown[0] == 0
    assert shown[-1] == num_rows - 1
    for row, text in zip(shown, texts):
        assert text.get_text().split("\n")[1] == "2, 1"  # steps, appearances
        x, y = text.get_position()
        np.testing.assert_allclose(sheet[int(y) - 25, int(x)], atlas.images[row, :, 0, 0], atol=1)


def test_pictures_of_a_checkpoint(envs):
    visits = VisitCounts(envs)
    assert pictures.draw_pictures({"visits": visits}, ARGS, 0).keys() == {"exploration/visits"}
    saved = {"visits": visits, "atlas": ClusterAtlas()}  # before the first rollout
    images = pictures.draw_pictures(saved, ARGS, 0)
    assert images.keys() == {"exploration/visits", "exploration/clusters"}
    assert all(image.dtype == np.uint8 and image.std() > 1 for image in images.values())


def test_other_worlds_can_be_drawn():
    visits = VisitCounts(MemoryCorridor(2))
    visits.add(np.array([[0.0, 0.0], [3.0, 0.0]]))
    args = argparse.Namespace(exp_name="x", env="memory", task="sparse")
    (image,) = pictures.draw_pictures({"visits": visits}, args, 2).values()
    assert image.std() > 1


def test_short_numbers():
    assert [pictures.short(number) for number in (0, 999, 1234, 45678)] == ["0", "999", "1.2k", "46k"]
