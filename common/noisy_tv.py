"""The noisy television: every frame of an environment gets a neighbour of the same size that nobody can predict."""

import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import VectorWrapper
from gymnasium.vector.utils import batch_space


class NoisyTV(VectorWrapper):
    """Appends uniform noise, drawn anew for every frame, to the right of each one: (H, W, 3) becomes (H, 2 W, 3)."""

    def __init__(self, envs):
        super().__init__(envs)
        height, width, channels = envs.single_observation_space.shape
        self.single_observation_space = Box(0, 255, (height, 2 * width, channels), np.uint8)
        self.observation_space = batch_space(self.single_observation_space, envs.num_envs)
        self.rng = np.random.default_rng()

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        frames, infos = self.env.reset(seed=seed, options=options)
        return self._append_noise(frames), infos

    def step(self, actions):
        frames, rewards, terminations, truncations, infos = self.env.step(actions)
        infos = {**infos, "final_obs": self._append_noise(infos["final_obs"])}
        return self._append_noise(frames), rewards, terminations, truncations, infos

    def cells(self, positions):
        return self.env.cells(positions)

    def reachable_cells(self):
        return self.env.reachable_cells()

    def world(self):
        return self.env.world()

    def _append_noise(self, frames):
        return np.concatenate([frames, self.rng.integers(256, size=frames.shape, dtype=np.uint8)], axis=2)
