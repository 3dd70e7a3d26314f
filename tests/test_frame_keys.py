"""Keys of frames: which frames share one."""

import numpy as np
import pytest
import torch
from scipy.ndimage import uniform_filter

from common.frame_keys import SimHash, exact_keys


def smooth_frames(num_steps, num_envs, seed=0):
    """Dim pictures with room for a change of brightness."""
    noise = np.random.default_rng(seed).uniform(size=(num_steps, num_envs, 3, 42, 42))
    smooth = uniform_filter(noise, (0, 0, 0, 9, 9))
    return torch.from_numpy(20 + 100 * (smooth - smooth.min()) / (smooth.max() - smooth.min())).to(torch.uint8)


def test_hash_equals_a_plain_sum_of_signed_pixels():
    torch.manual_seed(0)
    hasher = SimHash(20)
    frames = smooth_frames(3, 2)
    keys = hasher(frames)
    patterns = hasher.patterns.numpy().astype(int)
    assert np.array_equal(np.unique(patterns), [-1, 1])
    assert (patterns.sum(1) == 0).all()
    assert len({pattern.tobytes() for pattern in patterns}) == 20
    for t in range(3):
        for env in range(2):
            pixels = frames[t, env].flatten().tolist()
            bits = [sum(p * x for p, x in zip(pattern, pixels)) > 0 for pattern in patterns.tolist()]
            assert keys[t][env] == sum(bit << place for place, bit in enumerate(bits))


def test_a_key_does_not_depend_on_the_batch():
    torch.manual_seed(1)
    hasher = SimHash(62)
    frames = torch.randint(256, (1, 2500, 3, 42, 42), dtype=torch.uint8)
    frames[0, 5] = frames[0, 2400] = 128  # all projections are exactly 0
    keys = hasher(frames)[0]
    assert keys[5] == keys[2400] == 0
    assert [hasher(frames[:, i : i + 1])[0][0] for i in (0, 5, 1023, 1024, 2499)] == [
        keys[i] for i in (0, 5, 1023, 1024, 2499)
    ]
    assert len(set(keys)) == 2499
    assert max(keys) < 2**62


def test_brightness_does_not_matter_but_the_picture_does():
    torch.manual_seed(2)
    hasher = SimHash(32)
    frames = smooth_frames(1, 50)
    assert hasher(frames) == hasher(frames + 100)
    assert hasher(frames) != hasher(frames.flip(-1))


def test_similar_frames_share_keys_more_often_than_others_and_with_fewer_bits():
    torch.manual_seed(3)
    frames = smooth_frames(1, 400)
    similar = (frames.float() + 2 * torch.randn(frames.shape)).clamp(0, 255).to(torch.uint8)
    shares = []
    for num_bits in (4, 16, 62):
        hasher = SimHash(num_bits)
        keys, similar_keys, other_keys = hasher(frames)[0], hasher(similar)[0], hasher(frames.roll(1, 1))[0]
        shares.append(np.mean(np.array(keys) == similar_keys))
        assert shares[-1] > np.mean(np.array(keys) == other_keys)
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.5


def test_patterns_come_back_from_their_state():
    torch.manual_seed(4)
    hasher, copy = SimHash(16), SimHash(16)
    frames = smooth_frames(2, 8)
    assert hasher(frames) != copy(frames)
    copy.load_state_dict(hasher.state_dict())
    assert hasher(frames) == copy(frames)


@pytest.mark.parametrize("pixel", [(0, 0, 0), (2, 41, 41)])
def test_exact_keys_see_a_single_pixel(pixel):
    frames = smooth_frames(1, 1).repeat(2, 2, 1, 1, 1)
    frames[(1, 0, *pixel)] += 1
    keys = exact_keys(frames)
    assert keys[0][0] == keys[0][1] == keys[1][1] != keys[1][0]
