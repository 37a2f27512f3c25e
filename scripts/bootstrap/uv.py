"""uv in place of pip, where uv is on PATH: what pip was told by files, variables and HARNESS_PIP_ARGS is told to uv.

uv has pip's names for what is installed and from where. What it has no name for it refuses, and pip is used.
"""

from __future__ import annotations

import argparse
import configparser
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

SWITCHES = ("no-index", "no-cache-dir")
# Settings of pip that change neither what is installed nor from where: uv does not get them.
HARMLESS = ("timeout", "default-timeout", "retries", "cache-dir", "progress-bar", "root-user-action")
HARMLESS_SWITCHES = ("disable-pip-version-check", "no-input", "no-color", "no-warn-script-location")


class Uv(NamedTuple):
    """The program, with the options and variables that make it use pip's sources."""

    program: str
    options: list[str]
    environment: dict[str, str]


def uv_for(arguments: list[str]) -> Uv | None:
    """uv with the settings of pip and the user's own arguments for pip; None if there is no uv."""
    program = shutil.which("uv")
    if program is None:
        return None
    parser = argparse.ArgumentParser(
        prog="slurm.sh: HARNESS_PIP_ARGS", usage=argparse.SUPPRESS, add_help=False, allow_abbrev=False
    )
    parser.add_argument(*(f"--{name}" for name in HARMLESS))
    parser.add_argument(*(f"--{name}" for name in HARMLESS_SWITCHES), action="store_true")
    parser.add_argument("-i", "--index-url")  # the last one counts
    parser.add_argument("--cert")
    parser.add_argument("--proxy")
    settings, options = parser.parse_known_args([*_from_files(), *_from_variables(), *arguments])
    if settings.index_url:
        options += ["--index-url", settings.index_url]
    variables = {"SSL_CERT_FILE": settings.cert, "ALL_PROXY": settings.proxy}
    return Uv(program, options, {name: value for name, value in variables.items() if value})


def _from_files() -> Iterator[str]:
    named = os.environ.get("PIP_CONFIG_FILE")
    if named == os.devnull:
        return
    home = Path(os.environ.get("HOME", "/"))
    folders = [Path(each) / "pip" for each in (os.environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":")]
    folders += [Path("/etc"), home / ".pip", Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config") / "pip"]
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read([*(folder / "pip.conf" for folder in folders), *([named] if named else [])])
    except (configparser.Error, UnicodeDecodeError):
        yield "--unreadable"  # which uv refuses; pip says what is wrong with its file
    for section in ("global", "install"):
        if parser.has_section(section):
            yield from _words(parser.items(section))


def _from_variables() -> Iterator[str]:
    variables = {name[4:]: text for name, text in os.environ.items() if name.startswith("PIP_") and text}
    variables.pop("CONFIG_FILE", None)
    yield from _words(variables.items())


def _words(settings: Iterable[tuple[str, str]]) -> Iterator[str]:
    """The settings of files and variables, in which blanks separate the values, as words of a command line."""
    for key, text in settings:
        name = key.lower().replace("_", "-")
        for value in text.split():
            if name not in (*SWITCHES, *HARMLESS_SWITCHES):
                yield f"--{name}={value}"
            elif value.lower() in ("1", "true", "yes", "on"):
                yield f"--{name}"
