"""Stands in for habitat-sim in tests: one square room of 4 x 4 m around (1, 1), with the calls that the worker makes.

What it draws tells where it is: the frame is filled with (x, z) in steps of 2 cm, and the number of steps since reset.
The environment variable FAKE_HABITAT makes it misbehave.
"""

import os
import sys
from types import SimpleNamespace

import numpy as np

from habitat_sim.utils.common import heading_of

LOW, HIGH = -1.0, 3.0
FAULT = os.environ.get("FAKE_HABITAT", "")
SensorType = SimpleNamespace(COLOR="color")


class SimulatorConfiguration(SimpleNamespace):
    pass


class CameraSensorSpec(SimpleNamespace):
    pass


class AgentState(SimpleNamespace):
    pass


class AgentConfiguration(SimpleNamespace):
    pass


class NavMeshSettings:
    def set_defaults(self):
        pass


def ActuationSpec(amount):
    return amount


def ActionSpec(name, amount):
    return amount


class StageTemplates:
    def __init__(self):
        self.registered = {}

    def create_new_template(self, handle):
        return SimpleNamespace(orient_up=(0.0, 0.0, 1.0), orient_front=(0.0, 1.0, 0.0))

    def register_template(self, template, handle):
        self.registered[handle] = template


class MetadataMediator:
    def __init__(self, settings):
        self.stage_template_manager = StageTemplates()


metadata = SimpleNamespace(MetadataMediator=MetadataMediator)


def Configuration(settings, agents, mediator):
    return SimpleNamespace(settings=settings, agent=agents[0], mediator=mediator)


class PathFinder:
    """Two islands: the room, and a smaller one that nobody can reach."""

    is_loaded = False
    num_islands = 0

    def load_nav_mesh(self, path):
        assert os.path.exists(path)

    def island_area(self, island):
        return [1.0, (HIGH - LOW) ** 2][island]

    def build_navmesh_vertices(self, island):
        assert island == 1
        return [np.array(corner) for corner in ((LOW, 0, LOW), (HIGH, 0, LOW), (HIGH, 0, HIGH), (LOW, 0, HIGH))]

    def build_navmesh_vertex_indices(self, island):
        return np.array([0, 1, 2, 0, 2, 3])

    def seed(self, seed):
        self.rng = np.random.default_rng(seed)

    def get_random_navigable_point(self, max_tries, island_index):
        x, z = self.rng.uniform(LOW, HIGH, 2) if island_index == 1 else (100, 100)
        return np.array([x, 0.5, z], np.float32)


class Simulator:
    def __init__(self, configuration):
        if FAULT == "crash" or (FAULT == "no gpu" and configuration.settings.gpu_device_id >= 0):
            print("unable to find CUDA device 0", file=sys.stderr, flush=True)
            os.abort()
        if FAULT == "exception":
            raise RuntimeError("cannot read the file")
        self.actions = configuration.agent.action_space
        self.camera = configuration.agent.sensor_specifications[0]
        templates = configuration.mediator.stage_template_manager.registered
        self.up = [template.orient_up for template in templates.values()]
        self.pathfinder = PathFinder()

    def recompute_navmesh(self, pathfinder, settings):
        if FAULT != "no floor":
            pathfinder.is_loaded, pathfinder.num_islands = True, 2

    def initialize_agent(self, agent_id, state):
        self.start = state

    def get_agent(self, agent_id):
        return SimpleNamespace(get_state=lambda: SimpleNamespace(position=self.position.copy()))

    def reset(self):
        self.position, self.heading, self.steps = self.start.position.copy(), heading_of(self.start.rotation), 0
        return self._draw()

    def step(self, action):
        self.steps += 1
        if action == "move_forward":
            way = np.array([-np.sin(self.heading), 0, -np.cos(self.heading)]) * self.actions[action]
            self.position = np.clip(self.position + way, LOW, HIGH).astype(np.float32)
        else:
            self.heading += np.radians(self.actions[action]) * (1 if action == "turn_left" else -1)
        return {**self._draw(), "collided": False}

    def _draw(self):
        frame = np.zeros((*self.camera.resolution, 4), np.uint8)
        frame[:, :, 0], frame[:, :, 1] = ((self.position[[0, 2]] - LOW) * 50).astype(np.uint8)
        frame[:, :, 2], frame[:, :, 3] = self.steps % 256, 255
        if self.up == [(0.0, 1.0, 0.0)]:
            frame[0, 0] = 255  # tells the test that the scene was turned
        return {"rgb": frame}
