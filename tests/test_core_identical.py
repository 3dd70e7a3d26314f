"""The learner is the same in every script, and the difference between two scripts is the method."""

import difflib
import subprocess
import sys

import pytest
from conftest import ROOT

from tools import sync_core

CORE = (ROOT / "ppo_lstm.py").read_text()
METHODS = sorted(ROOT.glob("ppo_lstm_*.py"))


def without_docstring(text):
    return sync_core.DOCSTRING.sub("", text).splitlines()


def check():
    return subprocess.run([sys.executable, ROOT / "tools" / "sync_core.py", "--check"], capture_output=True, text=True)


def test_cores_are_identical():
    result = check()
    assert result.returncode == 0, result.stdout + result.stderr
    assert METHODS, "no method scripts found"


@pytest.mark.parametrize("path", METHODS, ids=lambda path: path.stem)
def test_the_diff_is_the_method(path):
    core, script = without_docstring(CORE), without_docstring(path.read_text())
    opcodes = [
        op for op in difflib.SequenceMatcher(None, core, script, autojunk=False).get_opcodes() if op[0] != "equal"
    ]
    assert {op[0] for op in opcodes} == {"insert"}, "every line of the core survives, so the difference only adds lines"
    assert len(opcodes) <= 8, "one hunk for each slot"
    assert len(core) / len(script) >= 0.75
    assert len(path.read_text().splitlines()) <= 560


def test_core_has_empty_slots():
    assert set(sync_core.split(CORE, "ppo_lstm.py")[1].values()) == {""}


def test_a_changed_token_in_a_core_is_found_and_mended():
    path = METHODS[0]
    text = path.read_text()
    docstring, slots = sync_core.split(text, path.name)
    drifted = text.replace("gamma * next_values[t]", "gamma * values[t]")
    assert drifted != text
    assert (
        sync_core.merge(CORE, *sync_core.split(drifted, path.name)) == text == sync_core.merge(CORE, docstring, slots)
    )


def test_a_missing_fence_is_refused():
    with pytest.raises(SystemExit, match="every slot once"):
        sync_core.split(CORE.replace("# ---- end method ----", "", 1), "broken.py")
