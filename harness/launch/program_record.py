"""What a run's record keeps of the user's own training: its program, its Python, and the state of its repository."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

from harness.experiment.exercises import Experiment, Own
from harness.launch.argv import shown
from harness.launch.job import Job
from harness.launch.training_python import ask_python
from harness.run import Program

_LIMIT_S = 20.0


def program_of(asked: Experiment, job: Job) -> Program | None:
    """The program of a training of the user's own; None: it is an exercise."""
    if not isinstance(asked, Own):
        return None
    script = Path(asked.start_in, asked.program)
    is_file = asked.form == "script" or "/" in asked.program
    return Program(
        script=str(script) if is_file else asked.program,
        arguments=list(asked.arguments),
        python=shown(job.training_python),
        git=git_state(script.parent if is_file and script.parent.is_dir() else Path(asked.start_in)),
    )


def versions_of(asked: Experiment, ours: dict[str, str]) -> dict[str, str]:
    """The versions of what trains, by package; empty where nobody here can ask for them, as in a container."""
    if not isinstance(asked, Own) or asked.python is None:
        return ours
    found = ask_python(asked.python)
    return {} if isinstance(found, str) else found.versions


def git_state(folder: Path) -> dict[str, str | bool | None]:
    """The repository that holds the folder: its top, commit and branch, whether tracked files differ from the commit,
    and a checksum of the differences. None: git does not say."""
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
    differences = _git(folder, "diff", "HEAD") if changes else None
    return {
        "repository": _git(folder, "rev-parse", "--show-toplevel"),
        "commit": _git(folder, "rev-parse", "HEAD"),
        "branch": _git(folder, "rev-parse", "--abbrev-ref", "HEAD"),
        "dirty": None if changes is None else bool(changes),
        "differences": hashlib.sha256(differences.encode()).hexdigest()[:16] if differences else None,
    }


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", "-C", os.fspath(folder), *arguments],
            capture_output=True,
            check=False,
            timeout=_LIMIT_S,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace").strip() if done.returncode == 0 else None
