"""A scene in habitat-sim as a Gymnasium vector environment: walk through a house, without a task (Linux).

An agent of habitat-sim walks on the scene's navmesh: forward 0.25 m (along a wall it slides), left 10 degrees, right 10
degrees. It sees 64 x 64 pixels from a height of 0.88 m. There is no reward; after 500 steps an episode is truncated.
Every episode of a run starts at the same point with the same heading, and both depend on the seed alone.

Each simulator is a process of its own (habitat_worker.py): CUDA and the simulator's OpenGL never meet in a process, and
a simulator that crashes takes nothing with it. docs/habitat.md tells how to get habitat-sim and scenes.
"""

import atexit
import glob
import importlib.util
import multiprocessing
import os
import subprocess
import sys
import tempfile
import warnings

import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

APARTMENT_0 = os.path.join("apartment_0", "habitat", "mesh_semantic.ply")  # in the Replica download
RESET = -1  # what habitat_worker.py gets instead of an action 0, 1 or 2
START_SECONDS, HANG_SECONDS = 600, 60  # a worker that is silent for longer is lost


def refuse(sentence):
    """End the program as its flags do: with a sentence, and exit code 2."""
    print(sentence, file=sys.stderr)
    raise SystemExit(2)


def find_scene(scene, scenes_dir):
    """Return the path of the scene's file, or end the program with a sentence that says what to type."""
    if importlib.util.find_spec("habitat_sim") is None:
        refuse(
            "--env habitat needs habitat-sim, which is not installed here: type conda install habitat-sim headless "
            "-c conda-forge -c aihabitat, or see docs/habitat.md."
        )
    if scene is not None:
        if not os.path.isfile(scene):
            refuse(f"--scene {scene}: there is no such file; type the path of a scene, such as house.glb.")
        return os.path.abspath(scene)
    folder = scenes_dir or os.environ.get("HABITAT_SCENES_DIR") or os.path.join("data", "scene_datasets")
    found = glob.glob(os.path.join(glob.escape(folder), APARTMENT_0))
    found += sorted(glob.glob(os.path.join(glob.escape(folder), "[rR]eplica*", APARTMENT_0)))
    if not found:
        refuse(
            f"There is no {APARTMENT_0} in {folder}: type --scenes-dir with the folder of your Replica download, "
            "or --scene with the path of another scene; docs/habitat.md tells how to get Replica."
        )
    return os.path.abspath(found[0])


def to_cells(positions):
    """The cells (B, 2) of positions (B, 2) in metres: round(round(p, 2) * 20), so cell k is 5 cm wide around k / 20.

    The paper's code divides by 20 again; as a whole number a cell has no -0.0 that would differ from 0.0. Positions
    come in single precision; in double precision the same values are rounded without a further error.
    """
    return np.round(np.round(np.asarray(positions, np.float64), 2) * 20).astype(np.int64)


def cells_in_triangles(triangles):
    """Return, sorted, the (K, 2) cells whose centres lie in at least one of the triangles (M, 3, 2) of a floor."""
    cells = [np.empty((0, 2), np.int64)]
    for corners in np.asarray(triangles, np.float64) * 20:  # from now on the centres of cells are whole numbers
        low, high = np.ceil(corners.min(axis=0) - 1e-6), np.floor(corners.max(axis=0) + 1e-6)
        grid = np.meshgrid(*(np.arange(first, last + 1) for first, last in zip(low, high)), indexing="ij")
        points = np.stack(grid, axis=-1).reshape(-1, 2)
        # A point is inside if it is on the same side of all three edges: the signs of three cross products.
        edges, to_points = np.roll(corners, -1, axis=0) - corners, points[:, None] - corners
        sides = edges[:, 0] * to_points[:, :, 1] - edges[:, 1] * to_points[:, :, 0]
        inside = (sides >= -1e-6).all(axis=1) | (sides <= 1e-6).all(axis=1)
        cells.append(points[inside].astype(np.int64))
    return np.unique(np.concatenate(cells), axis=0)


class Habitat(VectorEnv):
    """Many simulators, each in a worker process. They start at the first reset.

    `infos["position"]` holds the (x, z) that belong to the returned observations, in metres; y is the height. An
    episode that ends starts anew within the same step, and the returned observation is the new episode's first. Where
    `infos["_final_obs"]` is True, `infos["final_obs"]` and `infos["final_info"]["position"]` tell how the old ended.

    A worker that dies, or does not answer for a minute, costs one episode (truncated, with the last frame seen).
    """

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP, "render_modes": []}

    def __init__(self, scene, scenes_dir, num_envs, seed, max_episode_steps=500):
        self.workers = []  # first, as find_scene may raise: gymnasium 1.1's __del__ closes what there is
        self.scene, self.seed, self.num_envs = find_scene(scene, scenes_dir), seed, num_envs
        self.max_episode_steps = max_episode_steps
        self.single_observation_space = Box(0, 255, (64, 64, 3), np.uint8)
        self.single_action_space = Discrete(3)  # forward, left, right
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.observations = np.zeros(self.observation_space.shape, np.uint8)
        self.positions = np.zeros((num_envs, 2), np.float32)
        self.episode_steps = np.zeros(num_envs, np.int64)
        # Where there is a GPU of NVIDIA it may still be closed to OpenGL, as in many containers: then without it.
        self.gpus = [0, -1] if glob.glob("/dev/nvidia[0-9]*") else [-1]

    def _start_worker(self):
        """Return a worker that has started, with what it told: its `first` frame and position, and the `floor`."""
        for gpu in self.gpus:
            worker = Worker(self.scene, self.seed, gpu)
            answer = worker.receive(START_SECONDS)
            if isinstance(answer, tuple):
                worker.first, worker.floor = answer
                self.gpus = [gpu]
                return worker
            reason = worker.last_words()
            worker.end()
            if isinstance(answer, str):  # a sentence that says why not
                raise SystemExit(answer)
            if gpu != self.gpus[-1]:
                message = f"habitat-sim does not start on the GPU ({reason}), so it is tried without."
                warnings.warn(message, RuntimeWarning, stacklevel=4)
        raise SystemExit(f"The simulator of {self.scene} does not start ({reason}): docs/habitat.md has advice.")

    def _start_workers(self):
        if not self.workers:
            atexit.register(self.close)
            for _ in range(self.num_envs):
                self.workers.append(self._start_worker())

    def _ask(self, commands):
        """Send {i: action or RESET} and look at the answers; return the set of i whose worker was lost and replaced."""
        sent = [i for i, command in commands.items() if self.workers[i].send(command)]
        lost = set(commands) - set(sent)
        for i in sent:
            answer = self.workers[i].receive(HANG_SECONDS)
            if answer is None:
                lost.add(i)
            else:
                self.observations[i], self.positions[i] = answer
        for i in sorted(lost):
            steps, reason = self.episode_steps[i], self.workers[i].last_words()
            message = f"The simulator of environment {i} died after {steps} steps of an episode and is started anew"
            warnings.warn(f"{message} ({reason}).", RuntimeWarning, stacklevel=3)
            self.workers[i].end()
            self.workers[i] = self._start_worker()
        return lost

    def _start_episodes(self, indices, lost):
        self.episode_steps[indices] = 0
        lost = lost | self._ask({i: RESET for i in indices if i not in lost})
        for i in lost:
            self.observations[i], self.positions[i] = self.workers[i].first

    def reset(self, *, seed=None, options=None):
        """Start new episodes. They all start at the same place, so there is nothing for `seed` to decide.

        With the option "stagger" these first episodes have evenly spread time limits, the first environment's being
        the usual one, so that the environments are at all stages of an episode at any time.
        """
        self._start_workers()
        self.observations, self.positions = np.empty_like(self.observations), np.empty_like(self.positions)
        self._start_episodes(np.arange(self.num_envs), set())
        if options and options.get("stagger"):
            self.episode_steps = np.arange(self.num_envs) * self.max_episode_steps // self.num_envs
        return self.observations, {"position": self.positions}

    def step(self, actions):
        """Take an action in every simulator."""
        # New arrays each time, so that the caller may keep what it got; a lost worker leaves what was last seen.
        self.observations, self.positions = self.observations.copy(), self.positions.copy()
        self.episode_steps += 1
        lost = self._ask({i: int(action) for i, action in enumerate(actions)})
        ended = self.episode_steps >= self.max_episode_steps
        ended[list(lost)] = True
        final_observations, final_positions = np.zeros_like(self.observations), np.zeros_like(self.positions)
        final_observations[ended], final_positions[ended] = self.observations[ended], self.positions[ended]
        if ended.any():
            self._start_episodes(np.flatnonzero(ended), lost)
        final_info = {"position": final_positions, "_position": ended}
        infos = {"position": self.positions, "final_obs": final_observations, "_final_obs": ended}
        infos.update({"final_info": final_info, "_final_info": ended})
        return self.observations, np.zeros(self.num_envs, np.float32), np.zeros_like(ended), ended.copy(), infos

    def cells(self, positions):
        """The grid cells (B, 2) of positions (B, 2)."""
        return to_cells(positions)

    def reachable_cells(self):
        """Return, sorted, the (K, 2) cells whose centres lie on the largest island of the navmesh, on any floor of it.

        The agent can also stand in a cell at the edge whose centre is no part of the island, so count only visited
        cells that are among these.
        """
        self._start_workers()
        return cells_in_triangles(self.workers[0].floor)

    def world(self):
        """What a map shows: the start, and no walls, as the navmesh has none; cell k is 5 cm wide around k / 20."""
        self._start_workers()
        places = {"starts": np.array([self.workers[0].first[1]], float), "goals": np.zeros((0, 2))}
        return {"unit": "m", "cell_size": 0.05, "corner": -0.025, "walls": np.zeros((0, 2, 2)), **places}

    def close_extras(self):
        """End the workers."""
        for worker in self.workers:
            worker.end()
        atexit.unregister(self.close)


class Worker:
    """This side of a worker process. The process ends when the connection does, so it cannot outlive this one."""

    def __init__(self, scene, seed, gpu):
        file = os.path.join(os.path.dirname(os.path.abspath(__file__)), "habitat_worker.py")
        defaults = {"MAGNUM_LOG": "quiet", "HABITAT_SIM_LOG": "quiet"}
        defaults["LP_NUM_THREADS"] = "0"  # Mesa's software renderer: 64 x 64 pixels are too few to share out
        self.connection, theirs = multiprocessing.Pipe()
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [sys.executable, file, str(theirs.fileno()), scene, str(seed), str(gpu)],
            env={**defaults, **os.environ},
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
            start_new_session=True,  # out of the reach of Ctrl-C: what happens then is for this process to decide
        )
        theirs.close()  # so that the connection ends when the worker does
        self.is_gone = False

    def send(self, command):
        """Tell whether it was sent."""
        try:
            self.connection.send(command)
        except OSError:
            self.is_gone = True
        return not self.is_gone

    def receive(self, seconds):
        """The worker's answer, or None if it is gone or silent."""
        try:
            return self.connection.recv() if self.connection.poll(seconds) else None
        except (OSError, EOFError):
            self.is_gone = True

    def last_words(self):
        """Why there is no answer."""
        if not self.is_gone:
            return "it did not answer"
        try:
            code = self.process.wait(10)
        except subprocess.TimeoutExpired:
            return "it closed its connection"
        self.log.seek(0)
        lines = [line.strip() for line in self.log.read().decode(errors="replace").splitlines()]
        said = [line for line in lines if line and not line.startswith("[")]  # "[": habitat-sim's ordinary log
        return (f"exit code {code}" if code >= 0 else f"signal {-code}") + (f": {said[-1]}" if said else "")

    def end(self):
        """End the process."""
        self.process.kill()
        self.process.wait()
        self.connection.close()
        self.log.close()
