"""What can happen to checkpoints, args.json and the CSV files: no good one is lost, and a sentence says why."""

import json
import os
import pickle
import random
import re
import shutil
import zipfile

import numpy as np
import pytest
import torch

from common.checkpoints import Checkpoints

SMALL = ["--env", "memory", "--num-envs", 4, "--num-steps", 16, "--minibatch-size", 32, "--update-epochs", 1]


class Part:
    """A table that grows, as ClusterTable does."""

    def __init__(self, num_rows=0):
        self.centres, self.counts = torch.zeros(num_rows, 3), torch.arange(num_rows)

    def state_dict(self):
        return dict(vars(self))

    def load_state_dict(self, state):
        vars(self).update(state)


def make(folder):
    network = torch.nn.Linear(4, 5)
    return Checkpoints(
        folder, {"network": network, "optimizer": torch.optim.Adam(network.parameters()), "table": Part()}
    )


def train(checkpoints, step):
    network, optimizer = checkpoints.saved["network"], checkpoints.saved["optimizer"]
    network(torch.randn(2, 4)).square().sum().backward()
    optimizer.step()
    checkpoints.saved["table"].__init__(step)
    checkpoints.save(step, False)


@pytest.fixture
def folder(tmp_path):
    """Of a run that has saved three times: steps 1, 2 and 3."""
    checkpoints = make(tmp_path)
    for step in (1, 2, 3):
        train(checkpoints, step)
    return tmp_path


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def load(folder):
    checkpoints = make(folder)
    step = checkpoints.load("cpu", is_expected=True)
    assert checkpoints.last_step == step == len(checkpoints.saved["table"].centres)
    return checkpoints


def test_a_crash_at_any_moment_of_a_save(folder, monkeypatch):
    """Cut off after each system call in turn, and resumed: never further back than the step before."""
    whole = files(folder)
    replace, fsync, crashed = os.replace, os.fsync, 0
    for last_call in range(6):
        shutil.rmtree(folder)
        folder.mkdir()
        for name, content in whole.items():
            (folder / name).write_bytes(content)
        calls = []

        def dying(function, *args, calls=calls, last_call=last_call):
            if len(calls) == last_call:
                raise KeyboardInterrupt  # no handler of save() takes this for a full disk
            calls.append(function(*args))

        monkeypatch.setattr("common.checkpoints.os.replace", lambda *args, d=dying: d(replace, *args))
        monkeypatch.setattr("common.checkpoints.os.fsync", lambda *args, d=dying: d(fsync, *args))
        try:
            train(load(folder), 4)
        except KeyboardInterrupt:
            crashed += 1
        monkeypatch.undo()
        resumed = load(folder)
        assert resumed.last_step in (3, 4)
        train(resumed, 5)
        assert load(folder).last_step == 5
        assert sorted(files(folder)) == ["checkpoint.previous.pt", "checkpoint.pt"]
    assert crashed == 3


def test_what_a_kill_leaves_of_a_save(folder):
    """Half a new file is ignored; a whole one counts, also where the old one has been moved away already."""
    new, current, previous = (folder / f"checkpoint{end}.pt" for end in (".new", "", ".previous"))
    content = current.read_bytes()
    new.write_bytes(content[: len(content) // 2])
    assert load(folder).last_step == 3
    os.replace(current, previous)  # between the two renames
    new.write_bytes(content[: len(content) // 2])
    assert load(folder).last_step == 3
    os.replace(current, new)
    checkpoints = load(folder)
    assert checkpoints.last_step == 3
    assert current.read_bytes() == content


def test_a_damaged_newest_one_never_costs_the_good_one(folder, capsys):
    good = (folder / "checkpoint.previous.pt").read_bytes()
    (folder / "checkpoint.pt").write_bytes(b"not a checkpoint")
    checkpoints = load(folder)
    assert re.search(r"checkpoint\.pt is damaged \(BadZipFile: .*\); trying the one before\.", capsys.readouterr().err)
    assert files(folder) == {"checkpoint.pt": good, "checkpoint.damaged.pt": b"not a checkpoint"}
    train(checkpoints, 7)
    assert (folder / "checkpoint.previous.pt").read_bytes() == good
    assert load(folder).last_step == 7


def test_flipped_bits_are_noticed(folder):
    """300 single flips and cuts: each is refused, or what is loaded is the same, bit for bit."""
    file = folder / "checkpoint.pt"
    content = file.read_bytes()
    whole = load(folder).saved
    for other in ("checkpoint.previous.pt",):
        (folder / other).unlink()
    rng, num_refused = random.Random(1), 0
    for number in range(300):
        damaged = bytearray(content)
        if number % 10:
            damaged[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        else:
            del damaged[rng.randrange(len(content)) :]
        file.write_bytes(damaged)
        try:
            saved = load(folder).saved
        except SystemExit as end:
            assert "no readable checkpoint in it; start again without --resume." in str(end)
            assert file.read_bytes() == damaged
            num_refused += 1
            continue
        assert torch.equal(saved["network"].weight, whole["network"].weight)
        assert torch.equal(saved["table"].counts, whole["table"].counts)
        for moments, expected in zip(saved["optimizer"].state.values(), whole["optimizer"].state.values()):
            assert all(torch.equal(moments[name], expected[name]) for name in expected)
    assert num_refused > 100, "a flip in the padding of the archive changes nothing, most others something"


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("executed",)


def test_nothing_in_a_checkpoint_is_executed(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    good = (folder / "checkpoint.previous.pt").read_bytes()
    state = torch.load(folder / "checkpoint.pt", weights_only=True)
    for disguise in ("plain pickle", "torch's old format", "torch's format", "torch's format, in a part"):
        (folder / "checkpoint.previous.pt").write_bytes(good)
        with open(folder / "checkpoint.pt", "wb") as file:
            if disguise == "plain pickle":
                pickle.dump(Bomb(), file)
            elif disguise == "torch's old format":
                torch.save({**state, "bomb": Bomb()}, file, _use_new_zipfile_serialization=False)
            else:
                torch.save({**state, "table": {"counts": Bomb()}} if "part" in disguise else Bomb(), file)
        assert load(folder).last_step == 2
        assert "checkpoint.pt is damaged" in capsys.readouterr().err
        assert not (folder / "executed").exists(), disguise
    torch.load(folder / "checkpoint.damaged.pt", weights_only=False)
    assert (folder / "executed").exists(), "the bomb is one"


def without(state, *path):
    *path, last = path
    for name in path:
        state = state[name]
    del state[last]


def put(state, value, *path):
    *path, last = path
    for name in path:
        state = state[name]
    state[last] = value


WRONG = {
    "a list": lambda s: [s],
    "a tensor": lambda s: torch.ones(3),
    "nothing": lambda s: None,
    "no step": lambda s: without(s, "global_step"),
    "a step that is a word": lambda s: put(s, "ten", "global_step"),
    "a step that is negative": lambda s: put(s, -1, "global_step"),
    "a step that is a tensor": lambda s: put(s, torch.tensor(3), "global_step"),
    "a part that is None": lambda s: put(s, None, "agent"),
    "weights of another size": lambda s: put(s, torch.zeros(2, 2), "agent", "actor.0.weight"),
    "weights that are missing": lambda s: without(s, "agent", "actor.0.weight"),
    "weights that are infinite": lambda s: s["agent"]["actor.0.weight"].fill_(np.inf),
    "weights of another type": lambda s: put(s, s["agent"]["actor.0.weight"].long(), "agent", "actor.0.weight"),
    "an optimizer without groups": lambda s: put(s, [], "optimizer", "param_groups"),
    "moments of another size": lambda s: put(s, torch.zeros(7), "optimizer", "state", 0, "exp_avg"),
    "episodes that are a word": lambda s: put(s, "many", "episode_log", "num_episodes"),
    "episodes that are missing": lambda s: without(s, "episode_log", "recent"),
    "episodes of two numbers": lambda s: put(s, [[1.0, 2.0]], "episode_log", "recent"),
    "visits of another length": lambda s: put(s, s["visits"]["counts"][:-1], "visits", "counts"),
    "visits that are fractions": lambda s: put(s, s["visits"]["counts"] / 2, "visits", "counts"),
    "random states of another kind": lambda s: put(s, (3, (1, 2), None), "random_states", "python"),
    "random states that are missing": lambda s: without(s, "random_states", "torch"),
    "a bonus that is a word": lambda s: put(s, "large", "bonus_mean", "mean"),
    "a table of another width": lambda s: put(s, torch.zeros(len(s["table"]["steps"]), 7), "table", "centres"),
    "a table of fewer rows": lambda s: put(s, s["table"]["steps"][1:], "table", "steps"),
    "pictures that are missing": lambda s: without(s, "atlas", "images"),
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run's folder, to be copied."""
    import contextlib
    import runpy
    import sys

    from conftest import ROOT

    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(SystemExit):
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["ppo_lstm_jci.py", *map(str, SMALL), "--total-timesteps", "128"])
        for stream in ("stdout", "stderr"):
            patch.setattr(sys, stream, getattr(sys, stream))
        runpy.run_path(str(ROOT / "ppo_lstm_jci.py"), run_name="__main__")
    (run,) = (folder / "runs").iterdir()
    return run


@pytest.fixture
def run(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


@pytest.mark.parametrize("content", WRONG)
def test_readable_but_wrong_content(content, run, train_here, capsys):
    state = torch.load(run / "checkpoint.pt", weights_only=True)
    changed = WRONG[content](state)
    torch.save(
        changed if isinstance(changed, (list, torch.Tensor)) or content == "nothing" else state, run / "checkpoint.pt"
    )
    (run / "checkpoint.previous.pt").unlink()
    before = files(run)
    with pytest.raises(SystemExit, match="no readable checkpoint in it; start again without --resume"):
        train_here("ppo_lstm_jci.py", "--resume", run, "--total-timesteps", 192)
    errors = capsys.readouterr().err
    assert re.search(r"checkpoint\.pt is damaged \(.+\); trying the one before", errors)
    assert len(errors.strip().splitlines()) == 1
    assert files(run) == before


def args_with(**flags):
    return lambda about: about["args"].update(flags)


FOREIGN_ARGS = {
    "no JSON": "not json",
    "empty": "",
    "a list": "[1, 2]",
    "a number": "3",
    "nested without end": "[" * 100_000,
    "no args": '{"starts": []}',
    "args that are a list": '{"args": [], "starts": []}',
    "no starts": '{"args": {}}',
    "starts that are a number": '{"args": {}, "starts": 3}',
    "binary": b"\xff\xfe\x00\x81",
    "an environment that nobody knows": args_with(env="atari"),
    "an environment that is a list": args_with(env=["memory"]),
    "no environment": args_with(env=None),
    "words for numbers": args_with(num_envs="four"),
    "fractions for whole numbers": args_with(num_steps=16.5),
    "yes for a number": args_with(num_steps=True),
    "a word for a switch": args_with(norm_adv="yes"),
    "nothing for a number": args_with(gamma=None),
}


@pytest.mark.parametrize("content", FOREIGN_ARGS)
def test_foreign_args(content, run, train_here, capsys):
    change = FOREIGN_ARGS[content]
    if callable(change):
        about = json.loads((run / "args.json").read_text())
        change(about)
        change = json.dumps(about)
    (run / "args.json").write_bytes(change if isinstance(change, bytes) else change.encode())
    before = files(run)
    with pytest.raises(SystemExit) as end:
        train_here("ppo_lstm_jci.py", "--resume", run, "--total-timesteps", 192)
    said = f"{capsys.readouterr().err}{end.value if isinstance(end.value.code, str) else ''}".strip()
    assert len(said.splitlines()) == 1
    assert re.search(r"args\.json is damaged or another program's: .*\.$", said)
    assert files(run) == before


def test_whole_numbers_of_a_json_file_are_numbers(run, train_here):
    about = json.loads((run / "args.json").read_text())
    about["args"].update(ext_coef=5, flag_of_a_later_version=1)
    about["starts"] = 3  # what can be done without is
    (run / "args.json").write_text(json.dumps(about))
    assert train_here("ppo_lstm_jci.py", "--resume", run)["args"].ext_coef == 5


HEADER = b"global_step,charts/episodic_return"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", None),
        (b"\n", None),
        (lambda lines: lines[0] + b"\r\n", None),
        (lambda lines: b"\r\n".join([*lines, b"192,0.5"]), None),  # half a row
        (lambda lines: b"\r\n".join([*lines, b"\0" * 1000]), None),  # a power cut
        (lambda lines: b"\r\n".join([*lines, lines[-1].replace(b"128,", b"\xff\xfe,")]), None),
        (lambda lines: b"\r\n".join([*lines, lines[-1].replace(b"128,", b"x,", 1)]), None),
        (lambda lines: b"\r\n".join([*lines, lines[-1].replace(b"128,", b"192,", 1)]), None),  # after the last save
        (b"name,age\r\nAda,36\r\n", "is not the log of a run: move it away"),
        (b"\x89PNG\r\n\x1a\n", "is not the log of a run: move it away"),
        (lambda lines: HEADER + b"\r\n64,0.5\r\n", "has other columns than this run: move it away"),
    ],
)
@pytest.mark.parametrize("name", ["progress.csv", "timings.csv"])
def test_foreign_or_damaged_csv(name, content, sentence, run, train_here):
    file = run / name
    lines = file.read_bytes().strip().split(b"\r\n")
    file.write_bytes(content(lines) if callable(content) else content)
    saved = (run / "checkpoint.pt").read_bytes()
    if sentence:
        with pytest.raises(SystemExit, match=sentence) as end:
            train_here("ppo_lstm_jci.py", "--resume", run, "--total-timesteps", 192)
        assert "\n" not in str(end.value)
        assert (run / "checkpoint.pt").read_bytes() == saved
        return
    train_here("ppo_lstm_jci.py", "--resume", run, "--total-timesteps", 192)
    header, *rows = file.read_bytes().decode().splitlines()
    assert header == lines[0].decode()
    steps = [int(row.split(",")[0]) for row in rows]
    kept = [64, 128] if lines[-1] in (file.read_bytes()) else []
    assert steps == [*kept, 192]
    assert all(row.count(",") == header.count(",") for row in rows)


def test_every_file_of_an_archive_is_compared(folder):
    """The zip test alone, against a flip in each of its members."""
    file = folder / "checkpoint.pt"
    content = file.read_bytes()
    (folder / "checkpoint.previous.pt").unlink()
    with zipfile.ZipFile(file) as archive:
        members = [(info.filename, info.header_offset, info.file_size) for info in archive.infolist()]
    for name, offset, size in members:
        if size:
            start = content.index(name.encode(), offset) + len(name)
            with zipfile.ZipFile(file) as archive:
                data = archive.read(name)
            position = content.index(data, start)
            file.write_bytes(content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :])
            with pytest.raises(SystemExit):
                load(folder)
            file.write_bytes(content)
