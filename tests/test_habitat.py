"""Habitat: first with a stand-in for habitat-sim (tests/fake), then with the real one where there is one and a scene.

HABITAT_TEST_SCENE=house.glb python -m pytest tests/test_habitat.py
"""

import ast
import importlib.util
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT, read_progress

from common import habitat
from common.habitat import Habitat, cells_in_triangles, find_scene, to_cells

FORWARD, LEFT, RIGHT = range(3)
FAKE = ROOT / "tests" / "fake"
SCENE = os.environ.get("HABITAT_TEST_SCENE")
SMALL = ["--env", "habitat", "--num-steps", 64, "--bptt-length", 16, "--minibatch-size", 32, "--total-timesteps", 128]

needs_habitat_sim = pytest.mark.skipif(
    importlib.util.find_spec("habitat_sim") is None or not SCENE,
    reason="needs habitat-sim and a scene: set HABITAT_TEST_SCENE to the path of one",
)
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")


@pytest.fixture
def make():
    """Make environments that are closed at the end of the test."""
    made = []

    def make_one(scene, num_envs=1, seed=1, **kwargs):
        made.append(Habitat(str(scene), None, num_envs, seed, **kwargs))
        return made[-1]

    yield make_one
    for envs in made:
        envs.close()


@pytest.fixture
def house(tmp_path, monkeypatch):
    """A scene for the stand-in, which this process and the workers find in place of habitat-sim."""
    monkeypatch.syspath_prepend(str(FAKE))
    monkeypatch.setenv("PYTHONPATH", str(FAKE))
    scene = tmp_path / "scenes" / "house.glb"
    scene.parent.mkdir()
    scene.touch()
    return scene


def is_running(pid):
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"


def wait_for(condition, seconds=60):
    end = time.time() + seconds
    while not condition() and time.time() < end:
        time.sleep(0.05)
    return condition()


# ---- the metric ----


def test_cells_are_those_of_the_papers_code():
    edges = [-0.0251, -0.0249, -0.024, -0.001, -0.0, 0.0, 0.001, 0.024, 0.0249, 0.0251, 0.03, 0.0751, 1.999, 9.04361]
    positions = np.array([(x, z) for x in edges for z in reversed(edges)])
    keys = np.round(np.round(positions, 2) * 20) / 20
    cells = to_cells(positions)
    assert cells.dtype == np.int64
    assert (cells / 20 == keys).all()
    assert len(set(map(tuple, cells.tolist()))) == 6**2
    assert len({f"{x}{z}" for x, z in keys}) == 7**2, "the trap: as text, -0.0 and 0.0 are two cells"
    assert to_cells([[-0.001, 0.001]]).tolist() == [[0, 0]]
    single = np.random.default_rng(0).uniform(-20, 20, (2000, 2)).astype(np.float32)
    expected = [[round(round(float(p), 2) * 20) for p in position] for position in single]
    assert to_cells(single).tolist() == expected
    assert np.abs(to_cells(single) / 20 - single).max() <= 0.0251, "a cell is 5 cm wide"


def test_reachable_cells_are_those_with_their_centre_on_the_floor():
    square = [[(0.01, 0.01), (0.99, 0.01), (0.99, 0.49)], [(0.01, 0.01), (0.99, 0.49), (0.01, 0.49)]]
    expected = [[x, z] for x in range(1, 20) for z in range(1, 10)]
    assert cells_in_triangles(square).tolist() == expected
    turned = np.array(square)[:, ::-1]  # the other sense of rotation
    assert cells_in_triangles(turned).tolist() == expected
    upstairs = np.concatenate([square, square, np.array(square) + [1, 0]])  # above each other, and beside
    assert cells_in_triangles(upstairs).tolist() == [[x, z] for x in range(1, 40) if x != 20 for z in range(1, 10)]
    assert cells_in_triangles([[(0.01, 0.01), (0.04, 0.01), (0.04, 0.04)]]).shape == (0, 2)
    on_corners = [[(-0.1, -0.1), (0.1, -0.1), (-0.1, 0.1)]]
    assert cells_in_triangles(on_corners).tolist() == [[x, z] for x in range(-2, 3) for z in range(-2, 1 - x)]


# ---- what is refused ----


def test_missing_habitat_sim_says_what_to_type(train, tmp_path, monkeypatch):
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "sitecustomize.py").write_text("import sys\nsys.modules['habitat_sim'] = None\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "path"))
    process = train("ppo_lstm.py", "--env", "habitat", check=False)
    assert process.returncode == 2
    assert process.stderr.count("\n") == 1
    assert "conda install habitat-sim headless -c conda-forge -c aihabitat" in process.stderr
    assert os.listdir(tmp_path) == ["path"]


@pytest.mark.parametrize(
    ("scene", "scenes_dir", "fault", "message"),
    [
        ("castle.glb", None, "", "--scene castle.glb: there is no such file"),
        (None, "elsewhere", "", "There is no apartment_0/habitat/mesh_semantic.ply in elsewhere: type"),
        (None, None, "", "mesh_semantic.ply in data/scene_datasets: type --scenes-dir"),
        ("scenes/house.glb", None, "no floor", "there is no floor in it"),
        ("scenes/house.glb", None, "crash", "does not start (signal 6: unable to find CUDA device 0)"),
        ("scenes/house.glb", None, "exception", "(exit code 1: RuntimeError: cannot read the file)"),
    ],
)
def test_what_cannot_work_ends_in_one_sentence(scene, scenes_dir, fault, message, house, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FAKE_HABITAT", fault)
    monkeypatch.delenv("HABITAT_SCENES_DIR", raising=False)
    with pytest.raises(SystemExit) as refusal:
        Habitat(scene, scenes_dir, 1, 1).reset()
    # a flag that is refused has told why, and a simulator that does not start will
    sentence = capsys.readouterr().err.strip() if refusal.value.code == 2 else str(refusal.value)
    assert message in sentence
    assert "\n" not in sentence


def test_a_scene_without_a_floor_is_refused_and_nothing_left_beside_it(train, house, tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_HABITAT", "no floor")
    process = train("ppo_lstm.py", *SMALL, "--scene", "scenes/house.glb", check=False)
    assert process.returncode == 1
    folder, sentence = process.stderr.splitlines()  # the run's folder is made before simulators start
    assert "there is no floor in it" in sentence
    assert not list((tmp_path / folder.split()[0]).glob("*.pt"))
    assert list((tmp_path / "scenes").iterdir()) == [house]


def test_apartment_0_is_found_in_the_download(house, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("data/scene_datasets/replica_v1", "here"):
        file = tmp_path / folder / "apartment_0" / "habitat" / "mesh_semantic.ply"
        file.parent.mkdir(parents=True)
        file.touch()
    default = str(tmp_path / "data/scene_datasets/replica_v1/apartment_0/habitat/mesh_semantic.ply")
    here = str(tmp_path / "here/apartment_0/habitat/mesh_semantic.ply")
    monkeypatch.delenv("HABITAT_SCENES_DIR", raising=False)
    assert find_scene(None, None) == default
    assert find_scene(None, "here") == here
    monkeypatch.setenv("HABITAT_SCENES_DIR", "here")
    assert find_scene(None, None) == here
    assert find_scene(None, "data/scene_datasets") == default
    assert find_scene("scenes/house.glb", None) == str(house)


# ---- the workers, with the stand-in ----


def test_an_episode_has_500_steps_and_shows_its_true_last_frame(make, house):
    envs = make(house, num_envs=2)
    first, infos = envs.reset(seed=5)
    start = infos["position"]
    assert envs.observation_space.contains(first)
    assert (start[0] == start[1]).all()
    assert (first[0] == first[1]).all()
    assert envs.single_action_space.n == 3
    kept = []
    for step in range(1, 501):
        actions = [FORWARD if step in (1, 500) else LEFT, RIGHT]
        observations, rewards, terminations, truncations, infos = envs.step(np.array(actions))
        kept.append(observations)
        assert not terminations.any()
        assert not rewards.any()
        assert truncations.all() == truncations.any() == (step == 500)
        assert (infos["_final_obs"] == truncations).all()
        if step < 500:
            assert (observations[:, 5, 5, 2] == step % 256).all()
        if step == 1:
            moved = infos["position"][0] - start[0]
            np.testing.assert_allclose(np.linalg.norm(moved), 0.25, atol=1e-6)
    assert (infos["final_obs"][:, 5, 5, 2] == 500 % 256).all()
    assert (observations == first).all()
    assert (infos["position"] == start).all()
    final = infos["final_info"]["position"]
    assert (final[1] == start[1]).all()
    assert np.linalg.norm(final[0] - start[0]) > 0.2
    np.testing.assert_allclose(infos["final_obs"][:, 5, 5, :2], (final + 1) * 50, atol=1)
    assert len({frames.ctypes.data for frames in kept}) == 500, "the caller may keep what it got"
    assert not envs.step([LEFT, LEFT])[3].any()


def test_the_start_depends_on_the_seed_alone(make, house):
    starts = {}
    for seed in (0, 1, 2):
        envs = make(house, seed=seed)
        again = make(house, seed=seed)
        starts[seed] = envs.reset(seed=7)[1]["position"]
        assert (again.reset(seed=8)[1]["position"] == starts[seed]).all()
        ahead, ahead_again = (e.step([FORWARD])[4]["position"] for e in (envs, again))
        assert (ahead == ahead_again).all()
        assert (envs.reset()[1]["position"] == starts[seed]).all()
    assert len({tuple(start[0]) for start in starts.values()}) == 3


def test_reachable_cells_come_from_the_largest_island(make, house):
    cells = make(house).reachable_cells()
    assert cells.tolist() == [[x, z] for x in range(-20, 61) for z in range(-20, 61)]


@pytest.mark.parametrize("neighbour", [None, "house.stage_config.json", "house.navmesh"])
def test_a_bare_glb_is_turned_upright(make, house, neighbour):
    if neighbour:
        house.with_name(neighbour).touch()
    frames = make(house).reset()[0]
    assert (frames[0, 0, 0] == 255).all() == (neighbour is None)


def test_without_a_usable_gpu_it_goes_on_without(make, house, monkeypatch):
    monkeypatch.setenv("FAKE_HABITAT", "no gpu")
    envs = make(house, num_envs=2)
    envs.gpus = [0, -1]
    with pytest.warns(RuntimeWarning, match="unable to find CUDA device 0") as caught:
        envs.reset()
    assert len(caught) == 1
    assert envs.gpus == [-1]


@linux
@pytest.mark.parametrize("fate", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("steps", [3, 9])  # the tenth step is the last one anyway
def test_a_lost_worker_costs_one_episode(make, house, monkeypatch, fate, steps):
    monkeypatch.setattr(habitat, "HANG_SECONDS", 2)
    envs = make(house, num_envs=3, max_episode_steps=10)
    first = envs.reset()[0]
    for _ in range(steps):
        last, *_, infos = envs.step([FORWARD] * 3)
    last_position = infos["position"]
    pids = [worker.process.pid for worker in envs.workers]
    os.kill(pids[1], fate)
    reason = "signal 9" if fate == signal.SIGKILL else "did not answer"
    with pytest.warns(RuntimeWarning, match=f"environment 1 died after {steps + 1} steps .*{reason}"):
        observations, _, terminations, truncations, infos = envs.step([LEFT] * 3)
    assert not terminations.any()
    assert truncations.tolist() == ([False, True, False] if steps == 3 else [True] * 3)
    assert (infos["final_obs"][1] == last[1]).all()
    assert (infos["final_info"]["position"][1] == last_position[1]).all()
    assert (observations[1] == first[1]).all()
    assert envs.episode_steps.tolist() == ([4, 0, 4] if steps == 3 else [0] * 3)
    assert not is_running(pids[1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (envs.step([LEFT] * 3)[0][:, 5, 5, 2] == ([5, 1, 5] if steps == 3 else [1] * 3)).all()


@linux
def test_a_worker_lost_between_episodes_is_replaced(make, house):
    envs = make(house, num_envs=2)
    first = envs.reset()[0]
    envs.step([LEFT] * 2)
    os.kill(envs.workers[0].process.pid, signal.SIGKILL)
    with pytest.warns(RuntimeWarning, match="environment 0 died"):
        assert (envs.reset()[0] == first).all()


@linux
def test_a_worker_that_cannot_come_back_ends_in_one_sentence(make, house, monkeypatch):
    envs = make(house)
    envs.reset()
    monkeypatch.setenv("FAKE_HABITAT", "crash")
    os.kill(envs.workers[0].process.pid, signal.SIGKILL)
    with pytest.warns(RuntimeWarning), pytest.raises(SystemExit, match="does not start .signal 6"):
        envs.step([LEFT])


@linux
def test_a_simulator_that_never_starts_is_given_up(make, house, monkeypatch):
    monkeypatch.setattr(habitat, "START_SECONDS", 0.01)
    with pytest.raises(SystemExit, match="does not start .it did not answer"):
        make(house).reset()


@linux
@pytest.mark.parametrize("end", ["close", "exit", "exception", "interrupt", "terminate", "kill"])
def test_no_process_is_left_behind(house, tmp_path, end):
    script = f"""
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored by what a shell has put into the background
sys.path.insert(0, {str(ROOT)!r})
from common.habitat import Habitat
envs = Habitat({str(house)!r}, None, 2, 1)
envs.reset()
try:
    print(*[worker.process.pid for worker in envs.workers], flush=True)
    while {end!r} in ("interrupt", "terminate", "kill"):
        envs.step([1, 0])
except KeyboardInterrupt:
    assert not [w for w in envs.workers if w.process.poll() is not None], "a worker died of Ctrl-C"
if {end!r} == "close":
    envs.close()
    envs.close()
    assert not [w for w in envs.workers if w.process.poll() is None]
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
    try:
        pids = [int(pid) for pid in process.stdout.readline().split()]
        assert len(pids) == 2
        time.sleep(0.3)
        if end == "interrupt":
            os.killpg(process.pid, signal.SIGINT)  # what a terminal does
        elif end == "terminate":
            for pid in (*pids, process.pid):  # what a cluster does: all at once
                os.kill(pid, signal.SIGTERM)
        elif end == "kill":
            process.kill()
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    codes = {"exception": 1, "kill": -signal.SIGKILL, "terminate": -signal.SIGTERM}
    assert process.returncode == codes.get(end, 0), errors
    assert wait_for(lambda: not any(map(is_running, pids)))
    assert list(work.iterdir()) == list(temporary.iterdir()) == []


def check_run_and_resume(train, scene, tmp_path):
    flags = [*SMALL, "--scene", scene, "--num-clusters", 8]
    before = sorted(Path(scene).parent.iterdir())
    process = train("ppo_lstm_jci.py", *flags, check=False)
    assert process.returncode == 0, process.stderr[-3000:]
    (run,) = (tmp_path / "runs").iterdir()
    rows = read_progress(run)
    assert [row["global_step"] for row in rows] == [64, 128]
    process = train("ppo_lstm_jci.py", "--resume", run, "--total-timesteps", 256, check=False)
    assert process.returncode == 0, process.stderr[-3000:]
    rows = read_progress(run)
    assert [row["global_step"] for row in rows] == [64, 128, 192, 256]
    coverage = [row["exploration/coverage"] for row in rows]
    assert coverage == sorted(coverage)
    assert 0 < coverage[0] < coverage[-1] < 0.1
    assert rows[-1]["exploration/unique_cells"] > rows[0]["exploration/unique_cells"]
    assert (run / "visits.png").exists()
    assert sorted(Path(scene).parent.iterdir()) == before, "nothing is written beside the scene"
    return run


def test_a_whole_run_and_its_resumption(train, house, tmp_path):
    check_run_and_resume(train, house, tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["runs", "scenes"]


# ---- habitat-sim's conda packages are for Python 3.9 ----


@pytest.mark.parametrize("path", sorted([*ROOT.glob("*.py"), *ROOT.glob("common/*.py")]), ids=lambda path: path.name)
def test_python_3_9_can_read_it(path):
    ast.parse(path.read_text(), feature_version=(3, 9))


def test_the_environment_file_installs_what_the_scripts_need():
    def packages(name):
        lines = (ROOT / name).read_text().splitlines()
        return {line.split("==")[0] for line in lines if "==" in line}

    assert packages("requirements.txt") <= packages("requirements-habitat.txt")
    assert "- -r requirements-habitat.txt" in (ROOT / "environment.yml").read_text()


# ---- habitat-sim itself ----


@needs_habitat_sim
def test_real_start_steps_and_coverage(make):
    envs, other = make(SCENE, num_envs=2, seed=3), make(SCENE, seed=4)
    first, infos = envs.reset(seed=1)
    start = infos["position"]
    assert envs.observation_space.contains(first)
    assert (first[0] == first[1]).all()
    assert (start[0] == start[1]).all()
    assert np.ptp(first) > 20, "something is to be seen"
    assert (other.reset()[1]["position"] != start).any()
    for _ in range(36):
        observations, *_, infos = envs.step([LEFT, RIGHT])
    assert np.abs(observations.astype(int) - first).mean() < 3, "36 turns of 10 degrees lead back"
    assert (infos["position"] == start).all()

    reachable = {tuple(cell) for cell in envs.reachable_cells().tolist()}
    generator, visited, distances, coverage = np.random.default_rng(0), set(), [], []
    before, turned = infos["position"], []
    for step in range(37, 501):
        actions = generator.choice(3, 2, p=[0.6, 0.2, 0.2])
        observations, rewards, terminations, truncations, infos = envs.step(actions)
        assert truncations.tolist() == [step == 500] * 2
        after = np.where(truncations[:, None], infos["final_info"]["position"], infos["position"])
        distances += np.linalg.norm(after - before, axis=1)[actions == FORWARD].tolist()
        turned.append(np.abs(after - before)[actions != FORWARD].max(initial=0))
        visited |= set(map(tuple, envs.cells(after).tolist()))
        coverage.append(len(visited & reachable) / len(reachable))
        before = after
    assert (observations == first).all()
    assert (infos["position"] == start).all()
    assert (infos["final_obs"] != first).any()
    assert np.isclose(distances, 0.25, atol=0.001).sum() >= 10, "0.25 m, where the way is free and flat"
    assert max(distances) < 0.3, "at a wall it is pushed a little"
    assert max(turned) < 0.001, "a turn moves the agent by rounding errors only"
    assert coverage[-1] > coverage[100] > coverage[0]
    assert len(visited & reachable) > 0.5 * len(visited), "the others are cells at the edge, along which it slides"


@needs_habitat_sim
@linux
def test_real_worker_is_replaced_after_kill_9(make):
    envs = make(SCENE, num_envs=2)
    first = envs.reset()[0]
    last = envs.step([LEFT] * 2)[0]
    os.kill(envs.workers[1].process.pid, signal.SIGKILL)
    with pytest.warns(RuntimeWarning, match="environment 1 died after 2 steps"):
        observations, _, _, truncations, infos = envs.step([LEFT] * 2)
    assert truncations.tolist() == [False, True]
    assert (infos["final_obs"][1] == last[1]).all()
    assert (observations[1] == first[1]).all()
    assert not envs.step([LEFT] * 2)[3].any()


@needs_habitat_sim
def test_real_reachable_cells_agree_with_the_pathfinder(tmp_path):
    script = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np
from common.habitat import cells_in_triangles
from common.habitat_worker import largest_island, make_simulator
pathfinder = make_simulator(sys.argv[2], -1).pathfinder
island, floor = largest_island(pathfinder)
heights = np.unique(np.round([vertex[1] for vertex in pathfinder.build_navmesh_vertices(island)], 1))
cells = cells_in_triangles(floor)
anywhere = np.random.default_rng(0).integers(cells.min(axis=0) - 10, cells.max(axis=0) + 11, (3000, 2))
def on_island(x, z):
    points = [np.array([x, y, z], np.float32) for y in heights]
    return any(pathfinder.is_navigable(p, 0.2) and pathfinder.get_island(p) == island for p in points)
expected = np.array([on_island(x / 20, z / 20) for x, z in anywhere])
cells = set(map(tuple, cells.tolist()))
found = np.array([tuple(cell) in cells for cell in anywhere.tolist()])
print((found == expected).mean(), found.mean(), len(cells) * 0.05**2 / pathfinder.island_area(island))
"""
    command = [sys.executable, "-c", script, str(ROOT), os.path.abspath(SCENE)]
    process = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert process.returncode == 0, process.stderr[-3000:]
    agreement, share, area = map(float, process.stdout.split()[-3:])
    assert agreement > 0.97, "they may differ at the edges, where the pathfinder allows a centimetre"
    assert 0.05 < share < 0.95
    assert 0.9 < area < 1.1


@needs_habitat_sim
def test_real_whole_run_and_its_resumption(train, tmp_path):
    check_run_and_resume(train, SCENE, tmp_path)
    assert os.listdir(tmp_path) == ["runs"]
