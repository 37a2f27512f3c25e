"""The errors of the harness.

    HarnessError          anything a person should read as one sentence
    ├── RequestError      the request was wrong: exit code 2, nothing written
    ├── WorkError         the work failed: exit code 1, what there is stays on disk
    └── TrainingNeeded    the training packages come first: exit code 88, nothing written

Everything else that escapes is a bug and may show its traceback.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class HarnessError(Exception):
    """A sentence for the user; `exit_code` is what the command line returns."""

    exit_code = 1


class RequestError(HarnessError):
    """What was asked cannot be done as asked."""

    exit_code = 2


class WorkError(HarnessError):
    """What was asked is fine, and doing it failed."""


class TrainingNeeded(HarnessError):
    """A run on this machine needs the `train` extra. slurm.sh reads the exit code, installs, and starts us again."""

    exit_code = 88  # not used by Python, shells, or signals

    def __init__(self) -> None:
        super().__init__(
            "a run on this machine needs the training packages, about a gigabyte, and .venv does not have them "
            "(bash slurm.sh --install train)"
        )


def nearest(word: str, allowed: Iterable[str]) -> str | None:
    """The allowed word that `word` probably means, or None: one that begins with it, else a similar one."""
    words = list(allowed)
    begun = [w for w in words if w.startswith(word)] if len(word.lstrip("-")) > 1 else []
    found = get_close_matches(word, begun, n=1, cutoff=0) or get_close_matches(word, words, n=1, cutoff=0.6)
    return found[0] if found else None


def divisors(n: int) -> str:
    """The divisors of `n`, as a message lists them."""
    return ", ".join(str(d) for d in range(1, n + 1) if n % d == 0)
