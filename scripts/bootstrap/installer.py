"""uv, or venv and pip, as programs: run them, show their progress, and turn their failures into one sentence."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from itertools import dropwhile
from pathlib import Path

from say import BootstrapError, progress
from uv import uv_for

NO_NETWORK = re.compile(
    r"NewConnectionError|ConnectionError|ConnectTimeout|Failed to establish a new connection|ProxyError"
    r"|Temporary failure in name resolution|Max retries exceeded|Network is unreachable|Retrying \("
    r"|ReadTimeoutError|ProtocolError"
    r"|Failed to fetch|error sending request|Failed to download"  # uv's
)
USES = {"launcher": "the launcher", "train": "training", "test": "tests", "tables": "Parquet"}
DOING = re.compile(r"^\s*(Collecting|Downloading|Building|Using cached|Installing collected packages)\b")
REFUSED_BY_UV = re.compile(r"error: (unexpected argument|unexpected value|invalid value)")
# As pip: the best version of all indexes, and compiled: users who may only read cannot store compiled files.
LIKE_PIP = ("--index-strategy", "unsafe-best-match", "--compile-bytecode", "--no-progress", "--color", "never")
PIP_QUIETLY = ("--disable-pip-version-check", "--no-input", "--progress-bar", "off", "--retries", "2")


def create(path: Path, beat: Callable[[], None]) -> None:
    """Make an empty environment at `path`, with pip unless uv makes it. Raises BootstrapError: this Python cannot."""
    commands: list[list[str | Path]] = []
    if uv := uv_for(_users_arguments()):
        own = ["--quiet", "--no-project", "--allow-existing", "--python", sys.executable]
        commands.append([uv.program, "venv", *own, path])
    if importlib.util.find_spec("ensurepip"):
        commands.append([sys.executable, "-m", "venv", path])
    if importlib.util.find_spec("virtualenv"):
        commands.append([sys.executable, "-m", "virtualenv", "--quiet", path])
    elif tool := shutil.which("virtualenv"):
        commands.append([tool, "--quiet", "--python", sys.executable, path])
    with progress(f"making {path} with Python {sys.version.split()[0]}", beat):
        for command in commands:
            if subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode == 0:
                return
        raise BootstrapError(
            f"{sys.executable} cannot make a virtual environment: install python3-venv (Debian, Ubuntu) or "
            "virtualenv, or name another Python in HARNESS_PYTHON."
        )


def install(python: Path, wanted: dict[str, list[str]], beat: Callable[[], None]) -> None:
    """Let uv or pip install all requirements in one resolution. Raises BootstrapError: it failed, and why."""
    requirements = sorted({requirement for part in wanted.values() for requirement in part})
    arguments = _users_arguments()
    uses = ", ".join(USES.get(part, part) for part in wanted)
    with progress(f"installing {len(requirements)} packages and what they need, for {uses}", beat) as doing:
        if uv := uv_for(arguments):
            command: list[str | Path] = [uv.program, "pip", "install", "--python", python, *LIKE_PIP]
            log = _run([*command, *uv.options, *requirements], doing, uv.environment)
            if not log:
                return
            if not any(map(REFUSED_BY_UV.match, log)):
                raise BootstrapError(_reason(log, "uv"))
        log = _run([*_pip(python), "install", *PIP_QUIETLY, *arguments, *requirements], doing, {})
        if log:
            raise BootstrapError(_reason(log, "pip"))


def _pip(python: Path) -> list[str | Path]:
    """The start of a pip command. Raises BootstrapError: uv made the environment, and pip cannot be added."""
    start: list[str | Path] = [python, "-I", "-m"]
    if not any(python.parents[1].glob("lib/python3*/site-packages/pip")):
        made = subprocess.run([*start, "ensurepip"], check=False, capture_output=True)
        if made.returncode:
            raise BootstrapError(
                f"{python.parents[1]} was made with uv and has no pip: put uv on PATH, with no option in "
                "HARNESS_PIP_ARGS that only pip has, or remove that folder: then it is made again."
            )
    return [*start, "pip"]


def _users_arguments() -> list[str]:
    text = os.environ.get("HARNESS_PIP_ARGS", "")
    try:
        return shlex.split(text)
    except ValueError as error:
        raise BootstrapError(f"HARNESS_PIP_ARGS={text} cannot be read as arguments: {error}.") from error


def _run(command: list[str | Path], doing: list[str], settings: dict[str, str]) -> list[str]:
    """The output of a program that failed, nothing of one that did not; `doing` gets lines that say what it does."""
    log: list[str] = []
    environment = {**os.environ, **settings}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        try:
            for line in process.stdout or ():
                log.append(line.rstrip())
                if DOING.match(line):
                    doing.append(line.strip()[:100])
        except BaseException:
            process.terminate()
            raise
    return (log or ["it printed nothing"]) if process.returncode else []


def _reason(log: list[str], program: str) -> str:
    """Why it failed: pip's last error line, or uv's output from its error on, which has a line for each cause."""
    errors = [line for line in log if line.startswith("ERROR")][-1:]
    causes = list(dropwhile(lambda line: not re.match(r"error: |\s+×", line), log))
    last = " ".join(errors or causes or log[-1:]).removeprefix("ERROR: ").removeprefix("error: ")
    if any("No space left on device" in line for line in log):
        return f"the disk is full: {program} could not install ({last}); HARNESS_VENV names another place for .venv."
    if any(NO_NETWORK.search(line) for line in log):
        return (
            "no package index can be reached from here; run this once on a machine with network access, or give "
            f"{program} a mirror or a folder of wheels: HARNESS_PIP_ARGS='--index-url URL' or "
            "'--no-index --find-links FOLDER'."
        )
    return f"{program} could not install what pyproject.toml asks for: {last}"
