"""A scene in habitat-sim as a Gymnasium vector environment."""

import importlib.util


class Habitat:
    """Simulators in worker processes."""

    def __init__(self, scene, scenes_dir, num_envs, seed):
        if importlib.util.find_spec("habitat_sim") is None:
            raise SystemExit("--env habitat needs habitat-sim, which is not installed: see docs/habitat.md.")
