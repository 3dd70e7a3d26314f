"""How torch uses the CPU. To be imported before torch, as OpenMP reads its settings when it is loaded.

Idle threads sleep instead of starving the simulators, but only after a moment, so that they stay awake between two
operations of an update. What is set in the shell wins.
"""

import contextlib
import ctypes
import os
import sys

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

import torch  # noqa: E402

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # from malloc.h


def keep_freed_memory():
    """Lets the C library keep large blocks that were freed, for the activations of the next minibatch.

    By default it hands them back at once, and every minibatch has to ask for new pages, which is slow. Only glibc,
    the C library of most Linux systems, has this knob; elsewhere nothing happens.
    """
    if sys.platform == "linux" and hasattr(ctypes.CDLL(None), "mallopt"):
        ctypes.CDLL(None).mallopt(M_MMAP_MAX, 0)  # an older glibc refuses an M_MMAP_THRESHOLD above 32 MB
        ctypes.CDLL(None).mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1)


@contextlib.contextmanager
def at_most_threads(count):
    """Fewer of torch's threads for a while: threads that share a single frame mostly wait for each other."""
    usual = torch.get_num_threads()
    torch.set_num_threads(min(usual, count))
    try:
        yield
    finally:
        torch.set_num_threads(usual)
