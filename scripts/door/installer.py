"""venv and pip as programs: run them, show what they are at, and turn their failures into one sentence."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from errors import DoorError
from say import Progress

NO_NETWORK = re.compile(
    r"NewConnectionError|ConnectionError|ConnectTimeout|Failed to establish a new connection|ProxyError"
    r"|Temporary failure in name resolution|Max retries exceeded|Network is unreachable|Retrying \("
    r"|ReadTimeoutError|ProtocolError"
)
USES = {"launcher": "the launcher", "train": "training", "test": "tests"}
DOING = re.compile(r"^\s*(Collecting|Downloading|Building|Using cached)\b")


def create(path: Path, beat: Callable[[], None]) -> None:
    """An empty environment with pip at `path`. Raises DoorError when this Python can make none."""
    with Progress(f"making {path} with Python {sys.version.split()[0]}", beat):
        commands: list[list[str | Path]] = []
        if importlib.util.find_spec("ensurepip"):
            commands.append([sys.executable, "-m", "venv", path])
        if importlib.util.find_spec("virtualenv"):
            commands.append([sys.executable, "-m", "virtualenv", "--quiet", path])
        elif tool := shutil.which("virtualenv"):
            commands.append([tool, "--quiet", "--python", sys.executable, path])
        for command in commands:
            if subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode == 0:
                return
    raise DoorError(
        f"{sys.executable} cannot make a virtual environment: install python3-venv (Debian, Ubuntu) or "
        "virtualenv, or name another Python in HARNESS_PYTHON."
    )


def install(python: Path, wanted: dict[str, list[str]], beat: Callable[[], None]) -> None:
    """Let pip install all requirements in one resolution. Raises DoorError with pip's reason."""
    asked = sorted({requirement for part in wanted.values() for requirement in part})
    command: list[str | Path] = [
        python,
        "-I",
        "-m",
        "pip",
        "install",
        "--disable-pip-version-check",
        "--no-input",
    ]
    command += ["--progress-bar", "off", "--retries", "2", *_users_arguments(), *asked]
    uses = ", ".join(USES.get(part, part) for part in wanted)
    with Progress(f"installing {len(asked)} packages and what they need, for {uses}", beat) as progress:
        log = _run(command, progress)
        if log is not None:
            raise DoorError(_reason(log))


def _users_arguments() -> list[str]:
    text = os.environ.get("HARNESS_PIP_ARGS", "")
    try:
        return shlex.split(text)
    except ValueError as error:
        raise DoorError(f"HARNESS_PIP_ARGS={text} cannot be read as arguments: {error}.") from error


def _run(command: list[str | Path], progress: Progress) -> list[str] | None:
    """None when it worked, else all that pip said."""
    log: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            for line in process.stdout or ():
                log.append(line.rstrip())
                progress.detail = _doing(line) or progress.detail
        except BaseException:
            process.terminate()
            raise
    return log if process.returncode else None


def _doing(line: str) -> str:
    if line.startswith("Installing collected packages:"):
        return f"unpacking {line.count(',') + 1} packages"
    return line.strip()[:100] if DOING.match(line) else ""


def _reason(log: list[str]) -> str:
    errors = [line for line in log if line.startswith("ERROR")]
    last = (errors or log or ["pip said nothing"])[-1].removeprefix("ERROR: ")
    if any("No space left on device" in line for line in log):
        return (
            f"the disk is full: pip could not install ({last}); HARNESS_VENV names another place for .venv."
        )
    if any(NO_NETWORK.search(line) for line in log):
        return (
            "no package index can be reached from here; run this once where there is network, or give pip "
            "a mirror or a folder of wheels: HARNESS_PIP_ARGS='--index-url URL' or "
            "'--no-index --find-links FOLDER'."
        )
    return f"pip could not install what pyproject.toml asks: {last}"
