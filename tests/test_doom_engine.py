"""Real engines that are killed or stopped while they start, and machines on which they cannot start."""

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT

from common import doom_engine
from common.my_way_home import MyWayHome

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds the engines in /proc")


def engines_of(parent):
    """The process ids of the engines that a process started."""
    pids = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, fields = stat.read_text().split("(", 1)[1].rsplit(")", 1)
        except (FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            continue
        if name == "vizdoom" and int(fields.split()[1]) == parent:
            pids.add(int(stat.parent.name))
    return pids


def strike(parent, fates, delay=0.0):
    """Send the signals `fates`, each to the next engine that the process starts."""
    known, struck = engines_of(parent), []

    def watch():
        for fate in fates:
            while not (new := engines_of(parent) - known):
                time.sleep(0.001)
            known.update(new)
            time.sleep(delay)
            struck.append(max(new))
            os.kill(struck[-1], fate)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread, struck


def play(fates=(), delay=0.0, others=lambda: set(os.listdir("/dev/shm"))):
    """Start two games, step them, have a running engine killed and what is started in its place, and go on."""
    before = others()
    thread, struck = strike(os.getpid(), fates, delay)
    envs = MyWayHome("sparse", 2)
    frames = [envs.reset(seed=3)[0]]
    thread.join()
    frames += [envs.step([1, 3])[0] for _ in range(10)]
    assert len(engines_of(os.getpid())) == 2
    envs.close()
    assert not engines_of(os.getpid())
    assert not os.path.exists(envs.directory)
    assert not {name for name in others() - before if any(engine.instance in name for engine in envs.engines)}
    return np.stack(frames), struck


@pytest.mark.parametrize("delay", [0, 0.03, 0.08])
def test_engines_killed_while_they_start_are_started_again(delay):
    expected, _ = play()
    frames, struck = play([signal.SIGKILL] * 2, delay)
    assert len(set(struck)) == 2
    assert (frames == expected).all(), "the games are those of the seed all the same"


def test_an_engine_stopped_while_it_starts_is_noticed_within_ten_seconds():
    expected, _ = play()
    start = time.monotonic()
    frames, struck = play([signal.SIGSTOP], 0.03)
    assert len(struck) == 1
    assert doom_engine.START_SECONDS[0] == 10
    assert 10 < time.monotonic() - start < 20, "other work on the machine may make it slower"
    assert (frames == expected).all()


def test_an_engine_killed_while_it_is_restarted_costs_one_episode():
    envs = MyWayHome("sparse", 3)
    envs.reset(seed=3)
    envs.step([1] * 3)
    thread, struck = strike(os.getpid(), [signal.SIGKILL], 0.03)
    os.kill(envs.engines[1].process.pid, signal.SIGKILL)
    with pytest.warns(RuntimeWarning, match="environment 1 died after 2 steps"):
        *_, truncations, infos = envs.step([1] * 3)
    thread.join()
    assert len(struck) == 1
    assert truncations.tolist() == [False, True, False]
    assert (infos["position"][1] == (240, -176)).all()
    assert not envs.step([1] * 3)[3].any()
    assert len(engines_of(os.getpid())) == 3
    envs.close()


def test_restarts_depend_on_the_seed_alone():
    frames = []
    for _ in range(2):
        envs = MyWayHome("dense", 1)
        envs.reset(seed=5)
        os.kill(envs.engines[0].process.pid, signal.SIGKILL)
        with pytest.warns(RuntimeWarning, match="died"):
            frames.append(envs.step([1])[0])
        envs.close()
    assert (frames[0] == frames[1]).all()


def test_after_three_tries_the_program_ends_in_a_sentence(monkeypatch, tmp_path):
    dying = tmp_path / "engine"
    dying.write_text("#!/bin/sh\necho the disk burns >&2\nexit 7\n")
    dying.chmod(0o700)
    monkeypatch.setattr(doom_engine, "ENGINE", str(dying))
    envs = MyWayHome("sparse", 1)
    with pytest.raises(SystemExit, match=r"it ended with 7: the disk burns; 3 tries"):
        envs.reset()
    envs.close()
    monkeypatch.setattr(doom_engine, "ENGINE", str(tmp_path / "missing"))
    with pytest.raises(SystemExit, match="does not start"):
        MyWayHome("sparse", 1).reset()


def test_ctrl_c_while_an_engine_hangs(tmp_path):
    """The first asks for the end and a checkpoint, the second ends a run at once, without an engine left."""
    command = [sys.executable, str(ROOT / "ppo_lstm.py"), "--num-envs", "2", "--num-steps", "32", "--bptt-length", "32"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True)
    thread, struck = strike(process.pid, [signal.SIGSTOP], 0.03)
    thread.join(300)
    assert len(struck) == 1
    os.killpg(process.pid, signal.SIGINT)
    time.sleep(0.5)
    assert process.poll() is None
    os.killpg(process.pid, signal.SIGINT)
    errors = process.communicate(timeout=120)[1]
    assert "Stopping: saving a checkpoint first" in errors
    assert process.returncode not in (0, -signal.SIGSEGV), errors
    with pytest.raises(ProcessLookupError):  # what waited for the engine ends a moment later
        for _ in range(100):
            os.killpg(process.pid, 0)
            time.sleep(0.1)


@pytest.mark.skipif(
    not shutil.which("unshare") or subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode != 0,
    reason="may not mount a file system of its own",
)
@pytest.mark.parametrize(
    ("mount", "sentence"),
    [
        ("-o noexec tmpfs here && export TMPDIR=here", r"no program may run in .*here \(noexec\): set TMPDIR to"),
        ("-o size=64k tmpfs /dev/shm", r"2 engines of ViZDoom need 256 kB of /dev/shm, and 64 kB are free: remove"),
        ("-o size=16k tmpfs here && export TMPDIR=here", "need a folder for temporary files .*: set T"),
    ],
    ids=["noexec", "shared-memory", "full"],
)
def test_a_machine_on_which_engines_cannot_start(mount, sentence, tmp_path):
    (tmp_path / "here").mkdir()
    script = tmp_path / "script.py"
    script.write_text(
        f"import sys; sys.path[0] = {str(ROOT)!r}\n"
        "from common.my_way_home import MyWayHome; MyWayHome('sparse', 2).reset()"
    )
    command = f"mount -t tmpfs {mount.replace('here', str(tmp_path / 'here'))} && exec {sys.executable} {script}"
    process = subprocess.run(["unshare", "-rm", "sh", "-c", command], capture_output=True, text=True, cwd=tmp_path)
    assert process.returncode == 1
    assert re.search(sentence, process.stderr), process.stderr
    assert len(process.stderr.splitlines()) == 1
