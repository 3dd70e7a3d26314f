"""Any flags give a sentence or a run: every number has limits, and a flag without effect is refused."""

import contextlib
import functools
import io
import json
import os
import random
import runpy
import subprocess
import sys
import typing
from unittest import mock

import pytest
from conftest import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st

from common.flags import parse_args

SCRIPTS = sorted(path.name for path in ROOT.glob("ppo_lstm*.py"))
TINY = ["--env", "memory", "--num-envs", 2, "--num-steps", 4, "--bptt-length", 2, "--total-timesteps", 16]

TINIEST = 5e-324  # the smallest number above 0
ONE_AND_MORE, ANY, SHARE = (1, 1e12), (-1e12, 1e12), (0, 1)
POSITIVE, NOT_NEGATIVE, RATE = (TINIEST, 1e12), (0, 1e12), (TINIEST, 1)
LIMITS = {
    "seed": (0, 4294967295),
    **dict.fromkeys(["checkpoint_every", "total_timesteps", "num_steps", "bptt_length"], ONE_AND_MORE),
    **dict.fromkeys(["minibatch_size", "update_epochs", "num_clusters", "num_neighbours"], ONE_AND_MORE),
    **dict.fromkeys(["dynamics_minibatch_size", "predictor_minibatch_size"], ONE_AND_MORE),
    "num_envs": (1, 1024),
    "target_return": ANY,
    **dict.fromkeys(["learning_rate", "dynamics_learning_rate", "predictor_learning_rate"], RATE),
    **dict.fromkeys(["gamma", "gae_lambda", "count_decay", "insertion_probability", "distance_rate"], SHARE),
    **dict.fromkeys(["clip_coef", "max_grad_norm"], POSITIVE),
    **dict.fromkeys(["ent_coef", "vf_coef", "ext_coef", "int_coef", "forward_coef", "inverse_coef"], NOT_NEGATIVE),
    "kappa": RATE,
    "cell_size": (0.01, 1e12),
    "ridge": (1e-6, 1e12),
    "hash_bits": (1, 62),
    "memory_size": (2, 100_000),
    "reward_constant": (1e-6, 1e12),
    "kernel_epsilon": (1e-9, 1e12),
    "startup_atoms": NOT_NEGATIVE,
    "min_count": (1e-150, 1e12),
}


class Started(Exception):
    """Everything was accepted: the simulators would start now."""


def parse(script, *words):
    """Reads the flags and does no more, which is faster."""
    with mock.patch.object(sys, "argv", [script, *words]):
        parse_args(args_of(script), "")
    raise Started


def run(script, *words):
    with mock.patch.object(sys, "argv", [script, *words]):
        runpy.run_path(str(ROOT / script), run_name="__main__")


def start(script, *words, how=run):
    """What a script says before it would start the simulators, or None if it says nothing."""
    errors = io.StringIO()
    with (
        mock.patch("common.stop_signal.StopOnSignal", side_effect=Started),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(errors),
    ):
        try:
            how(script, *map(str, words))
        except Started:
            return None
        except SystemExit as end:
            assert end.code == 2, f"{end.code}: {errors.getvalue()}"
            return errors.getvalue()
    raise AssertionError("it ended without a word")


@functools.lru_cache
def args_of(script):
    return runpy.run_path(str(ROOT / script), run_name="flags")["Args"]


@functools.lru_cache
def flags_of(script):
    """{name: its type without rules}: int, float, bool, str, or a tuple of choices"""
    types = {}
    for name, hint in typing.get_type_hints(args_of(script)).items():
        parts = [part for part in typing.get_args(hint) if part is not type(None)]
        if typing.get_origin(hint) is typing.Union:
            hint, parts = parts[0], typing.get_args(parts[0])
        types[name] = tuple(parts) if parts else hint
    return types


def dashed(name):
    return "--" + name.replace("_", "-")


@pytest.fixture(scope="module", autouse=True)
def empty_folder(tmp_path_factory):
    """Runs that were, and ones that are damaged, in the folder where the scripts start."""
    before, here = os.getcwd(), tmp_path_factory.mktemp("refusals")
    os.chdir(here)
    command = [sys.executable, str(ROOT / "ppo_lstm_jci.py"), *map(str, TINY)]
    subprocess.run(command, check=True, capture_output=True)
    (run,) = here.glob("runs/*")
    run.rename("good")
    os.rmdir("runs")
    about = (here / "good" / "args.json").read_text()
    flags = json.loads(about)["args"]
    damaged = {"empty": "", "half": about[:100], "list": "[]", "nothing": '{"args": {}}', "deep": "[" * 100_000}
    for name, value in (("env", "moon"), ("env", None), ("gamma", "high"), ("seed", 1.5), ("cuda", 3), ("gamma", [1])):
        damaged[f"{name}-{value}".replace(" ", "")] = json.dumps({"args": {**flags, name: value}})
    for name, text in damaged.items():
        (here / "damaged" / name).mkdir(parents=True)
        (here / "damaged" / name / "args.json").write_text(text)
    yield here
    os.chdir(before)


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_number_has_limits(script):
    kinds = {name: kind for name, kind in flags_of(script).items() if kind in (int, float)}
    assert kinds.keys() <= LIMITS.keys(), "a flag without limits"
    for name, kind in kinds.items():
        low, high = NOT_NEGATIVE if (script, name) == ("ppo_lstm_recode.py", "kappa") else LIMITS[name]
        below = 0 if low == TINIEST else low - 1 if kind is int else low - 1e-9 * max(1, abs(low))
        outside = [below, high + 1] if kind is int else [below, high * 1.01, "nan", "inf", "-inf"]
        for value in outside:
            sentence = start(script, f"{dashed(name)}={int(value) if kind is int else value}", how=parse)
            assert sentence.startswith(f"{dashed(name)} "), (name, value, sentence)
            assert " must be " in sentence
            assert sentence.count("\n") == 1
        for value in (low, high):
            assert start(script, f"{dashed(name)}={int(value) if kind is int else value}", how=parse) is None


@pytest.mark.parametrize(
    ("script", "words", "sentence"),
    [
        ("ppo_lstm.py", "--env memory --task sparse", "--task has no effect without --env vizdoom: leave one of them"),
        ("ppo_lstm.py", "--task=dense --env habitat", "--task has no effect without --env vizdoom"),
        ("ppo_lstm.py", "--scene house.glb", "--scene has no effect without --env habitat"),
        ("ppo_lstm.py", "--scenes-dir .", "--scenes-dir has no effect without --env habitat"),
        ("ppo_lstm.py", "--env habitat --scene a --scenes-dir .", "--scenes-dir has no effect with --scene"),
        ("ppo_lstm.py", "--env memory --no-stagger-episodes", "effect without --env vizdoom or habitat"),
        ("ppo_lstm.py", "--wandb-entity me", "--wandb-entity has no effect without --track"),
        ("ppo_lstm.py", "--wandb_project_name=me", "--wandb-project-name has no effect without --track"),
        ("ppo_lstm_jci.py", "--resume good --exp-name new", "--exp-name has no effect with --resume"),
        ("ppo_lstm_jci.py", "--no-episodic-clustering --num-clusters 9", "has no effect without --episodic-clustering"),
        ("ppo_lstm_jci.py", "--authors-preprocessing", "has no effect without --encoder dino"),
        ("ppo_lstm_recode.py", "--dino-model x", "--dino-model has no effect without --encoder dino"),
        ("ppo_lstm_ride.py", "--count-key frame --hash-bits 16", "--hash-bits has no effect without --count-key hash"),
        ("ppo_lstm.py", "--exp-name a/b", "--exp-name a/b must be 1 to 100 letters"),
        ("ppo_lstm.py", "--num-envs 1 --num-steps 1", "is a rollout of one frame"),
        ("ppo_lstm.py", "--total-timesteps 10", "less than one rollout: type at least 2048"),
        ("ppo_lstm.py", "--num-steps 6400000000 --total-timesteps 1000000000000", "does not fit into memory"),
        ("ppo_lstm_jci.py", "--resume good --gamma 2", "--gamma 2.0 must be at least 0 and at most 1"),
        ("ppo_lstm_jci.py", "--resume good --total-timesteps 4", "less than one rollout"),
        ("ppo_lstm_jci.py", "--resume good --env vizdoom", "--env cannot change when a run goes on: leave it out"),
    ],
)
def test_what_does_not_fit_together(script, words, sentence):
    said = start(script, *words.split())
    assert sentence in said
    assert said.count("\n") == 1


def test_what_fits_is_accepted(empty_folder):
    assert start("ppo_lstm_jci.py", "--resume", "good", "--total-timesteps", 32) is None
    assert start("ppo_lstm_jci.py", "--task", "dense", "--num-clusters", 9, "--seed", 4294967295) is None
    assert start("ppo_lstm_ride.py", "--env", "memory", "--hash-bits", 62, "--exp-name", "a b-1.5_é") is None


def test_a_damaged_args_json(empty_folder):
    for folder in sorted(empty_folder.glob("damaged/*")):
        for resume in (f"--resume={folder}",), (f"--run-dir={folder}", "--env", "memory"):
            assert "args.json is damaged" in start("ppo_lstm_jci.py", *resume), folder


NUMBERS = ["0", "1", "-1", "2", "3", "64", "512", "0.5", "1e-3", "1e30", "1e-300", "nan", "-inf", "4294967296", "x", ""]
WORDS = ["", "x", "a/b", "..", "é", "\udcff", "-", "--seed", "None", "y" * 300, "/nowhere", "good", "damaged/half"]


@st.composite
def command_lines(draw):
    script = draw(st.sampled_from(SCRIPTS))
    words, kinds = [], flags_of(script)
    for name in draw(st.lists(st.sampled_from(sorted(kinds)), max_size=5)):
        kind = kinds[name]
        if kind is bool:
            words.append(dashed(draw(st.sampled_from([name, f"no_{name}"]))))
            continue
        if isinstance(kind, tuple):
            value = draw(st.sampled_from([*kind, "x"]))
        elif kind is str:
            value = draw(st.sampled_from(WORDS))
        else:
            low, high = LIMITS[name]
            inside = st.integers(int(low), int(min(high, 5000))) if kind is int else st.floats(low, high)
            value = draw(st.one_of(inside, inside, st.sampled_from(NUMBERS), st.integers(), st.floats()))
        words += [f"{dashed(name)}={value}"] if draw(st.booleans()) else [dashed(name), str(value)]
        if value == "dino":
            words.append("--dino-model=/nowhere")  # no network
    return script, words


said, accepted = [], []


@settings(max_examples=400, deadline=None, derandomize=True, database=None)
@given(command_lines())
def test_any_flags_give_a_sentence_or_a_run(command_line):
    script, words = command_line
    sentence = start(script, *words)
    if sentence is None:
        accepted.append(words)
    else:
        assert sentence.strip()
        assert "Traceback" not in sentence
        said.append(sentence)


def test_both_happened_often():
    assert len(said) >= 50
    assert len(accepted) >= 50
    assert len(said) + len(accepted) >= 300


@pytest.mark.parametrize("script", SCRIPTS)
def test_real_runs_with_random_flags(script, tmp_path):
    """Whole runs, as processes, with flags that are drawn from everything that is allowed."""
    draw = random.Random(script)
    for _ in range(3):
        words = list(TINY)
        for name, kind in draw.sample(sorted(flags_of(script).items()), 6):
            if dashed(name) in TINY or name in ("task", "track", "resume", "run_dir", "exp_name"):
                continue
            if isinstance(kind, tuple):
                words += [dashed(name), draw.choice([choice for choice in kind if choice != "dino"])]
            elif kind is bool:
                words += [dashed(draw.choice([name, f"no_{name}"]))]
            elif kind is not str:
                low, high = LIMITS[name]
                value = draw.randint(low, int(min(high, 100))) if kind is int else draw.uniform(low, min(high, 1))
                words += [dashed(name), value]
        command = [sys.executable, str(ROOT / script), *map(str, words)]
        process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert "Traceback" not in process.stderr, (words, process.stderr[-2000:])
        if process.returncode == 2:
            assert "has no effect" in process.stderr, (words, process.stderr[-2000:])
        else:
            assert process.returncode == 0, (words, process.stderr[-2000:])
