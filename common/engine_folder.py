"""The temporary folder of ViZDoom's engines; what killed runs have left of theirs goes when the next one starts."""

import fcntl
import os
import re
import shutil
import tempfile
from pathlib import Path

PREFIX = "my-way-home-"


def make_engine_folder(shared_memory="/dev/shm"):
    """A new folder, and an open file that marks it as in use until this process ends, however it ends."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        try:
            with (folder / "owner").open() as owner:
                fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the kernel releases the lock of a process that ends
                _sweep(folder, Path(shared_memory))
        except OSError:
            continue  # in use, or somebody else's
    directory = tempfile.mkdtemp(prefix=PREFIX)
    owner = open(os.path.join(directory, "owner.new"), "w")
    fcntl.flock(owner, fcntl.LOCK_EX)
    os.replace(owner.name, os.path.join(directory, "owner"))  # only now: nobody must find it without its lock
    return directory, owner


def _sweep(folder, shared_memory):
    for arguments in folder.rglob("arguments"):  # of an engine; one that was killed while it started leaves memory
        instance = re.search(r"viz_instance_id\s+(\w+)", arguments.read_text())
        for file in shared_memory.glob(f"ViZDoom*{instance[1]}") if instance else ():
            file.unlink()
    shutil.rmtree(folder)
