"""Tests of the MyWayHome environment with real engines."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import vizdoom

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from common import my_way_home  # noqa: E402
from common.my_way_home import MyWayHome  # noqa: E402
from common.my_way_home_map import STOCK_SCRIPT, patch_start  # noqa: E402

NO_OP, RIGHT, LEFT, FORWARD = range(4)
ROUTES = {
    "sparse": [(464, -176), (688, -176), (688, 48), (1040, 48), (1040, -352)],
    "very-sparse": [(464, -672), (464, -176), (688, -176), (688, 48), (1040, 48), (1040, -352)],
}


@pytest.fixture
def make():
    """Make environments that are closed at the end of the test."""
    made = []

    def make_one(*args, **kwargs):
        made.append(MyWayHome(*args, **kwargs))
        return made[-1]

    yield make_one
    for envs in made:
        envs.close()


def games(envs):
    return [engine.game for engine in envs.engines]


def angles(envs):
    return np.array([game.get_game_variable(vizdoom.GameVariable.ANGLE) for game in games(envs)])


def engine_pids():
    """Return the process ids of the engines that this process started."""
    pids = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, fields = stat.read_text().split("(", 1)[1].rsplit(")", 1)
        except (FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            continue
        if name == "vizdoom" and int(fields.split()[1]) == os.getpid():
            pids.add(int(stat.parent.name))
    return pids


def touches_reachable_cell(positions, cells, size=16):
    """Tell for each position whether it is inside or exactly on the edge of one of the cells."""
    cells = {tuple(cell) for cell in cells}
    upper, lower = np.floor(positions / size).astype(int), np.ceil(positions / size).astype(int) - 1
    around = (upper, lower, np.stack([upper[:, 0], lower[:, 1]], 1), np.stack([lower[:, 0], upper[:, 1]], 1))
    return np.array([any(tuple(cell) in cells for cell in four) for four in zip(*around)])


def test_spaces_and_errors(make):
    envs = make("sparse", 2)
    observations, infos = envs.reset(seed=0)
    assert envs.single_observation_space.shape == (120, 160, 3)
    assert envs.single_action_space.n == 4
    assert envs.observation_space.contains(observations)
    assert infos["position"].shape == (2, 2)
    with pytest.raises(ValueError, match="dense, sparse, very-sparse"):
        MyWayHome("sparser", 1)


def test_patch_keeps_the_size_and_refuses_another_file():
    stock = Path(vizdoom.scenarios_path, "my_way_home.wad").read_bytes()
    assert patch_start(stock, "dense") == stock
    assert len(patch_start(stock, "sparse")) == len(patch_start(stock, "very-sparse")) == len(stock)
    for doctored in (stock.replace(STOCK_SCRIPT, bytes(44)), stock + STOCK_SCRIPT):
        with pytest.raises(RuntimeError, match="exactly once"):
            patch_start(doctored, "sparse")


def test_starts(make):
    starts = {}
    for task in ("dense", "sparse", "very-sparse"):
        envs = make(task, 3)
        resets = [(envs.reset(seed=seed)[1]["position"], angles(envs)) for seed in range(4)]
        starts[task] = np.concatenate([r[0] for r in resets]), np.concatenate([r[1] for r in resets])
        envs.close()
    assert len(np.unique(starts["dense"][0], axis=0)) >= 5
    assert np.ptp(starts["dense"][1]) > 90
    assert (starts["sparse"][0] == (240, -176)).all()
    assert ((starts["sparse"][1] >= 0) & (starts["sparse"][1] <= 3.6)).all()
    np.testing.assert_allclose(starts["very-sparse"][0], [(543.99, -672.09)] * 12, atol=0.01)
    assert ((starts["very-sparse"][1] >= 176.3) & (starts["very-sparse"][1] <= 183.7)).all()


def test_truncation_shows_the_true_last_frame(make):
    envs, longer = make("sparse", 2), make("sparse", 2, max_episode_steps=600)
    start = envs.reset(seed=1)[0]
    assert (longer.reset(seed=1)[0] == start).all()
    returns = np.zeros(2)
    for step in range(525):
        # Environment 1 turns, so that its last frame differs from the first; environment 0 does nothing.
        actions = [NO_OP, RIGHT if step > 500 else NO_OP]
        observations, rewards, terminations, truncations, infos = envs.step(actions)
        expected, *_, expected_infos = longer.step(actions)
        returns += rewards
        assert not terminations.any()
        assert truncations.all() == (step == 524) == truncations.any()
        assert (infos["_final_obs"] == truncations).all()
        assert not expected_infos["_final_obs"].any()
    np.testing.assert_allclose(returns, -0.21, atol=1e-5)
    assert (infos["final_obs"] == expected).all()
    assert (infos["final_obs"][1] != observations[1]).any()
    assert (infos["final_info"]["position"] == expected_infos["position"]).all()
    assert infos["final_info"]["_position"].all()
    for i, game in enumerate(games(envs)):  # the new episode has just begun
        assert game.get_episode_time() == game.get_episode_start_time()
        assert (game.get_state().screen_buffer == observations[i]).all()
    truncations = envs.step([NO_OP, NO_OP])[3]
    assert not truncations.any()


@pytest.mark.parametrize(("task", "expected_return"), [("sparse", 0.96), ("very-sparse", 0.95)])
def test_walk_to_the_armour(make, task, expected_return):
    envs, route = make(task, 4), np.array(ROUTES[task])
    observations, infos = envs.reset(seed=5)
    start, visited = infos["position"], [infos["position"]]
    leg, returns, ended = np.zeros(4, int), np.zeros(4), np.zeros(4, bool)
    while not ended.all():
        last = observations
        leg += (np.linalg.norm(route[leg] - infos["position"], axis=1) < 48) & (leg < len(route) - 1)
        wanted = np.degrees(np.arctan2(*(route[leg] - infos["position"]).T[::-1]))
        error = (wanted - angles(envs) + 180) % 360 - 180
        actions = np.where(np.abs(error) < 8, FORWARD, np.where(error > 0, LEFT, RIGHT))
        observations, rewards, terminations, truncations, infos = envs.step(actions)
        returns += rewards * ~ended
        ended |= terminations
        visited.append(infos["position"])
        assert not truncations.any()
        assert (infos["_final_obs"] == terminations).all()
        for i in np.flatnonzero(terminations):
            assert (infos["final_obs"][i] == last[i]).all()  # the last one seen
            radii = 16 + 20  # of the player and the armour
            assert np.abs(infos["final_info"]["position"][i] - (1040, -352)).max() < radii
            assert (infos["position"][i] == start[i]).all()
            leg[i] = 0
    assert abs(returns.max() - expected_return) < 0.012
    assert returns.min() > 0.9
    assert touches_reachable_cell(np.concatenate(visited), envs.reachable_cells()).all()


def test_seed_determines_all_frames(make):
    actions = np.random.default_rng(0).integers(0, 4, (60, 3))

    def play(num_threads, seed):
        envs = make("dense", 3, max_episode_steps=25, num_threads=num_threads)  # the second and third episode, too
        frames = [envs.reset(seed=seed)[0]] + [envs.step(row)[0] for row in actions]
        assert len({id(frame) for frame in frames}) == len({frame.ctypes.data for frame in frames}) == 61
        envs.close()
        return np.stack(frames)

    one, three, other = play(1, 7), play(3, 7), play(2, [7, 8, 8])
    assert (one == three).all()
    assert (one[:, 0] != one[:, 1]).any()
    assert (one[:, 1] != one[:, 2]).any()
    assert (one != other).any()
    assert (other[0, 1] == other[0, 2]).all()
    assert (other[0, 0] != other[0, 1]).any()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds the engines in /proc")
@pytest.mark.parametrize("fate", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_engine_costs_one_episode(make, monkeypatch, fate):
    monkeypatch.setattr(my_way_home, "HANG_SECONDS", 5)
    others = engine_pids()
    envs = make("sparse", 3)
    envs.reset(seed=3)
    ours = sorted(engine_pids() - others)
    assert len(ours) == 3
    for _ in range(5):
        last = envs.step([RIGHT] * 3)[0]
    os.kill(ours[1], fate)
    with pytest.warns(RuntimeWarning, match="environment . died after 6 steps"):
        observations, _, terminations, truncations, infos = envs.step([RIGHT] * 3)
    lost = np.flatnonzero(truncations)
    assert len(lost) == 1
    assert not terminations.any()
    assert (infos["final_obs"][lost] == last[lost]).all()
    assert (infos["position"][lost] == (240, -176)).all()
    assert sorted(envs.episode_steps) == [0, 6, 6]
    after, _, terminations, truncations, _ = envs.step([RIGHT] * 3)
    assert not (terminations | truncations).any()
    assert (after != observations).any(axis=(1, 2, 3)).all()
    assert len(engine_pids() - others) == 3


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc and /dev/shm")
@pytest.mark.parametrize("end", ["close", "exit", "exception", "interrupt", "kill"])
def test_nothing_is_left_behind(tmp_path, end):
    script = f"""
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored by what a shell has put into the background
sys.path.insert(0, {str(ROOT)!r})
from common.my_way_home import MyWayHome
envs = MyWayHome("sparse", 2)
envs.reset()
try:
    print(envs.directory, *[engine.instance for engine in envs.engines], flush=True)
    while {end!r} in ("interrupt", "kill"):
        envs.step([1, 3])
except KeyboardInterrupt:
    for _ in range(10):
        assert not envs.step([1, 3])[3].any(), "an engine died of Ctrl-C"
    print("went on", flush=True)
if {end!r} == "close":
    envs.close()
    envs.close()
elif {end!r} == "exception":
    raise RuntimeError("as expected")
"""
    work, temporary = tmp_path / "work", tmp_path / "temporary"
    work.mkdir()
    temporary.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=work,
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    directory, *instances = process.stdout.readline().split()
    assert Path(directory).parent == temporary
    assert len(instances) == 2
    try:
        time.sleep(0.3)
        if end == "interrupt":
            os.killpg(process.pid, signal.SIGINT)  # what a terminal does: it goes to the engines as well
        if end != "kill":
            process.wait(timeout=60)
    finally:
        process.kill()
    output, errors = process.communicate(timeout=60)  # the engines have its pipes, too, so this waits for their end
    assert process.returncode == {"exception": 1, "kill": -signal.SIGKILL}.get(end, 0), errors
    assert ("went on" in output) == (end == "interrupt")
    assert "died" not in errors
    assert list(work.iterdir()) == []
    assert list(temporary.iterdir()) == [] or end == "kill"
    assert not [name for name in os.listdir("/dev/shm") if any(instance in name for instance in instances)]


def test_reachable_cells(make):
    envs = make("dense", 8, max_episode_steps=60)
    cells = envs.reachable_cells()
    assert cells.dtype == np.int64
    assert (np.unique(cells, axis=0) == cells).all()
    assert len(cells) == 702
    assert envs.engines == []  # the map alone tells
    assert [1040 // 16, -352 // 16] in cells.tolist()
    assert [240 // 16, -176 // 16] in cells.tolist()
    generator = np.random.default_rng(4)
    positions, actions = [envs.reset(seed=4)[1]["position"]], np.zeros(8, int)
    for _ in range(500):  # long straight walks, mostly into walls
        actions = np.where(generator.random(8) < 0.2, generator.choice(4, 8, p=[0.02, 0.14, 0.14, 0.7]), actions)
        infos = envs.step(actions)[-1]
        positions += [infos["position"], infos["final_info"]["position"][infos["_final_obs"]]]
    positions = np.concatenate(positions)
    assert touches_reachable_cell(positions, cells).all()
    visited = {tuple(cell) for cell in np.floor(positions / 16).astype(int)}
    assert len(visited & {tuple(cell) for cell in cells}) > 150


def test_walls_start_and_goal_of_the_map(make):
    envs = make("sparse", 2)
    world = envs.world()
    assert world["goals"].tolist() == [[1040, -352]]
    assert world["starts"].tolist() == [[240, -176]]
    assert len(make("dense", 1).world()["starts"]) == 17
    for task in ("sparse", "very-sparse"):  # and that is where the engine puts the player
        envs = make(task, 1)
        position = envs.reset(seed=1)[1]["position"]
        np.testing.assert_allclose(position, envs.world()["starts"], atol=0.01)
    walls, cells = world["walls"], envs.reachable_cells()
    assert walls.shape == (76, 2, 2)
    for x, y in (cells + 0.5) * envs.cell_size:  # going east from a reachable place, one crosses an odd number of walls
        crossed = [(a[0] > x) and min(a[1], b[1]) <= y < max(a[1], b[1]) for a, b in walls.tolist() if a[0] == b[0]]
        assert sum(crossed) % 2 == 1


def test_larger_frames_are_of_the_same_game(make):
    small, large = make("sparse", 1), make("sparse", 1, scale=4)
    (frame,), infos = small.reset(seed=3)
    (large_frame,), large_infos = large.reset(seed=3)
    generator = np.random.default_rng(0)
    for _ in range(60):
        assert frame.shape == (120, 160, 3)
        assert large_frame.shape == (480, 640, 3)
        assert (infos["position"] == large_infos["position"]).all()
        reduced = large_frame.reshape(120, 4, 160, 4, 3).mean((1, 3))
        assert np.corrcoef(reduced.ravel(), frame.ravel())[0, 1] > 0.9
        actions = generator.choice(4, 1, p=[0.1, 0.2, 0.2, 0.5])
        (frame,), *_, infos = small.step(actions)
        (large_frame,), *_, large_infos = large.step(actions)
