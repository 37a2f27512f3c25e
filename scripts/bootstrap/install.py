"""uv, or venv and pip, as programs: run them, show their progress, and turn their failures into one sentence.

If uv is on PATH, it gets what pip was told by files, variables and HARNESS_PIP_ARGS: it has pip's names for what is
installed and from where. What it has no name for it refuses, and pip is used.
"""

from __future__ import annotations

import argparse
import configparser
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import dropwhile
from pathlib import Path

from say import BootstrapError, progress

NO_NETWORK = re.compile(
    r"NewConnectionError|ConnectionError|ConnectTimeout|Failed to establish a new connection|ProxyError"
    r"|Temporary failure in name resolution|Max retries exceeded|Network is unreachable|Retrying \("
    r"|ReadTimeoutError|ProtocolError"
    r"|Failed to fetch|error sending request|Failed to download"  # uv's
)
USES = {"launcher": "the launcher", "train": "training", "test": "tests"}
DOING = re.compile(r"^\s*(Collecting|Downloading|Building|Using cached|Installing collected packages)\b")
REFUSED_BY_UV = re.compile(r"error: (unexpected argument|unexpected value|invalid value)")
# As pip: the best version of all indexes, and compiled: users who may only read cannot store compiled files.
LIKE_PIP = ("--index-strategy", "unsafe-best-match", "--compile-bytecode", "--no-progress", "--color", "never")
PIP_QUIETLY = ("--disable-pip-version-check", "--no-input", "--progress-bar", "off", "--retries", "2")
SWITCHES = ("no-index", "no-cache-dir")
# Settings of pip that would send packages elsewhere than into the environment; with a word that overrules pip's files.
ELSEWHERE = {"target": "--target=", "user": "--no-user", "root": "--root=/", "prefix": "--prefix={}", "python": ""}
# Whether the packages of each name are in this Python's environment, and those before the bar can be imported.
CHECK = """
import importlib, sys
from importlib import metadata
at = sys.argv.index("|")
for number, name in enumerate(sys.argv[1:], 1):
    try:
        files = metadata.distribution(name).files if number != at else ()
        for package in {file.parts[0] for file in files or () if number < at and file.parts[1:] == ("__init__.py",)}:
            importlib.import_module(package)
    except metadata.PackageNotFoundError:
        sys.exit(f"{name} is not in {sys.prefix}")
    except ImportError as error:
        sys.exit(f"{name} cannot be imported ({error})")
"""
# Settings of pip that change neither what is installed nor from where: uv does not get them.
HARMLESS = ("timeout", "default-timeout", "retries", "cache-dir", "progress-bar", "root-user-action")
HARMLESS_SWITCHES = ("disable-pip-version-check", "no-input", "no-color", "no-warn-script-location")


def create(path: Path) -> None:
    """Make an empty environment at `path`, with pip unless uv makes it. Raises BootstrapError: this Python cannot."""
    commands: list[list[str | Path]] = []
    if uv := shutil.which("uv"):
        commands.append([uv, "venv", "--quiet", "--no-project", "--allow-existing", "--python", sys.executable, path])
    if importlib.util.find_spec("ensurepip"):
        commands.append([sys.executable, "-m", "venv", path])
    if importlib.util.find_spec("virtualenv"):
        commands.append([sys.executable, "-m", "virtualenv", "--quiet", path])
    with progress(f"making {path} with Python {sys.version.split()[0]}"):
        if not any(subprocess.run(each, check=False, stdout=subprocess.DEVNULL).returncode == 0 for each in commands):
            raise BootstrapError(
                f"{sys.executable} cannot make a virtual environment: install python3-venv (Debian, Ubuntu) or "
                "virtualenv, or name another Python in HARNESS_PYTHON."
            )


def install(python: Path, wanted: dict[str, list[str]]) -> None:
    """Let uv or pip install all requirements in one resolution. Raises BootstrapError: it failed, and why."""
    requirements = sorted({requirement for part in wanted.values() for requirement in part})
    text = os.environ.get("HARNESS_PIP_ARGS", "")
    try:
        arguments = shlex.split(text)
    except ValueError as error:
        raise BootstrapError(f"HARNESS_PIP_ARGS={text} cannot be read as arguments: {error}.") from error
    uses = ", ".join(USES.get(part, part) for part in wanted)
    with progress(f"installing {len(requirements)} packages and what they need, for {uses}") as doing:
        if uv := shutil.which("uv"):
            options, variables = settings_for_uv(arguments)
            command: list[str | Path] = [uv, "pip", "install", "--python", python, *LIKE_PIP, *options]
            log = _run([*command, *requirements], doing, variables)
            if not log:
                _check(python, wanted, "uv")
                return
            if not any(map(REFUSED_BY_UV.match, log)):
                raise BootstrapError(_reason(log, "uv"))
        here = [ELSEWHERE[key].format(python.parents[1]) for key, _ in _in_files() if ELSEWHERE.get(key)]
        if log := _run([*_pip(python), "install", *PIP_QUIETLY, *here, *arguments, *requirements], doing):
            raise BootstrapError(_reason(log, "pip"))
        _check(python, wanted, "pip")


def _check(python: Path, wanted: dict[str, list[str]], program: str) -> None:
    """Look whether what was asked for is there, and the launcher can start: a setting of pip or uv may have sent
    packages elsewhere, or left some out, and the program ended well. Raises BootstrapError: which is missing."""
    plain = {part: [each for each in listed if ";" not in each] for part, listed in wanted.items()}
    names = {part: [re.split(r"[^\w.-]", each)[0] for each in listed] for part, listed in plain.items()}
    others = [name for part in names if part != "launcher" for name in names[part]]
    if said := _run([python, "-I", "-c", CHECK, *names["launcher"], "|", *others], []):
        raise BootstrapError(
            f"{program} ended well, but {said[-1]}: a setting of {program} may send packages elsewhere or leave some "
            "out (pip config list; env | grep -e PIP_ -e UV_): unset it and start again."
        )


def settings_for_uv(arguments: list[str]) -> tuple[list[str], dict[str, str]]:
    """The options and variables with which uv has pip's settings and the user's own arguments for pip."""
    parser = argparse.ArgumentParser(
        prog="slurm.sh: HARNESS_PIP_ARGS", usage=argparse.SUPPRESS, add_help=False, allow_abbrev=False
    )
    parser.add_argument(*(f"--{name}" for name in HARMLESS))
    parser.add_argument(*(f"--{name}" for name in HARMLESS_SWITCHES), action="store_true")
    parser.add_argument("-i", "--index-url")  # the last one counts
    parser.add_argument("--cert")
    parser.add_argument("--proxy")
    settings, options = parser.parse_known_args([*_settings_of_pip(), *arguments])
    if settings.index_url:
        options += ["--index-url", settings.index_url]
    variables = {"SSL_CERT_FILE": settings.cert, "ALL_PROXY": settings.proxy}
    return options, {name: value for name, value in variables.items() if value}


def _settings_of_pip() -> Iterator[str]:
    """What pip's files and variables set, in which blanks separate the values, as words of a command line."""
    for key, text in [*_in_files(), *((name[4:], text) for name, text in os.environ.items() if name[:4] == "PIP_")]:
        name = key.lower().replace("_", "-")
        for value in text.split() if name not in ("config-file", *ELSEWHERE) else ():
            if name not in (*SWITCHES, *HARMLESS_SWITCHES):
                yield f"--{name}={value}"
            elif value.lower() in ("1", "true", "yes", "on"):
                yield f"--{name}"


def _in_files() -> list[tuple[str, str]]:
    named = os.environ.get("PIP_CONFIG_FILE")
    if named == os.devnull:
        return []
    home = Path(os.environ.get("HOME", "/"))
    folders = [Path(each) / "pip" for each in (os.environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":")]
    folders += [Path("/etc"), home / ".pip", Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config") / "pip"]
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read([*(folder / "pip.conf" for folder in folders), *([named] if named else [])])
    except (configparser.Error, UnicodeDecodeError):
        return [("unreadable", "1")]  # which uv refuses; pip says what is wrong with its file
    return [item for section in ("global", "install") if parser.has_section(section) for item in parser.items(section)]


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


def _run(command: list[str | Path], doing: list[str], variables: dict[str, str] | None = None) -> list[str]:
    """The output of a program that failed, nothing of one that did not; `doing` gets lines that say what it does."""
    log: list[str] = []
    kept = {name: text for name, text in os.environ.items() if name not in {f"PIP_{key.upper()}" for key in ELSEWHERE}}
    environment = {**kept, **(variables or {})}
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
