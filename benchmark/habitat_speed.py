"""How much of the simulator's speed a learner with one environment keeps, in a Habitat scene.

Usage: python benchmark/habitat_speed.py house.glb

Steps the simulator alone with random actions, trains `ppo_lstm_jci.py` with the random encoder, steps the simulator
alone again, and prints the steps per second of each and the ratio of the learner's to the faster of the other two.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from common.habitat import Habitat

NUM_STEPS = 2048


def simulator_speed(scene):
    envs, rng = Habitat(scene, None, 1, seed=1), np.random.default_rng(1)
    envs.reset()
    start = time.perf_counter()
    for _ in range(NUM_STEPS):
        envs.step(rng.integers(3, size=1))
    speed = NUM_STEPS / (time.perf_counter() - start)
    envs.close()
    return speed


def learner_speed(scene):
    """Median over the iterations, all of rollout, bonus and update included."""
    with tempfile.TemporaryDirectory() as folder:
        flags = ["--env", "habitat", "--scene", scene, "--total-timesteps", str(NUM_STEPS)]
        command = [sys.executable, str(ROOT / "ppo_lstm_jci.py"), *flags]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
        events = EventAccumulator(str(next(Path(folder, "runs").iterdir())))
        events.Reload()
        return np.median([event.value for event in events.Scalars("charts/SPS")])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scene", type=lambda path: str(Path(path).resolve()), help="a scene's file")
    scene = parser.parse_args().scene
    before, learner, after = simulator_speed(scene), learner_speed(scene), simulator_speed(scene)
    print(f"simulator alone {before:.0f} and {after:.0f} steps/s, learner {learner:.0f} steps/s")
    print(f"ratio {learner / max(before, after):.2f}")


if __name__ == "__main__":
    main()
