"""How much of the simulator's speed a learner with one environment keeps, in a Habitat scene.

Usage: python benchmark/habitat_speed.py house.glb [--seed 2] [--iterations 20]

Trains `ppo_lstm_jci.py` with the random encoder. After every iteration the actions of its rollout are taken once more,
in a second simulator and with nothing else to do: a simulator's speed depends on what is in view, and on what else the
machine does at the time. A learner's iteration is rollout, bonus and update; the first, in which everything is done for
the first time, does not count.
"""

import argparse
import os
import runpy
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import common.habitat
import common.run_folder

NUM_STEPS = 256
PARTS = ("time/policy", "time/env", "time/bonus", "time/update")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scene", type=lambda path: str(Path(path).resolve()), help="a scene's file")
    parser.add_argument("--seed", type=int, default=1, help="decides where episodes start [default: 1]")
    parser.add_argument("--iterations", type=int, default=20, help="iterations that count [default: 20]")
    args = parser.parse_args()
    if args.iterations < 1:
        parser.error("--iterations must be at least 1.")

    simulator = common.habitat.Habitat(args.scene, None, 1, args.seed)
    simulator.reset()
    rollout, learner_seconds, simulator_seconds, shares = [], [], [], []

    class RecordedHabitat(common.habitat.Habitat):
        def step(self, actions):
            rollout.append(actions)
            return super().step(actions)

    class TimedRunFolder(common.run_folder.RunFolder):
        def log(self, metrics, global_step, timings):
            super().log(metrics, global_step, timings)
            start = time.perf_counter()
            for actions in rollout:
                simulator.step(actions)
            simulator_seconds.append(time.perf_counter() - start)
            learner_seconds.append(NUM_STEPS / timings["charts/SPS"])
            shares.append({tag[len("time/") :]: share for tag, share in timings.items() if tag in PARTS})
            rollout.clear()

    common.habitat.Habitat, common.run_folder.RunFolder = RecordedHabitat, TimedRunFolder
    sys.argv = [str(ROOT / "ppo_lstm_jci.py"), "--env", "habitat", "--scene", args.scene, "--seed", str(args.seed)]
    sys.argv += ["--encoder", "random", "--num-steps", str(NUM_STEPS)]
    sys.argv += ["--total-timesteps", str(NUM_STEPS * (args.iterations + 1))]
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        runpy.run_path(sys.argv[0], run_name="__main__")
        os.chdir(ROOT)
    simulator.close()

    learner, alone = np.array(learner_seconds[1:]), np.array(simulator_seconds[1:])
    for name, seconds in ("learner", learner), ("simulator alone", alone):
        print(f"{name:16}{len(seconds) * NUM_STEPS / seconds.sum():6.0f} steps/s")
    low, high = np.quantile(alone / learner, [0.1, 0.9])
    print(f"ratio {alone.sum() / learner.sum():.2f} (8 of 10 iterations: {low:.2f} to {high:.2f})")
    for part in shares[0]:
        seconds = np.dot(learner, [share[part] for share in shares[1:]]) / (len(learner) * NUM_STEPS)
        print(f"  {part:8}{1000 * seconds:6.2f} ms of a learner's step")


if __name__ == "__main__":
    main()
