"""Which texts a site file may hold: each type is a narrow alphabet, with the rules that a pattern cannot express. The
texts reach a script and run there: a text that could break the script is refused here. Knows no site's fields."""

from __future__ import annotations

import re
import shlex
from typing import Annotated

from pydantic import AfterValidator, StringConstraints
from pydantic_core import PydanticCustomError

VARIABLE = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")
"""A variable of the cluster in a site file's text: `$NAME` or `${NAME}`."""

# A whole word between underscores: MAX_TOKENS does not match.
_SECRETS = re.compile(r"(API|AUTH|ACCESS)?(TOKEN|SECRETS?|KEY|AUTH|PASS|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?)")
_PLACES = ("_PATH", "_FILE", "_DIR", "_SOCK")  # endings of names that give a secret's place, not the secret
_ASSIGNED = re.compile(
    r"""(?<![\w$-])([A-Za-z_]\w*)=("?\$\([^)]*\)"?|\$\{[^}]*\}|"[^"]*"|'[^']*'|`[^`]*`|[^\s;&|,]*)"""
)
# Texts without a secret: what only the job can read, switches, and counts.
_HARMLESS = re.compile(
    r"|\$\w+|\$\{\w+(:?-|:?\?[^}]*)?\}|\$\(.*\)|`.*`|\d{1,5}|true|false|yes|no|on|off", re.IGNORECASE
)
# The variables of the script (templates/*.j2), and bash's own that are read-only or split lines into words.
SCRIPTS_OWN = frozenset({
    "JOB_ID", "OUTPUT_DIR", "RUN_DIR", "NSYS", "CONTAINER", "TRAINING", "TEST", "TOPOLOGY", "MASTER_ADDR",
    "MASTER_PORT", "HARNESS_HEARTBEATS", "HARNESS_JOB_ID", "HARNESS_NODE", "HARNESS_NSYS", "HARNESS_PORT",
    "HARNESS_PYTHON", "HARNESS_SET_UP", "HARNESS_SUPERVISED", "SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_NODEID",
    "SLURM_TOPOLOGY_ADDR", "SLURM_TOPOLOGY_ADDR_PATTERN",
})  # fmt: skip
_BASHS_OWN = frozenset({"BASHOPTS", "BASH_VERSINFO", "EUID", "IFS", "PPID", "SHELLOPTS", "UID"})
_MANY = ("--array", "--wait", "--test-only")  # many runs, a submission that blocks, and no run

# It does not begin with a dash, which would make it the next option.
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
"""What each pattern takes, in the words of an error."""


def _refuse_secret(name: str, text: str) -> None:
    """Raises PydanticCustomError: `text` looks like a secret, and others can read a site's texts in the script."""
    names_one = any(map(_SECRETS.fullmatch, name.upper().split("_"))) and not name.upper().endswith(_PLACES)
    if names_one and not _HARMLESS.fullmatch(text.strip("\"'")):
        # An error of its own type: the sentence for the others repeats the value.
        raise PydanticCustomError(
            "secret",
            "{name} looks like a secret, and others can read the script: export it in your own shell, from which "
            "sbatch passes it on; or let the job read it, as in setup: export {name}=$(cat FILE)",
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
    """sbatch accepts a long option's first letters, and short options behind it in the same line."""
    for word in shlex.split(line, comments=True):
        name = word.partition("=")[0]
        long = len(name) > 3 and any(option.startswith(name) for option in _MANY)
        if long or name.startswith(("-a", "-W")):
            raise ValueError(f"one submission is one run, and returns at once: leave out {name}")
    return line


def _lasting(clock: str) -> str:
    if not clock.strip("0:-"):
        raise ValueError("a time limit of zero: nothing could run")
    return clock


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
# In a Text, $NAME and ${NAME} are the cluster's variables.
Text = Annotated[str, AfterValidator(_whole_variables)]
Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
Environment = Annotated[dict[Name, Text], AfterValidator(_environment)]
