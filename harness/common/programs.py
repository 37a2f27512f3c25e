"""Another program's answer, within a time limit. Knows no program by name."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from typing import NamedTuple

NOT_THERE, TOO_LATE = 127, 124  # as a shell and timeout(1) say it


class Answer(NamedTuple):
    """What a program said. `code`: its exit status, NOT_THERE or TOO_LATE."""

    code: int
    out: str
    err: str

    @property
    def reason(self) -> str:
        """Why it failed, in its own words: its last line, or its exit status."""
        lines = [line.strip() for line in (self.err or self.out).splitlines() if line.strip()]
        return lines[-1] if lines else f"exit status {self.code}"


def ask(argv: Sequence[str], limit_s: float, environ: Mapping[str, str]) -> Answer:
    """Run a program with this environment and no input; it is ended after `limit_s`."""
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            env=environ,
            timeout=limit_s,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return Answer(TOO_LATE, "", f"{argv[0]} did not answer within {limit_s:g} s")
    except OSError as error:
        return Answer(NOT_THERE, "", f"{argv[0]} cannot be started ({error.strerror})")
    return Answer(done.returncode, done.stdout, done.stderr)
