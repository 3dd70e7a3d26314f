"""The process behind each environment of habitat.py: one simulator, which answers an action by a frame and a position.

It runs as `python habitat_worker.py CONNECTION SCENE SEED GPU`, and ends when the other side of the connection does.
"""

import os
import signal
import sys
from multiprocessing.connection import Connection

import habitat_sim
import numpy as np
from habitat_sim.utils.common import quat_from_angle_axis

ACTIONS = {"move_forward": 0.25, "turn_left": 10, "turn_right": 10}  # metres, degrees, degrees


def make_simulator(scene, gpu):
    settings = habitat_sim.SimulatorConfiguration()
    settings.scene_id, settings.gpu_device_id = scene, gpu
    settings.enable_physics = settings.load_semantic_mesh = False
    camera = habitat_sim.CameraSensorSpec()
    camera.uuid, camera.sensor_type = "rgb", habitat_sim.SensorType.COLOR
    camera.resolution, camera.position, camera.hfov = [64, 64], (0.0, 0.88, 0.0), 79
    actions = {name: habitat_sim.ActionSpec(name, habitat_sim.ActuationSpec(ACTIONS[name])) for name in ACTIONS}
    agent = habitat_sim.AgentConfiguration(sensor_specifications=[camera], action_space=actions)
    mediator = habitat_sim.metadata.MetadataMediator(settings)
    name, extension = os.path.splitext(scene)
    if extension == ".glb" and not any(os.path.exists(name + end) for end in (".stage_config.json", ".navmesh")):
        # habitat-sim takes z for the height, which is right for scenes that were prepared for it and so have a navmesh;
        # in glTF, and so in any other file, it is y.
        stage = mediator.stage_template_manager.create_new_template(scene)
        stage.orient_up, stage.orient_front = (0.0, 1.0, 0.0), (0.0, 0.0, -1.0)
        mediator.stage_template_manager.register_template(stage, scene)
    simulator = habitat_sim.Simulator(habitat_sim.Configuration(settings, [agent], mediator))
    if not simulator.pathfinder.is_loaded and os.path.exists(name + ".navmesh"):
        simulator.pathfinder.load_nav_mesh(name + ".navmesh")
    if not simulator.pathfinder.is_loaded:  # none came with the scene, or none that can be read
        defaults = habitat_sim.NavMeshSettings()
        defaults.set_defaults()
        simulator.recompute_navmesh(simulator.pathfinder, defaults)
    return simulator


def largest_island(pathfinder):
    """Return the number of the largest connected part of the navmesh and its triangles (M, 3, 2), seen from above."""
    island = max(range(pathfinder.num_islands), key=pathfinder.island_area)
    corners = np.array(pathfinder.build_navmesh_vertices(island))[pathfinder.build_navmesh_vertex_indices(island)]
    return island, corners.reshape(-1, 3, 3)[:, :, [0, 2]]


def start_state(pathfinder, island, seed):
    """A point of the island and a heading, which depend on the seed alone."""
    rng = np.random.default_rng(seed)
    pathfinder.seed(int(rng.integers(1, 2**31)))  # not the seed itself: C's generator takes 0 and 1 for the same
    state = habitat_sim.AgentState()
    state.position = np.array(pathfinder.get_random_navigable_point(max_tries=100, island_index=island))
    state.rotation = quat_from_angle_axis(rng.uniform(0, 2 * np.pi), np.array([0.0, 1.0, 0.0]))
    return state


def serve(connection, scene, seed, gpu):
    simulator = make_simulator(scene, gpu)
    pathfinder = simulator.pathfinder
    if not pathfinder.is_loaded or pathfinder.num_islands == 0:
        connection.send(
            f"--scene {scene}: there is no floor in it that an agent could walk on; if up is not +y in the file, "
            "put a .stage_config.json beside it as docs/habitat.md shows, else choose another scene."
        )
        return
    island, floor = largest_island(pathfinder)
    simulator.initialize_agent(0, start_state(pathfinder, island, seed))

    def look(observations):
        position = simulator.get_agent(0).get_state().position
        return observations["rgb"][:, :, :3].copy(), np.array([position[0], position[2]], np.float32)

    connection.send((look(simulator.reset()), floor))
    while True:
        command = connection.recv()
        connection.send(look(simulator.reset() if command < 0 else simulator.step(list(ACTIONS)[command])))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whether they end anything is for the other side to decide
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        serve(Connection(int(sys.argv[1])), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    except (EOFError, ConnectionError):
        pass  # the other side is gone
