"""A number that is not finite ends every run in a sentence that names the place, before anything is saved."""

import numpy as np
import pytest
import torch
from conftest import ROOT

import common.encoders
import common.memory_corridor
from common.checkpoints import not_finite, require_finite

SCRIPTS = sorted(path.name for path in ROOT.glob("ppo_lstm*.py"))
SMALL = ["--env", "memory", "--num-envs", 4, "--num-steps", 16, "--minibatch-size", 32, "--update-epochs", 1]
SMALL += ["--checkpoint-every", 1, "--total-timesteps", 64 * 3]  # a checkpoint and two minibatches per iteration


def ends_with(place, train_here, script, folder, min_step):
    """The run ends for this reason, and the newest checkpoint is finite and of the iteration before."""
    with pytest.raises(SystemExit, match=rf"^\nThe run ends: {place}.* is not finite.*--resume it") as end:
        train_here(script, *SMALL)
    assert len(str(end.value).strip().splitlines()) == 1
    (run,) = (folder / "runs").iterdir()
    checkpoint = torch.load(run / "checkpoint.pt", weights_only=True)
    assert checkpoint["global_step"] >= min_step
    assert not_finite(checkpoint) is None
    assert not (run / "checkpoint.new.pt").exists()
    return run


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_reward(script, train_here, tmp_path, monkeypatch):
    step, calls = common.memory_corridor.MemoryCorridor.step, []

    def poisoned(self, actions):
        frames, rewards, *rest = step(self, actions)
        calls.append(0)
        if len(calls) == 2 * 16 - 5:  # in the second rollout
            rewards[2] = np.nan
        return frames, rewards, *rest

    monkeypatch.setattr(common.memory_corridor.MemoryCorridor, "step", poisoned)
    run = ends_with("reward", train_here, script, tmp_path, 64)
    monkeypatch.setattr(common.memory_corridor.MemoryCorridor, "step", step)
    assert train_here(script, "--resume", run, "--total-timesteps", 128)["global_step"] == 128, "it goes on from there"


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_gradient_of_the_policy(script, train_here, tmp_path, monkeypatch):
    clip, calls = torch.nn.utils.clip_grad_norm_, []

    def poisoned(parameters, max_norm):
        parameters = list(parameters)
        calls.append(0)
        if len(calls) == 2 * 2:  # the last minibatch of the second iteration: no loss after it would show it
            parameters[-1].grad[0] = np.inf
        return clip(parameters, max_norm)

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", poisoned)
    ends_with("grad_norm", train_here, script, tmp_path, 64)


OPTIMIZERS = {
    "ppo_lstm_rnd.py": "predictor_loss",
    "ppo_lstm_e3b.py": "inverse_loss",
    "ppo_lstm_icm.py": "dynamics_loss",
    "ppo_lstm_ride.py": "dynamics_loss",
}


@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize("script", OPTIMIZERS)
def test_a_gradient_of_a_method(script, is_last, train_here, tmp_path, monkeypatch):
    """After the last minibatch no loss shows it any more: then it is found in what would be saved."""
    step, calls = torch.optim.Adam.step, []

    def poisoned(self):
        if not self.defaults["fused"]:  # the policy's is
            calls.append(0)
            if len(calls) == (2 if is_last else 1):  # of two in an iteration
                self.param_groups[0]["params"][0].grad[0] = np.nan
        step(self)

    monkeypatch.setattr(torch.optim.Adam, "step", poisoned)
    name = script[len("ppo_lstm_") : -len(".py")].replace("e3b", "dynamics").replace("icm", "dynamics")
    place = rf"{name.replace('ride', 'dynamics')}\.\w+" if is_last else OPTIMIZERS[script]
    sizes = {"rnd": "--predictor-minibatch-size"}.get(name, "--dynamics-minibatch-size")
    monkeypatch.setitem(globals(), "SMALL", [*SMALL, sizes, 32])
    ends_with(place, train_here, script, tmp_path, 0)


@pytest.mark.parametrize("script", ["ppo_lstm_jci.py", "ppo_lstm_recode.py"])
def test_an_embedding(script, train_here, tmp_path, monkeypatch):
    forward, calls = common.encoders.FrozenNetwork.forward, []

    def poisoned(self, images):
        calls.append(0)
        embeddings = forward(self, images)
        if len(calls) == 2:
            embeddings[7, 3] = -np.inf
        return embeddings

    monkeypatch.setattr(common.encoders.FrozenNetwork, "forward", poisoned)
    ends_with("embeddings", train_here, script, tmp_path, 64)


@pytest.mark.parametrize("script", SCRIPTS)
def test_weights_in_a_checkpoint(script, train_here, tmp_path, capsys):
    train_here(script, *SMALL, "--total-timesteps", 128)
    (run,) = (tmp_path / "runs").iterdir()
    current, previous = run / "checkpoint.pt", run / "checkpoint.previous.pt"
    good = previous.read_bytes()
    checkpoint = torch.load(current, weights_only=True)
    checkpoint["agent"]["actor.0.weight"][3, 4] = np.nan
    torch.save(checkpoint, current)

    # the one before is taken, and is not lost when the next one is saved
    assert train_here(script, "--resume", run, "--total-timesteps", 64)["global_step"] == 64
    assert "checkpoint.pt is damaged (ValueError: agent.actor.0.weight is not finite)" in capsys.readouterr().err
    assert current.read_bytes() == good

    # without a good one nothing is touched
    for file in (current, previous):
        torch.save(checkpoint, file)
    before = {file.name: file.read_bytes() for file in run.iterdir()}
    with pytest.raises(SystemExit, match="no readable checkpoint in it; start again without --resume"):
        train_here(script, "--resume", run)
    assert {file.name: file.read_bytes() for file in run.iterdir()} == before


def test_where_it_is():
    values = {"a": [1.0, {"b": torch.ones(2)}], "c": torch.arange(3), "d": None, "e": "nan", "f": 10**400}
    assert not_finite(values) is None
    require_finite(**values)
    assert not_finite({**values, "g": (1, [np.nan])}) == "g.1.0"
    assert not_finite({"a": [1.0, {"b": torch.tensor([1.0, -np.inf])}]}) == "a.1.b"
    assert not_finite({"a": torch.tensor([float("inf")], dtype=torch.float16)}) == "a"
