"""How much of the simulator's speed a learner with one environment keeps, in a Habitat scene.

Usage: python benchmark/habitat_speed.py house.glb [--seed 2] [--repeats 5]

A turn trains `ppo_lstm_jci.py` with the random encoder, then steps the simulator alone with the very actions that were
taken: how fast it is depends on what is in view. Prints both speeds, and their ratio as the median over the turns. The
first rollout, in which everything is done for the first time, does not count in either.
"""

import argparse
import multiprocessing
import os
import runpy
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import common.habitat

ROLLOUT, NUM_STEPS = 256, 2048


class RecordedHabitat(common.habitat.Habitat):
    """Writes the actions to a file when it is closed."""

    def reset(self, **options):
        self.actions = []
        return super().reset(**options)

    def step(self, actions):
        self.actions.append(actions)
        return super().step(actions)

    def close_extras(self):
        np.save("actions.npy", self.actions)
        super().close_extras()


def train(scene, seed, folder):
    os.chdir(folder)
    common.habitat.Habitat = RecordedHabitat
    sys.argv = [str(ROOT / "ppo_lstm_jci.py"), "--env", "habitat", "--scene", scene, "--seed", str(seed)]
    sys.argv += ["--num-steps", str(ROLLOUT), "--total-timesteps", str(NUM_STEPS)]
    runpy.run_path(sys.argv[0], run_name="__main__")


def learner_speed(scene, seed):
    """Steps per second, all of rollout, bonus and update included; where a step's time goes; and the actions."""
    with tempfile.TemporaryDirectory() as folder:
        process = multiprocessing.get_context("spawn").Process(target=train, args=(scene, seed, folder))
        process.start()
        process.join()
        if process.exitcode != 0:
            sys.exit("The learner did not end well: see above.")
        events = EventAccumulator(str(next(Path(folder, "runs").iterdir())))
        events.Reload()
        tags = ["charts/SPS", *(tag for tag in events.Tags()["scalars"] if tag.startswith("time/"))]
        speeds, *shares = np.array([[event.value for event in events.Scalars(tag)[1:]] for tag in tags])
        parts = {tag[len("time/") :]: 1000 * np.mean(share / speeds) for tag, share in zip(tags[1:], shares)}
        return 1 / np.mean(1 / speeds), parts, np.load(Path(folder, "actions.npy"))


def simulator_speed(scene, seed, actions):
    envs = common.habitat.Habitat(scene, None, 1, seed)
    envs.reset()
    for step, action in enumerate(actions):
        if step == ROLLOUT:
            start = time.perf_counter()
        envs.step(action)
    speed = (len(actions) - ROLLOUT) / (time.perf_counter() - start)
    envs.close()
    return speed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scene", type=lambda path: str(Path(path).resolve()), help="a scene's file")
    parser.add_argument("--seed", type=int, default=1, help="decides where episodes start [default: 1]")
    parser.add_argument("--repeats", type=int, default=3, help="number of turns [default: 3]")
    args = parser.parse_args()
    ratios = []
    for _ in range(args.repeats):
        learner, parts, actions = learner_speed(args.scene, args.seed)
        simulator = simulator_speed(args.scene, args.seed, actions)
        ratios.append(learner / simulator)
        print(f"learner {learner:.0f} steps/s, simulator alone {simulator:.0f} steps/s, ratio {ratios[-1]:.2f}")
        print("  the learner's step in ms:", ", ".join(f"{part} {share:.2f}" for part, share in parts.items()))
    print(f"median ratio {np.median(ratios):.2f}")


if __name__ == "__main__":
    main()
