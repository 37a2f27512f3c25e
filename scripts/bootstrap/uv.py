"""uv in place of pip, where uv is on PATH: translates pip's settings to uv's options. Runs neither.

pip is set up by files, by variables and by HARNESS_PIP_ARGS. A setting without an option of uv needs pip.
"""

from __future__ import annotations

import configparser
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

Setting = tuple[str, str]  # pip's long option without dashes, and one value

OPTIONS = {
    "index-url": "--index-url",
    "extra-index-url": "--extra-index-url",
    "find-links": "--find-links",
    "trusted-host": "--allow-insecure-host",
    "constraint": "--constraint",
}
SWITCHES = {"no-index", "no-cache-dir"}
VARIABLES = {"cert": "SSL_CERT_FILE", "proxy": "ALL_PROXY"}
# Settings that change neither what is installed nor from where.
HARMLESS = {"timeout", "default-timeout", "retries", "cache-dir", "progress-bar", "root-user-action"}
HARMLESS_SWITCHES = {"disable-pip-version-check", "no-input", "no-color", "no-warn-script-location"}
VALUED = {*OPTIONS, *VARIABLES, *HARMLESS}
SHORT = {"-i": "--index-url", "-f": "--find-links"}


class Uv(NamedTuple):
    """The program, with the options and variables that make it use pip's sources."""

    program: str
    options: list[str]
    environment: dict[str, str]


def uv_for(arguments: list[str]) -> Uv | None:
    """uv with the settings of pip; None if there is no uv, or if it has no option for a setting.

    Args:
        arguments: the user's own arguments for pip.
    """
    program = shutil.which("uv")
    settings = [*_from_files(), *_from_variables(), *_from_words(arguments)]
    if program is None or any(name not in VALUED | SWITCHES | HARMLESS_SWITCHES for name, _ in settings):
        return None
    last = dict(settings)
    options = [f"--{name}" for name in SWITCHES if last.get(name, "false").lower() in ("1", "true", "yes", "on")]
    for name, option in OPTIONS.items():
        values = [value for each, value in settings if each == name]
        for value in values[-1:] if name == "index-url" else values:
            options += [option, value]
    return Uv(program, options, {variable: last[name] for name, variable in VARIABLES.items() if name in last})


def _from_files() -> Iterator[Setting]:
    named = os.environ.get("PIP_CONFIG_FILE")
    if named == os.devnull:
        return
    home = Path(os.environ.get("HOME", "/"))
    folders = [Path(each) / "pip" for each in (os.environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":")]
    own = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config") / "pip"
    folders += [Path("/etc"), home / ".pip", own]
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read([*(folder / "pip.conf" for folder in folders), *([named] if named else [])])
    except (configparser.Error, UnicodeDecodeError):
        yield "unreadable", ""  # pip says what is wrong with its file
    for section in ("global", "install"):
        if parser.has_section(section):
            yield from _split(parser.items(section))


def _from_variables() -> Iterator[Setting]:
    found = {name[4:]: text for name, text in os.environ.items() if name.startswith("PIP_") and text}
    found.pop("CONFIG_FILE", None)
    yield from _split(found.items())


def _split(found: Iterable[Setting]) -> Iterator[Setting]:
    """The settings of files and variables, in which blanks separate the values."""
    for name, text in found:
        for value in text.split():
            yield name.lower().replace("_", "-"), value


def _from_words(arguments: list[str]) -> Iterator[Setting]:
    words = iter(arguments)
    for word in words:
        option, joined, value = SHORT.get(word, word).partition("=")
        name = option.removeprefix("--")
        if joined:
            yield name if name in VALUED else word, value
        elif name in VALUED:
            yield name, next(words, "")
        else:
            yield name, "true"
