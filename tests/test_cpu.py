import platform
import subprocess
import sys

import pytest
import torch
from conftest import ROOT

from common.cpu import at_most_threads

PAGE_FAULTS = """
import resource, torch
{call}
network = torch.nn.Sequential(torch.nn.Conv2d(3, 32, 3, padding=1), torch.nn.ELU(), torch.nn.Conv2d(32, 8, 3))
minibatch = torch.rand(256, 3, 42, 42)
for i in range(8):
    if i == 3:  # the first ones have to ask the system in any case
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    network(minibatch).sum().backward()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told to keep freed memory")
def test_large_blocks_are_used_again():
    def count(call):
        command = [sys.executable, "-c", PAGE_FAULTS.format(call=call)]
        return int(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout)

    fetched = count("pass")
    assert fetched > 20_000  # activations of 58 MB and their gradients, fetched from the system anew
    kept = count("from common.cpu import keep_freed_memory; keep_freed_memory()")
    assert kept < fetched / 10  # not 0: the heap may grow once more


def test_threads_come_back():
    usual = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with at_most_threads(1):
            assert torch.get_num_threads() == 1
        with at_most_threads(32):
            assert torch.get_num_threads() == 2
        with pytest.raises(KeyError), at_most_threads(1):
            raise KeyError
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(usual)
