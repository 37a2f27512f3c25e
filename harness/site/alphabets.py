"""What the words of a site file may be: each type is a narrow alphabet and the rules that an alphabet cannot say.

They reach a script and are run there, so what could break it is refused here. Knows no site's fields and no experiment.
"""

from __future__ import annotations

import re
import shlex
from typing import Annotated

from pydantic import AfterValidator, StringConstraints
from pydantic_core import PydanticCustomError

VARIABLE = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")
"""A variable of the cluster in a site file's text: `$NAME` or `${NAME}`."""

_SECRETS = re.compile(
    r"(API|AUTH|ACCESS)?(TOKEN|SECRETS?|KEY|AUTH|PASS|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?)"
)  # a whole word between underscores: MAX_TOKENS is none
_PLACES = ("_PATH", "_FILE", "_DIR", "_SOCK")  # a name that ends so says where a secret is, not what it is
_ASSIGNED = re.compile(
    r"""(?<![\w$-])([A-Za-z_]\w*)=("?\$\([^)]*\)"?|\$\{[^}]*\}|"[^"]*"|'[^']*'|`[^`]*`|[^\s;&|,]*)"""
)
# What only the job knows, and switches and counts: nobody can read a secret in them.
_HARMLESS = re.compile(
    r"|\$\w+|\$\{\w+(:?-|:?\?[^}]*)?\}|\$\(.*\)|`.*`|\d{1,5}|true|false|yes|no|on|off", re.IGNORECASE
)
# What the script sets and is told (templates/*.j2), and bash's own that cannot be set or that split lines into words.
SCRIPTS_OWN = frozenset(
    {"JOB_ID", "OUTPUT_DIR", "LOG_DIR", "RUN_DIR", "REASON", "INTERRUPTED", "CODE", "HOSTS", "NODE", "NODES"}
    | {"MASTER_ADDR", "MASTER_PORT", "HARNESS_JOB_ID", "HARNESS_PORT", "HARNESS_PYTHON"}
    | {"SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_NODEID", "code", "container", "child", "host", "i"}
    | {"binds", "interrupted", "module", "monitor", "node", "nsys", "pid", "result", "started", "stopped"}
    | {"watched"}
)
_BASHS_OWN = frozenset({"BASHOPTS", "BASH_VERSINFO", "EUID", "IFS", "PPID", "SHELLOPTS", "UID"})
_MANY = ("--array", "--wait", "--test-only")  # an array of runs, a submission that blocks, and no run at all


def _refuse_secret(name: str, text: str) -> None:
    """A site's environment and lines are written into scripts and manifests, which others can read."""
    names_one = any(map(_SECRETS.fullmatch, name.upper().split("_"))) and not name.upper().endswith(_PLACES)
    if names_one and not _HARMLESS.fullmatch(text.strip("\"'")):
        # Of a type of its own, so that the sentence does not repeat the secret.
        raise PydanticCustomError(
            "secret",
            "{name} looks like a secret, and others can read the script: export it in your own shell, sbatch passes "
            "it on unwritten; or have the job read it, as in setup: export {name}=$(cat FILE)",
            {"name": name},
        )


def _environment(env: dict[str, str]) -> dict[str, str]:
    for name, text in env.items():
        if name in SCRIPTS_OWN | _BASHS_OWN:
            raise PydanticCustomError("taken", "{name} is the script's own: leave it out", {"name": name})
        _refuse_secret(name, text)
    return env


def _no_secret_in_line(line: str) -> str:
    for name, text in _ASSIGNED.findall(line):
        _refuse_secret(name, text)
    return line


def _whole_variables(text: str) -> str:
    if "$" in VARIABLE.sub("", text):
        raise ValueError("a $ begins a variable here: write $NAME or ${NAME}")
    return text


def _whole_quotes(line: str) -> str:
    shlex.split(line, comments=True)  # raises ValueError for a quote that is never closed
    return line


def _one_run(line: str) -> str:
    """sbatch takes a long option's first letters for it; the short ones may follow in the same line."""
    for word in shlex.split(line, comments=True):
        name = word.partition("=")[0]
        long = len(name) > 3 and any(option.startswith(name) for option in _MANY)
        if long or name.startswith(("-a", "-W")):
            raise ValueError(f"one submission is one run that nobody waits for: leave out {name}")
    return line


def _lasting(clock: str) -> str:
    if not clock.strip("0:-"):
        raise ValueError("no time at all: nothing could run")
    return clock


# Begins with no dash: as a value it would be read as the next option.
WORD_PATTERN = r"^[A-Za-z0-9_.@+:/,][A-Za-z0-9_.@+:/,=-]*$"
_SUFFIX = r"^[A-Za-z0-9_.-]+$"
_LINE = r"^--[^\x00-\x1f\x7f]+$"
CLOCK_PATTERN = r"^([0-9]+-)?[0-9]{1,3}:[0-5][0-9]:[0-5][0-9]$"
NAME_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*$"
TAKES = {
    WORD_PATTERN: "one word of letters, digits and _.@+:/,=- that begins with neither = nor -",
    _SUFFIX: "letters, digits and _.-",
    _LINE: "one line that begins with --, as in --exclusive",
    CLOCK_PATTERN: "HH:MM:SS above zero, e.g. 00:30:00",
    NAME_PATTERN: "a name of letters, digits and _ that does not begin with a digit",
}
"""What each pattern takes, in words: people are never shown a pattern."""

PlainWord = Annotated[str, StringConstraints(pattern=WORD_PATTERN, max_length=200)]
Suffix = Annotated[str, StringConstraints(pattern=_SUFFIX, max_length=200)]
SbatchLine = Annotated[
    str,
    StringConstraints(pattern=_LINE, max_length=500),
    AfterValidator(_whole_quotes),
    AfterValidator(_no_secret_in_line),
    AfterValidator(_one_run),
]
ShellLine = Annotated[str, AfterValidator(_no_secret_in_line)]
TimeLimit = Annotated[str, StringConstraints(pattern=CLOCK_PATTERN), AfterValidator(_lasting)]
Text = Annotated[
    str, AfterValidator(_whole_variables)
]  # in which $NAME and ${NAME} are the cluster's variables
Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
Environment = Annotated[dict[Name, Text], AfterValidator(_environment)]
