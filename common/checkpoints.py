"""Checkpoints that survive a crash, a full disk and damage, and hold nothing that is not finite."""

import math
import os
import random
import sys
import zipfile
from pathlib import Path

import numpy as np
import torch

NAMES = ("checkpoint.new.pt", "checkpoint.pt", "checkpoint.previous.pt")  # the first stays behind in a crash


class Checkpoints:
    """A checkpoint holds the state_dict() of every part of `saved`, a dictionary, and all random states."""

    def __init__(self, folder, saved):
        self.folder, self.saved = Path(folder), {**saved, "random_states": RandomStates()}
        self.last_step = None  # of checkpoint.pt, once it is known to be good

    def save(self, global_step, is_last):
        """Replaces checkpoint.pt in one step and keeps the one before as checkpoint.previous.pt.

        Where that fails the run goes on without, unless this is the last chance.
        """
        state = {name: part.state_dict() for name, part in self.saved.items()}
        require_finite(**state)
        new, current, previous = (self.folder / name for name in NAMES)
        try:
            write(new, {"global_step": global_step, **state})
            if current.exists():
                os.replace(current, previous)
            os.replace(new, current)
        except (OSError, RuntimeError) as error:
            problem = f"{current} could not be written at step {global_step:,} ({reason(error)})"
            if is_last:
                raise SystemExit(f"\n{problem}: what came after step {self.last_step or 0:,} is lost.") from error
            print(f"\n{problem}: training goes on, and the next checkpoint is tried as usual.", file=sys.stderr)
        else:
            self.last_step = global_step

    def load(self, device, is_expected):
        """Brings every part back from the newest checkpoint that is whole, makes it checkpoint.pt, returns its step.

        Where there is none, and none `is_expected`, the run starts at step 0.
        """
        if not is_expected and not any((self.folder / name).exists() for name in NAMES):
            return 0
        own = {name: part.state_dict() for name, part in self.saved.items()}
        for file in (self.folder / name for name in NAMES):
            if not file.exists():
                continue
            try:
                state = read(file, device)
                self.last_step = state.pop("global_step")
                if state.keys() != own.keys():
                    raise SystemExit(f"--resume {self.folder}: another script began this run; go on with that one.")
                for name, part in self.saved.items():
                    check_form(state[name], own[name], name)
                    load_part(part, state[name])
            except Exception as error:  # whatever torch, zipfile and the parts raise for content that is not theirs
                print(f"{file} is damaged ({reason(error)}); trying the one before.", file=sys.stderr)
            else:
                try:
                    self._make_current(file)
                except OSError as error:
                    raise SystemExit(f"--resume {self.folder}: it cannot be written ({reason(error)}).") from error
                return self.last_step
        raise SystemExit(f"--resume {self.folder}: no readable checkpoint in it; start again without --resume.")

    def save_model(self, agent):
        """The weights alone, as agent.pt."""
        file = self.folder / "agent.pt"
        try:
            write(file, agent.state_dict())
        except (OSError, RuntimeError) as error:
            raise SystemExit(
                f"{file} could not be written ({reason(error)}); checkpoint.pt has the weights."
            ) from error

    def _make_current(self, file):
        _, current, previous = (self.folder / name for name in NAMES)
        if file == previous and current.exists():  # what is damaged must not be rotated over what is good
            os.replace(current, self.folder / "checkpoint.damaged.pt")
        if file != current:
            os.replace(file, current)


def write(file, state):
    """Leaves a whole file, safely on the disk, or none."""
    try:
        with file.open("wb") as stream:
            torch.save(state, stream)
            stream.flush()
            os.fsync(stream.fileno())
    except BaseException:
        file.unlink(missing_ok=True)
        raise


def read(file, device):
    """What is in a checkpoint; its checksums are compared, nothing in it is executed, and its numbers are finite."""
    with zipfile.ZipFile(file) as archive:
        member = archive.testzip()
    if member is not None:
        raise ValueError(f"{member} does not match its checksum")
    state = torch.load(file, map_location=device, weights_only=True)
    if not isinstance(state, dict) or type(state.get("global_step")) is not int or state["global_step"] < 0:
        raise ValueError("it has no global_step")
    place = not_finite(state)
    if place is not None:
        raise ValueError(f"{place} is not finite")
    return state


def read_newest(folder):
    """What the newest checkpoint that is whole holds; None if there is none."""
    for file in (Path(folder) / name for name in NAMES):
        if file.exists():
            try:
                return read(file, "cpu")
            except Exception as error:  # whatever torch and zipfile raise for content that is not theirs
                print(f"{file} is damaged ({reason(error)}); trying the one before.", file=sys.stderr)


def check_form(state, own, place=""):
    """Raises a ValueError where `state` has other types, keys or shapes than the part's `own` state_dict().

    Where a part is empty at the start there is nothing to compare with. A tensor of no rows can grow; the tensors that
    grow in a dictionary have equally many.
    """
    if isinstance(own, torch.Tensor):
        if not isinstance(state, torch.Tensor) or state.dtype != own.dtype or state.ndim != own.ndim:
            raise ValueError(f"{place} has another type")
        if state.shape != own.shape and not (grows(own) and state.shape[1:] == own.shape[1:]):
            raise ValueError(f"{place} has another size")
    elif own is not None and type(state) is not type(own):
        raise ValueError(f"{place} has another type")
    elif isinstance(own, dict) and own:
        if state.keys() != own.keys():
            raise ValueError(f"{place} has other entries")
        for name in own:
            check_form(state[name], own[name], f"{place}.{name}".strip("."))
        if len({len(state[name]) for name in own if grows(own[name])}) > 1:
            raise ValueError(f"{place} has columns of different lengths")


def grows(own):
    return isinstance(own, torch.Tensor) and own.ndim > 0 and len(own) == 0


def load_part(part, state):
    groups = getattr(part, "param_groups", [])  # an optimizer has some
    rates = [group["lr"] for group in groups]
    part.load_state_dict(state)
    for group, rate in zip(getattr(part, "param_groups", []), rates):
        group["lr"] = rate  # the flag's: it can be typed again
        for parameter in group["params"]:
            if any(moment.ndim and moment.shape != parameter.shape for moment in part.state[parameter].values()):
                raise ValueError("a moment of the optimizer has another size")


def not_finite(value, place=""):
    """Where there is a number that is not finite in a tensor, a float, or any nesting of them; None if nowhere."""
    if isinstance(value, (dict, list, tuple)):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        places = (not_finite(item, f"{place}.{name}".strip(".")) for name, item in items)
        return next((found for found in places if found is not None), None)
    if isinstance(value, torch.Tensor):
        is_finite = not value.is_floating_point() or bool(value.isfinite().all())
    else:
        is_finite = not isinstance(value, float) or math.isfinite(value)
    return None if is_finite else place


def require_finite(**values):
    """Ends the run before anything is saved if a number in what is given is not finite."""
    place = not_finite(values)
    if place is not None:
        raise SystemExit(
            f"\nThe run ends: {place} is not finite (NaN or infinity). The last checkpoint is from before; "
            "--resume it with, for example, a smaller learning rate."
        )


def reason(error):
    if isinstance(error, RuntimeError) and isinstance(error.__context__, OSError):  # torch.save's, of the file's
        error = error.__context__
    lines = str(getattr(error, "strerror", None) or error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


class RandomStates:
    """All random states of a process as one part of a checkpoint, so that a resumed run draws on where it stopped."""

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
