"""How long the runs of the course take on this machine, as scripts/documents/minutes.yaml has them. Begin in a quiet
half hour: each is started as a student starts it, and later lessons find the runs of earlier ones.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from harness.cli.study.check import CANNOT_TELL
from harness.common.paths import ROOT
from harness.study.lessons import lesson_names, load_lesson

ATTEMPTS = 5  # of the race: one for each of its losses


def commands() -> dict[str, list[str]]:
    """What is typed, by its name in minutes.yaml."""
    lessons = [load_lesson(name) for name in lesson_names()]
    shown = [one.name for one in lessons if one.ends == "completed" and not one.needs_gpus]
    plain = {"e0": ["-e", "0"], "e1": ["-e", "1"]}
    return plain | {name: ["lesson", name, "--run"] for name in shown} | {"race": ["lesson", "race"]}


def seconds(words: list[str], environ: dict[str, str]) -> float:
    """Of a command. Raises SystemExit: it failed; that the race cannot tell is no failure."""
    begin = time.monotonic()
    argv = [sys.executable, "-m", "harness", *words]
    code = subprocess.run(argv, cwd=ROOT, env=environ, check=False, capture_output=True).returncode
    if code not in (0, CANNOT_TELL):
        raise SystemExit(f"{' '.join(words)}: status {code}")
    return time.monotonic() - begin


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as runs:
        environ = {**os.environ, "HARNESS_RUNS": runs, "HARNESS_SITE": "local", "OMP_NUM_THREADS": "1"}
        taken = {name: seconds(words, environ) for name, words in commands().items()}
        solved = str(ROOT / "exercises" / "exercise_1_DDP" / "race_solved.py")
        taken["race"] += ATTEMPTS * seconds(["lesson", "race", solved], environ)
    for name in sorted(taken):
        print(f"{name}: {taken[name]:.0f}")
