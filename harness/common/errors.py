"""The errors of the harness.

    HarnessError          anything a person should read as one sentence
    ├── RequestError      the request was wrong: exit code 2, nothing written
    ├── WorkError         the work failed: exit code 1, what there is stays on disk
    └── TrainingNeeded    the training packages come first: exit code 88, nothing written

Everything else that escapes is a bug and may show its traceback.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from harness.common.display.printable import printable
from harness.common.paths import ENVIRONMENT, IN_CHECKOUT, installing

OLDEST_TO_TRAIN = (3, 11)  # of the extra `train`: of its pinned transformers


class HarnessError(Exception):
    """A sentence for the user; `exit_code` is what the command line returns."""

    exit_code = 1


class RequestError(HarnessError):
    """What was asked cannot be done as asked."""

    exit_code = 2


class WorkError(HarnessError):
    """What was asked is fine, and doing it failed."""


class TrainingMissing(HarnessError):
    """A run on this machine needs the `train` extra. slurm.sh reads the exit code, installs, and starts us again;
    where the wheel is installed, the user installs it."""

    exit_code = 88 if IN_CHECKOUT else RequestError.exit_code  # not used by Python, shells, or signals

    def __init__(self) -> None:
        super().__init__(
            f"a run on this machine needs the training packages, about a gigabyte, and {ENVIRONMENT} does not have "
            f"them: {installing('train')}{_needs_newer()}"
        )


def _needs_newer() -> str:
    """The end of the sentence where the extra `train` cannot be installed with this Python."""
    if sys.version_info >= OLDEST_TO_TRAIN:
        return ""
    oldest, this = (".".join(map(str, version[:2])) for version in (OLDEST_TO_TRAIN, sys.version_info))
    return f"; they need Python {oldest} or newer, and this is {this}"


def nearest(word: str, allowed: Iterable[str]) -> str | None:
    """The allowed word that `word` probably means, or None: one that begins with it, else one of whose parts between
    hyphens it is, else one with a similar name; in either case of letters."""
    names = {each.lower().lstrip("-"): each for each in allowed}  # the hyphens make no two flags alike
    name = word.lower().lstrip("-")
    begun = [n for n in names if n.startswith(name)] or [n for n in names if f"-{name}-" in f"-{n}-"]
    begun = begun if len(name) > 1 else []
    from difflib import get_close_matches

    found = get_close_matches(name, begun or names, n=1, cutoff=0 if begun else 0.6)
    return names[found[0]] if found else None


def near_path(path: Path, fits: Callable[[Path], bool] = Path.exists) -> str:
    """The end of a sentence on a path that is not there: the one that is probably meant, of which one part has another
    name; empty if there is none that fits."""
    wrong = path
    try:
        while not wrong.parent.exists():
            wrong = wrong.parent
        rest = path.relative_to(wrong)
        names = (each.name for each in wrong.parent.iterdir() if not each.name.startswith(".") and fits(each / rest))
        near = nearest(wrong.name, names)
    except OSError:
        return ""
    return f": did you mean {printable(str(wrong.with_name(near) / rest))}?" if near else ""


def nearest_or_list(word: str, allowed: Iterable[str], where: str) -> str:
    """The end of a sentence on an unknown word: the nearest one, and where all are listed; never the list.

    >>> nearest_or_list("pauze", ["pause", "data-stall"], "slurm.sh help faults lists all")
    ': did you mean pause? (slurm.sh help faults lists all)'
    """
    near = nearest(word, allowed)
    return (f": did you mean {near}?" if near else "") + f" ({where})"


def unknown_flag(word: str, known: Iterable[str], where: str) -> str:
    """The sentence for a word that begins like a flag and is none. where: the command that lists all flags.

    >>> unknown_flag("--jsn=1", ["--json"], "slurm.sh help ls")
    'unknown flag --jsn: did you mean --json? (slurm.sh help ls lists all flags)'
    """
    name = word.partition("=")[0]
    return f"unknown flag {printable(name)}{nearest_or_list(name, known, f'{where} lists all flags')}"


def given_twice(flag: str, first: str, second: str) -> str:
    """The sentence for a flag that takes one value and got two.

    >>> given_twice("-e", "1", "2")
    '-e is given twice, as 1 and as 2: drop one'
    """
    return f"{flag} is given twice, as {first} and as {second}: drop one"


def divisors(n: int) -> str:
    """The divisors of `n`, as a message lists them."""
    return ", ".join(str(d) for d in range(1, n + 1) if n % d == 0)
