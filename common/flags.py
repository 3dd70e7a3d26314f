"""Flags from the command line, each checked before anything starts: one sentence to stderr, and exit code 2.

A flag's rules stand in its type:

    gamma: Share = 0.99                                         # 0 to 1
    hash_bits: Annotated[int, Within(1, 62)] = 16
    task: Annotated[str, OnlyWith(env="vizdoom")] = "sparse"    # refused if it is typed without --env vizdoom
"""

import argparse
import contextlib
import dataclasses
import importlib.util
import io
import json
import os
import re
import sys
from pathlib import Path
from typing import Annotated, Optional, get_args, get_type_hints

import tyro

LARGEST = 1e12  # of all numbers: what is larger is a slip, and would overflow
FIXED_FLAGS = ("env", "task", "scene", "seed", "encoder", "hash_bits")  # of a run, for good


@dataclasses.dataclass(frozen=True)
class Within:
    """Finite numbers from `least` to `most`, or larger than `above`."""

    least: Optional[float] = None
    most: float = LARGEST
    above: Optional[float] = None

    def allows(self, value):
        is_low = (self.least is not None and value < self.least) or (self.above is not None and value <= self.above)
        return -LARGEST <= value <= self.most and not is_low  # never true of NaN

    def demand(self, value):
        limits = [] if self.least is None else [f"at least {self.least:g}"]
        limits += [] if self.above is None else [f"above {self.above:g}"]
        limits += [f"at most {self.most:.12g}"] if self.most < LARGEST or not value <= self.most else []
        return " and ".join(limits or ["a finite number"])


class FolderName:
    def allows(self, value):
        return re.fullmatch(r"[\w .+=-]{1,100}", value) is not None

    def demand(self, value):
        return "1 to 100 letters, digits, spaces and . + = - _"


class OnlyWith:
    """The flag does something only with these values of others, OnlyWith(env="vizdoom"), or with any of several."""

    def __init__(self, **wanted):
        self.wanted = {name: value if isinstance(value, tuple) else (value,) for name, value in wanted.items()}


Count = Annotated[int, Within(least=1)]
Finite = Annotated[float, Within()]
Positive = Annotated[float, Within(above=0)]
NotNegative = Annotated[float, Within(least=0)]
Share = Annotated[float, Within(0, 1)]
LearningRate = Annotated[float, Within(above=0, most=1)]
Seed = Annotated[int, Within(0, 2**32 - 1)]
Name = Annotated[str, FolderName(), OnlyWith(resume=None)]


def refuse(sentence):
    print(sentence, file=sys.stderr)
    raise SystemExit(2)


def parse_args(args_class, description):
    """The flags; when a run goes on (--resume, --run-dir) those it had, with what is typed instead."""
    folder_parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, usage="%(prog)s --resume FOLDER")
    folder_parser.add_argument("--resume")
    folder_parser.add_argument("--run-dir", "--run_dir")
    folders = folder_parser.parse_known_args()[0]
    if folders.resume and folders.run_dir:
        refuse("--resume and --run-dir both name the run's folder: give one of them.")
    folder = folders.resume or folders.run_dir or ""
    file = Path(folder) / "args.json"
    if folders.resume is not None and not os.path.isfile(file):
        refuse(f"--resume {folder}: no args.json in it; give the folder of a run, such as runs/NAME.")
    if folder and os.path.isfile(file):
        saved = load_args(args_class, file)
        args = tyro.cli(args_class, default=saved, description=description)
        for name in FIXED_FLAGS:
            if getattr(args, name, None) != getattr(saved, name, None):
                value = getattr(saved, name)
                refuse(f"{flag(name)} cannot change when a run goes on: leave it out ({value} in {folder}).")
    else:
        args = tyro.cli(args_class, description=description)
    check_rules(args, typed_names())
    if args.track and importlib.util.find_spec("wandb") is None:
        refuse("--track needs the package wandb, which is not installed: type pip install wandb.")
    return args


def load_args(args_class, file):
    """The flags in a run's args.json, read as if they had been typed."""
    try:
        saved = json.loads(file.read_text())["args"]
        names = {field.name for field in dataclasses.fields(args_class)} & saved.keys() - {"resume", "run_dir"}
        words = [flag(n, saved[n]) if isinstance(saved[n], bool) else f"{flag(n)}={saved[n]}" for n in names]
        if "env" not in names:
            raise KeyError("env")
        with contextlib.redirect_stderr(io.StringIO()):  # tyro would show its own errors as well
            return tyro.cli(args_class, args=words)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, SystemExit):
        refuse(f"{file} is damaged or another program's: start a new run, in another folder.")


def check_rules(args, typed):
    """Refuses values outside the rules of their flags, and typed flags that would have no effect."""
    hints = get_type_hints(type(args), include_extras=True)
    for name, value in vars(args).items():
        for rule in rules(hints[name]):
            if isinstance(rule, OnlyWith) and name in typed:
                for other, wanted in rule.wanted.items():
                    if getattr(args, other) not in wanted:
                        relation = "without" if wanted[0] else "with"
                        values = flag(other, *wanted) if wanted[0] else flag(other)
                        refuse(f"{flag(name)} has no effect {relation} {values}: leave one of them out.")
            elif not isinstance(rule, OnlyWith) and value is not None and not rule.allows(value):
                refuse(f"{flag(name)} {value} must be {rule.demand(value)}.")


def rules(hint):
    """The rules in a type, also those inside of Optional[...]."""
    for part in get_args(hint):
        if isinstance(part, (Within, FolderName, OnlyWith)):
            yield part
        else:
            yield from rules(part)


def typed_names():
    """The names of the flags on the command line."""
    words = {word[2:].split("=")[0].replace("-", "_") for word in sys.argv[1:] if word.startswith("--")}
    return words | {word[len("no_") :] for word in words if word.startswith("no_")}


def flag(name, *values):
    """How it is typed: flag("env", "vizdoom") is --env vizdoom, flag("cuda", False) --no-cuda."""
    name = name.replace("_", "-")
    if values in ((True,), (False,)):
        return f"--{name}" if values[0] else f"--no-{name}"
    return " ".join([f"--{name}", " or ".join(map(str, values))]).strip()


def check_memory(num_bytes, sentence):
    """Refuses what cannot fit into this machine."""
    if num_bytes > os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"):
        refuse(sentence)
