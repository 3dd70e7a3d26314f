"""A corridor that cannot be solved without memory: a colour is shown at the entrance and asked for at the exit.

An episode is `length` steps. The first frame has one of four colours, the last is white, those between are grey. The
reward is 1 if the action taken at the white frame is the number of the colour, else 0. It needs no simulator and trains
in a minute, so it tests recurrent agents, and it is the first thing to run on a new machine.
"""

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode

COLOURS = np.array([[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 0]], dtype=np.uint8)


class MemoryCorridor(gym.vector.VectorEnv):
    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}

    def __init__(self, num_envs, length=4):
        self.num_envs = num_envs
        self.length = length
        self.single_observation_space = gym.spaces.Box(0, 255, (42, 42, 3), np.uint8)
        self.single_action_space = gym.spaces.Discrete(len(COLOURS))
        self.observation_space = gym.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, num_envs)
        self.rng = np.random.default_rng()

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.place = np.zeros(self.num_envs, dtype=int)
        self.colour = self.rng.integers(len(COLOURS), size=self.num_envs)
        return self._frames(), {"position": self._positions()}

    def step(self, actions):
        at_exit = self.place == self.length - 1
        rewards = (at_exit & (actions == self.colour)).astype(np.float32)
        infos = {"final_obs": self._frames(), "_final_obs": at_exit}
        infos["final_info"] = {"position": self._positions(), "_position": at_exit}
        self.place = np.where(at_exit, 0, self.place + 1)
        self.colour = np.where(at_exit, self.rng.integers(len(COLOURS), size=self.num_envs), self.colour)
        infos["position"] = self._positions()
        return self._frames(), rewards, at_exit, np.zeros(self.num_envs, dtype=bool), infos

    def cells(self, positions):
        return np.asarray(positions).astype(np.int64)

    def reachable_cells(self):
        return np.array([(place, 0) for place in range(self.length)])

    def world(self):
        """What a map shows: places k from k - 0.5 to k + 0.5, the entrance and the exit."""
        places = {"starts": np.array([[0.0, 0.0]]), "goals": np.array([[self.length - 1.0, 0.0]])}
        return {"unit": "places", "cell_size": 1.0, "corner": -0.5, "walls": np.zeros((0, 2, 2)), **places}

    def _positions(self):
        return np.stack([self.place, np.zeros_like(self.place)], axis=1).astype(np.float32)

    def _frames(self):
        frames = np.full((self.num_envs, 42, 42, 3), 128, dtype=np.uint8)
        frames[self.place == 0] = COLOURS[self.colour[self.place == 0], None, None]
        frames[self.place == self.length - 1] = 255
        return frames
