"""Keeps the learner the same in all scripts: what is neither docstring nor between `# ---- method: SLOT ----` fences.

Usage:
    python tools/sync_core.py            # rewrite the other scripts' core from ppo_lstm.py, keeping their methods
    python tools/sync_core.py --check    # change nothing; exit with 1 and show the difference if a core has drifted
"""

import argparse
import difflib
import re
import sys
from pathlib import Path

DOCSTRING = re.compile(r'\A""".*?"""\n', re.DOTALL)
SLOT = re.compile(r"^ *# ---- method: (\w+) ----\n(.*?)^ *# ---- end method ----\n", re.DOTALL | re.MULTILINE)


def split(text, name):
    """A script's docstring and the contents of its slots, by slot name and in order."""
    docstring = DOCSTRING.match(text)
    slots = {match[1]: match[2] for match in SLOT.finditer(text)}
    fences = len(re.findall(r"# ---- (?:method: \w+|end method) ----", DOCSTRING.sub("", text)))
    if docstring is None or fences != 2 * len(slots):
        sys.exit(f"{name}: it needs a docstring, and every slot once, closed by '# ---- end method ----'.")
    return docstring[0], slots


def merge(core, docstring, slots):
    """The core with another script's docstring and methods in it."""

    def fill(match):
        start, end = match.span(2)
        return match[0][: start - match.start()] + slots[match[1]] + match[0][end - match.start() :]

    return docstring + SLOT.sub(fill, DOCSTRING.sub("", core))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only compare")
    check = parser.parse_args().check
    root = Path(__file__).resolve().parents[1]
    core = (root / "ppo_lstm.py").read_text()
    core_slots = split(core, "ppo_lstm.py")[1]
    drifted = False
    for path in sorted(root.glob("ppo_lstm_*.py")):
        text = path.read_text()
        docstring, slots = split(text, path.name)
        if list(slots) != list(core_slots):
            sys.exit(f"{path.name}: its slots must be {', '.join(core_slots)}, not {', '.join(slots)}.")
        synced = merge(core, docstring, slots)
        if synced == text:
            continue
        drifted = True
        if check:
            lines = text.splitlines(), synced.splitlines()
            print("\n".join(difflib.unified_diff(*lines, path.name, "ppo_lstm.py", lineterm="", n=1)))
        else:
            path.write_text(synced)
            print(f"{path.name}: core rewritten")
    if check and drifted:
        sys.exit(1)


if __name__ == "__main__":
    main()
