"""Videos of whole episodes, as mp4 files."""

import sys
from pathlib import Path

import numpy as np


class EpisodeVideos:
    """Collects the frames of one environment and writes episodes 1, 8, 27, ..., 1000, and then every 1000th.

    In a resumed run the numbers go on after those of the videos that are there already.
    """

    def __init__(self, folder, first_frame):
        import imageio.v2  # asked for here, so that a missing package is noticed before the training starts

        self.imageio = imageio.v2
        self.folder = Path(folder)
        self.frames = [first_frame.copy()]  # a view would keep the frames of all environments
        self.episode = 1 + max((int(path.stem.split("_")[1]) for path in self.folder.glob("episode_*.mp4")), default=0)

    def add(self, frame, ended, infos):
        """frame: (H, W, 3), what the step returned; if the episode has `ended` it belongs to the next one already."""
        if ended:
            self.frames.append(infos["final_obs"][0])
            if round(self.episode ** (1 / 3)) ** 3 == self.episode if self.episode < 1000 else self.episode % 1000 == 0:
                path = self.folder / f"episode_{self.episode:06d}.mp4"
                frames = [np.kron(f, np.ones((3, 3, 1), np.uint8)) for f in self.frames]  # three times as large
                try:
                    self.folder.mkdir(exist_ok=True)
                    self.imageio.mimsave(path, frames, fps=9, macro_block_size=1)  # 35 tics a second, 4 tics a step
                except OSError as error:  # a full disk must not end a run of hours
                    path.unlink(missing_ok=True)
                    reason = str(error).splitlines()[0]
                    print(f"\n{path} cannot be written ({reason}): training goes on without.", file=sys.stderr)
            self.frames = []
            self.episode += 1
        self.frames.append(frame.copy())
