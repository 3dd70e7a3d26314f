"""ViZDoom's MyWayHome as a Gymnasium vector environment: find the green armour in a maze of rooms (Linux and macOS).

The three tasks share one map and one goal, the armour at (1040, -352); only the player's start differs:

- dense: one of 17 spots all over the map, any angle (the scenario as ViZDoom ships it);
- sparse: always (240, -176), the room in the west, at an angle of 0 to 3.6 degrees (0 is east);
- very-sparse: always (543.99, -672.09), a nook in the south and farthest from the goal, at 176 to 184 degrees.

The last two are those of Pathak et al. (2017).

The reward is -0.0001 per tic, four tics per step, and +1 for the armour, which ends the episode one tic later (so the
termination can come a step after the +1). After `max_episode_steps` steps an episode is truncated.
"""

import atexit
import os
import shutil
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor, wait

import numpy as np
import vizdoom
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from common.doom_engine import DoomEngine, check_machine
from common.engine_folder import make_engine_folder
from common.my_way_home_map import landmarks, patch_start, reachable_points

ACTIONS = [[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]]  # no-op, turn right, turn left, move forward
BUTTONS = [vizdoom.Button.TURN_RIGHT, vizdoom.Button.TURN_LEFT, vizdoom.Button.MOVE_FORWARD]
POSITION = [vizdoom.GameVariable.POSITION_X, vizdoom.GameVariable.POSITION_Y]
ENGINE_DIED = (
    vizdoom.ViZDoomErrorException,
    vizdoom.ViZDoomIsNotRunningException,
    vizdoom.ViZDoomUnexpectedExitException,
)
HANG_SECONDS = 10  # an engine that is silent for longer is lost


class MyWayHome(VectorEnv):
    """Many games, stepped by threads of this process. The engines, processes of their own, start at the first reset.

    `infos["position"]` holds the map coordinates that belong to the returned observations. An episode that ends starts
    anew within the same step, and the returned observation is the new episode's first. Where `infos["_final_obs"]` is
    True, `infos["final_obs"]` and `infos["final_info"]["position"]` tell how the old one ended: with its true last
    frame if it was truncated; at the goal the engine shows no frame any more, so it is the last one that was seen.

    An engine that dies, or does not answer for ten seconds, costs one episode (truncated, with the last frame seen).
    With a `scale` of 2, 4 or 5 the same games are rendered larger, for videos.
    """

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP, "render_modes": []}
    cell_size = 16  # map units

    def __init__(self, task, num_envs, frame_skip=4, max_episode_steps=525, num_threads=None, scale=1):
        self.task, self.num_envs, self.scale = task, num_envs, scale
        self.frame_skip, self.max_episode_steps = frame_skip, max_episode_steps
        self.single_observation_space = Box(0, 255, (120 * scale, 160 * scale, 3), np.uint8)
        self.single_action_space = Discrete(len(ACTIONS))
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.observations = np.zeros(self.observation_space.shape, np.uint8)
        self.positions = np.zeros((num_envs, 2), np.float32)
        self.episode_steps = np.zeros(num_envs, np.int64)
        # A thread mostly waits for its engine, so it takes more threads than cores to keep the cores busy.
        self.pool = ThreadPoolExecutor(num_threads or min(num_envs, 2 * (os.cpu_count() or 1)))
        self.calls = []
        self.locks = [threading.Lock() for _ in range(num_envs)]
        self.engines = []
        self.restart_seeds = np.random.default_rng()
        self.dead = set()
        self.directory = None
        # Last, as it may raise: gymnasium 1.1's __del__ closes what there is.
        with open(os.path.join(vizdoom.scenarios_path, "my_way_home.wad"), "rb") as file:
            self.wad = patch_start(file.read(), task)

    def _start_engines(self):
        atexit.register(self.close)
        try:
            self.directory, self.owner = make_engine_folder()
            with open(os.path.join(self.directory, "start.wad"), "wb") as file:
                file.write(self.wad)
        except OSError as error:
            raise SystemExit(f"ViZDoom's engines need a folder for temporary files ({error}): set TMPDIR.") from error
        check_machine(self.directory, self.num_envs)
        for _ in range(self.num_envs):
            self.engines.append(DoomEngine(self.directory, self._make_game))
            self.engines[-1].start()

    def _make_game(self):
        game = vizdoom.DoomGame()
        game.load_config(os.path.join(vizdoom.scenarios_path, "my_way_home.cfg"))
        # else one in the working directory goes first
        game.set_doom_game_path(os.path.join(os.path.dirname(vizdoom.__file__), "freedoom2.wad"))
        game.set_doom_scenario_path(os.path.join(self.directory, "start.wad"))
        game.set_available_buttons(BUTTONS)
        game.set_available_game_variables(POSITION)
        game.set_screen_resolution(getattr(vizdoom.ScreenResolution, f"RES_{160 * self.scale}X{120 * self.scale}"))
        game.set_screen_format(vizdoom.ScreenFormat.RGB24)
        game.set_window_visible(False)
        game.set_sound_enabled(False)
        game.set_episode_timeout(0)  # there is no last frame after a time-out of the engine, so the limit is kept here
        game.set_seed(int(self.restart_seeds.integers(2**32)))
        return game

    def _locked(self, function, i, *args):
        with self.locks[i]:  # a step that was cut short by Ctrl-C may still be under way
            return function(i, *args)

    def _in_threads(self, function, *columns):
        rows = zip(range(self.num_envs), *columns)
        self.calls = [self.pool.submit(self._locked, function, *row) for row in rows]
        try:
            self._finish(self.calls)
        except KeyboardInterrupt:  # an engine that hangs would keep this process from ending, so the watch goes on
            threading.Thread(target=self._finish, args=(self.calls,), daemon=True).start()
            raise
        results = [call.result() for call in self.calls]
        for i in sorted(self.dead):
            steps = self.episode_steps[i]
            message = f"The engine of environment {i} died after {steps} steps of an episode and is started anew."
            warnings.warn(message, RuntimeWarning, stacklevel=3)
            self.engines[i].close()
            self.engines[i].start()
            self._look(i)
            self.episode_steps[i] = 0
            self.dead.remove(i)
        return results

    def _finish(self, calls):
        for _ in range(3):
            if not wait(calls, HANG_SECONDS).not_done:
                return
            for i, call in enumerate(calls):
                if call.running():  # vizdoom would wait for ever, but when its engine is gone the call returns
                    self.engines[i].kill()
        raise RuntimeError(f"ViZDoom hangs, although engines that were silent for {HANG_SECONDS} seconds were killed.")

    def _look(self, i):
        state = self.engines[i].game.get_state()
        self.observations[i], self.positions[i] = state.screen_buffer, state.game_variables

    def _start_episode(self, i):
        try:
            self.engines[i].game.new_episode()
            self._look(i)
            self.episode_steps[i] = 0
        except ENGINE_DIED:
            self.dead.add(i)

    def reset(self, *, seed=None, options=None):
        """Start new episodes; a seed, or a list of one per environment, determines these and all that follow.

        With the option "stagger" these first episodes have evenly spread time limits, the first environment's being
        the usual one, so that the environments are at all stages of an episode at any time.
        """
        if not self.engines:
            self._start_engines()
        if seed is not None:
            children = np.random.SeedSequence(seed).spawn(self.num_envs)  # neighbouring seeds give unrelated games
            if np.ndim(seed) > 0:
                children = [np.random.SeedSequence(seed[i]) for i in range(self.num_envs)]
            for engine, child in zip(self.engines, children):
                engine.game.set_seed(int(child.generate_state(1)[0]))
            self.restart_seeds = np.random.default_rng(seed)
        self.observations, self.positions = np.empty_like(self.observations), np.empty_like(self.positions)
        self._in_threads(self._start_episode)
        if options and options.get("stagger"):
            self.episode_steps = np.arange(self.num_envs) * self.max_episode_steps // self.num_envs
        return self.observations, {"position": self.positions}

    def _advance(self, i, action):
        died = False
        try:
            # Returns are sums of this: get_last_reward() lacks the goal's +1.
            game = self.engines[i].game
            reward = game.make_action(ACTIONS[action], self.frame_skip)
            terminated = game.is_episode_finished()
            if terminated:  # there is no state any more, but the variables are still there
                self.observations[i] = self.last_observations[i]
                self.positions[i] = [game.get_game_variable(variable) for variable in POSITION]
            else:
                self._look(i)
        except ENGINE_DIED:
            reward, terminated, died = 0.0, False, True
            self.observations[i], self.positions[i] = self.last_observations[i], self.last_positions[i]
        self.episode_steps[i] += 1
        truncated = not terminated and (died or self.episode_steps[i] >= self.max_episode_steps)
        final = None
        if terminated or truncated:
            final = self.observations[i].copy(), self.positions[i].copy()
            self._start_episode(i)
        return reward, terminated, truncated, final

    def step(self, actions):
        """Take an action in every game."""
        # New arrays each time, so that the caller may keep what it got.
        self.last_observations, self.observations = self.observations, np.empty_like(self.observations)
        self.last_positions, self.positions = self.positions, np.empty_like(self.positions)
        rewards, terminations, truncations, finals = zip(*self._in_threads(self._advance, actions))
        ended = np.array([final is not None for final in finals])
        final_observations, final_positions = np.zeros_like(self.observations), np.zeros_like(self.positions)
        for i in np.flatnonzero(ended):
            final_observations[i], final_positions[i] = finals[i]
        final_info = {"position": final_positions, "_position": ended}
        infos = {"position": self.positions, "final_obs": final_observations, "_final_obs": ended}
        infos.update({"final_info": final_info, "_final_info": ended})
        return self.observations, np.array(rewards, np.float32), np.array(terminations), np.array(truncations), infos

    def cells(self, positions):
        """The grid cells (B, 2) of positions (B, 2)."""
        return np.floor(np.asarray(positions) / self.cell_size).astype(np.int64)

    def reachable_cells(self):
        """Return, sorted, the (K, 2) grid cells that the player's centre can enter.

        When the player touches a wall, its centre can lie exactly on the edge of a cell that it cannot enter, so count
        only visited cells that are among these. The cells around the armour are among them, but most are never
        observed: an episode is over as soon as the player's edge touches the armour.
        """
        return np.unique(self.cells(reachable_points(self.wad)), axis=0)

    def world(self):
        """What a map shows: walls (W, 2, 2) from end to end, starts and goals; cell k begins at k * cell_size."""
        return {
            "unit": "map units",
            "cell_size": float(self.cell_size),
            "corner": 0.0,
            **landmarks(self.wad, self.task),
        }

    def close_extras(self):
        """End the engines, even ones that hang, and remove their files."""
        for engine in self.engines:
            engine.kill()  # a step that is under way returns
        self._finish(self.calls)
        self.pool.shutdown()
        for engine in self.engines:
            engine.close()
        if self.directory:
            shutil.rmtree(self.directory)
        atexit.unregister(self.close)
