"""Tests of the MyWayHome environment with real engines."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import vizdoom

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from common import my_way_home  # noqa: E402
from common.my_way_home import STOCK_SCRIPT, MyWayHome, patch_start  # noqa: E402

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


def angles(envs):
    return np.array([game.get_game_variable(vizdoom.GameVariable.ANGLE) for game in envs.games])


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
    assert envs.single_observation_space.shape == (120, 160, 3) and envs.single_action_space.n == 4
    assert envs.observation_space.contains(observations) and infos["position"].shape == (2, 2)
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
        envs = make(task, 4)
        resets = [(envs.reset(seed=seed)[1]["position"], angles(envs)) for seed in range(3)]
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
        assert not terminations.any() and truncations.all() == (step == 524) == truncations.any()
        assert (infos["_final_obs"] == truncations).all() and not expected_infos["_final_obs"].any()
    np.testing.assert_allclose(returns, -0.21, atol=1e-5)
    assert (infos["final_obs"] == expected).all() and (infos["final_obs"][1] != observations[1]).any()
    assert (infos["final_info"]["position"] == expected_infos["position"]).all()
    assert infos["final_info"]["_position"].all()
    for i, game in enumerate(envs.games):  # the new episode has just begun
        assert game.get_episode_time() == game.get_episode_start_time()
        assert (game.get_state().screen_buffer == observations[i]).all()
    truncations = envs.step([NO_OP, NO_OP])[3]
    assert not truncations.any()


@pytest.mark.parametrize("task, expected_return", [("sparse", 0.96), ("very-sparse", 0.95)])
def test_walk_to_the_armour(make, task, expected_return):
    envs = make(task, 1)
    observations, infos = envs.reset(seed=2)
    route, total, visited = list(ROUTES[task]), 0.0, []
    for _ in range(524):
        position, last = infos["position"][0], observations
        visited.append(position)
        if np.hypot(*(route[0] - position)) < 24 and len(route) > 1:
            route.pop(0)
        wanted = np.degrees(np.arctan2(*(route[0] - position)[::-1]))
        error = (wanted - angles(envs)[0] + 180) % 360 - 180
        action = FORWARD if abs(error) < 9 else LEFT if error > 0 else RIGHT
        observations, rewards, terminations, truncations, infos = envs.step([action])
        total += rewards[0]
        if terminations[0] or truncations[0]:
            break
    assert terminations[0] and not truncations[0]
    assert abs(total - expected_return) < 0.015
    assert (infos["final_obs"] == last).all() and infos["_final_obs"][0]
    assert (infos["final_info"]["position"][0] == visited[-1]).all()
    assert np.abs(visited[-1] - (1040, -352)).max() < 80
    assert touches_reachable_cell(np.array(visited), envs.reachable_cells()).all()


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
    assert (one[:, 0] != one[:, 1]).any() and (one[:, 1] != one[:, 2]).any()
    assert (one != other).any()
    assert (other[0, 1] == other[0, 2]).all() and (other[0, 0] != other[0, 1]).any()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds the engines in /proc")
@pytest.mark.parametrize("fate", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_engine_costs_one_episode(make, monkeypatch, fate):
    monkeypatch.setattr(my_way_home, "HANG_SECONDS", 2)
    others = engine_pids()
    envs = make("sparse", 3)
    ours = sorted(engine_pids() - others)
    assert len(ours) == 3
    envs.reset(seed=3)
    for _ in range(5):
        last = envs.step([RIGHT] * 3)[0]
    os.kill(ours[1], fate)
    with pytest.warns(RuntimeWarning, match="environment . died after 6 steps"):
        observations, _, terminations, truncations, infos = envs.step([RIGHT] * 3)
    lost = np.flatnonzero(truncations)
    assert len(lost) == 1 and not terminations.any()
    assert (infos["final_obs"][lost] == last[lost]).all() and (infos["position"][lost] == (240, -176)).all()
    assert sorted(envs.episode_steps) == [0, 6, 6]
    after, _, terminations, truncations, _ = envs.step([RIGHT] * 3)
    assert not (terminations | truncations).any() and (after != observations).any(axis=(1, 2, 3)).all()
    assert len(engine_pids() - others) == 3


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc and /dev/shm")
@pytest.mark.parametrize("end", ["close", "exit", "exception", "interrupt", "kill"])
def test_nothing_is_left_behind(tmp_path, end):
    script = f"""
import os, sys, tempfile
sys.path.insert(0, {str(ROOT)!r})
from common.my_way_home import MyWayHome
envs = MyWayHome("sparse", 2)
envs.reset()
print(envs.directory, *[game.get_instance_id() for game in envs.games], flush=True)
if {end!r} == "close":
    envs.close()
    envs.close()
elif {end!r} == "exception":
    raise RuntimeError("as expected")
elif {end!r} in ("interrupt", "kill"):
    try:
        while True:
            envs.step([1, 3])
    except KeyboardInterrupt:
        for _ in range(10):
            assert not envs.step([1, 3])[3].any(), "an engine died of Ctrl-C"
        print("went on", flush=True)
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
    assert Path(directory).parent == temporary and len(instances) == 2
    if end == "interrupt":
        os.killpg(process.pid, signal.SIGINT)  # what a terminal does: it goes to the engines as well
    if end == "kill":
        process.kill()
    output, errors = process.communicate(timeout=30)  # the engines hold its pipes: this waits for them, too
    assert process.returncode == {"exception": 1, "kill": -signal.SIGKILL}.get(end, 0), errors
    assert ("went on" in output) == (end == "interrupt") and "died" not in errors
    assert list(work.iterdir()) == [] and (list(temporary.iterdir()) == [] or end == "kill")
    assert not [name for name in os.listdir("/dev/shm") if any(instance in name for instance in instances)]


def test_reachable_cells(make):
    envs = make("dense", 8, max_episode_steps=60)
    cells = envs.reachable_cells()
    assert cells.dtype == np.int64 and (np.unique(cells, axis=0) == cells).all()
    assert len(cells) == 702
    assert [1040 // 16, -352 // 16] in cells.tolist() and [240 // 16, -176 // 16] in cells.tolist()
    generator = np.random.default_rng(4)
    positions, actions = [envs.reset(seed=4)[1]["position"]], np.zeros(8, int)
    for _ in range(900):  # long straight walks, mostly into walls
        actions = np.where(generator.random(8) < 0.2, generator.choice(4, 8, p=[0.02, 0.14, 0.14, 0.7]), actions)
        infos = envs.step(actions)[-1]
        positions += [infos["position"], infos["final_info"]["position"][infos["_final_obs"]]]
    positions = np.concatenate(positions)
    assert touches_reachable_cell(positions, cells).all()
    visited = {tuple(cell) for cell in np.floor(positions / 16).astype(int)}
    assert len(visited & {tuple(cell) for cell in cells}) > 300
