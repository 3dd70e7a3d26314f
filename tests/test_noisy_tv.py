import numpy as np
import pytest
from conftest import read_progress

from common.memory_corridor import MemoryCorridor
from common.my_way_home import MyWayHome
from common.noisy_tv import NoisyTV


def test_every_frame_keeps_its_picture_and_gets_fresh_noise():
    plain, noisy = MemoryCorridor(3, length=4), NoisyTV(MemoryCorridor(3, length=4))
    frames, noisy_frames = plain.reset(seed=5)[0], noisy.reset(seed=5)[0]
    assert noisy_frames.shape == (3, *noisy.single_observation_space.shape) == (3, 42, 84, 3)
    noises = []
    for step in range(8):
        np.testing.assert_array_equal(noisy_frames[:, :, :42], frames)
        noises.append(noisy_frames[:, :, 42:])
        actions = np.zeros(3, dtype=int)
        frames, _, _, _, infos = plain.step(actions)
        noisy_frames, _, terminations, _, noisy_infos = noisy.step(actions)
        np.testing.assert_array_equal(noisy_infos["final_obs"][:, :, :42], infos["final_obs"])
        if terminations.any():
            assert (noisy_infos["final_obs"][:, :, 42:] != noisy_frames[:, :, 42:]).mean() > 0.9
    noises = np.concatenate(noises)  # (24, 42, 42, 3)
    for first in range(len(noises)):
        for second in range(first):
            assert (noises[first] != noises[second]).mean() > 0.9, "noise was used twice"
    counts = np.bincount(noises.ravel(), minlength=256)
    assert len(counts) == 256
    assert abs(counts / counts.mean() - 1).max() < 0.3, "all 256 values are equally likely"


def test_noise_follows_the_seed():
    envs = [NoisyTV(MemoryCorridor(2)) for _ in range(3)]
    frames = [env.reset(seed=seed)[0][:, :, 42:] for env, seed in zip(envs, (1, 1, 2))]
    np.testing.assert_array_equal(frames[0], frames[1])
    assert (frames[0] != frames[2]).mean() > 0.9


def test_positions_and_cells_are_the_environments_own():
    envs = NoisyTV(MyWayHome("sparse", 1))
    np.testing.assert_array_equal(envs.cells(np.array([[240.0, -176.0]])), [[15, -11]])
    assert len(envs.reachable_cells()) == 702
    envs.close()


@pytest.mark.parametrize("script", ["ppo_lstm.py", "ppo_lstm_jci.py"])
def test_a_run_with_a_noisy_tv_in_vizdoom(script, train):
    flags = ["--num-envs", 2, "--num-steps", 64, "--total-timesteps", 256, "--noisy-tv", "--capture-video"]
    assert len(read_progress(train(script, *flags))) == 2
