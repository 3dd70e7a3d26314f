"""All random states of a process as one part of a checkpoint, so that a resumed run draws on where it stopped."""

import random

import numpy as np
import torch


class RandomStates:
    def state_dict(self):
        name, keys, *rest = np.random.get_state()
        return {
            "python": random.getstate(),
            "numpy": (name, keys.tolist(), *rest),  # a list: checkpoints hold nothing that would have to be unpickled
            "torch": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state_all(),  # empty where there is no GPU
        }

    def load_state_dict(self, state):
        random.setstate(state["python"])
        np.random.set_state(state["numpy"])
        torch.set_rng_state(state["torch"].cpu())
        if len(state["cuda"]) == torch.cuda.device_count():  # else the run goes on with other GPUs
            torch.cuda.set_rng_state_all([gpu.cpu() for gpu in state["cuda"]])
