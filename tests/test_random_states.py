import io
import random

import numpy as np
import torch

from common.checkpoints import RandomStates


def draw():
    return random.random(), np.random.rand(), torch.rand(1).item()


def test_all_generators_go_on_where_they_stopped():
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    draw()
    file = io.BytesIO()
    torch.save(RandomStates().state_dict(), file)
    expected = draw()
    assert draw() != expected
    file.seek(0)
    RandomStates().load_state_dict(torch.load(file, weights_only=True))
    assert draw() == expected
