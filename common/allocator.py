"""Memory for the activations of the next minibatch without asking the system for it again."""

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # from malloc.h


def keep_freed_memory():
    """Lets the C library keep large blocks that were freed.

    By default it hands them back at once, and every minibatch has to ask for new pages, which is slow. Only glibc,
    the C library of most Linux systems, has this knob; elsewhere nothing happens.
    """
    if sys.platform == "linux" and hasattr(ctypes.CDLL(None), "mallopt"):
        ctypes.CDLL(None).mallopt(M_MMAP_MAX, 0)  # an older glibc refuses an M_MMAP_THRESHOLD above 32 MB
        ctypes.CDLL(None).mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1)
