"""Another program's answer, within a time limit; and what git says of a folder."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from harness.common.paths import IN_CHECKOUT, ROOT

NOT_THERE, TOO_LATE = 127, 124  # as a shell and timeout(1) say it


class ProgramOutput(NamedTuple):
    """What a program said. `code`: its exit status, NOT_THERE or TOO_LATE."""

    code: int
    out: str
    err: str

    @property
    def reason(self) -> str:
        """Why it failed, in its own words: its last line, or its exit status."""
        lines = [line.strip() for line in (self.err or self.out).splitlines() if line.strip()]
        return lines[-1] if lines else f"exit status {self.code}"


def ask(argv: Sequence[str], limit_s: float, environ: Mapping[str, str]) -> ProgramOutput:
    """Run a program with this environment and no input; it and what it started are ended after `limit_s`."""
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=environ,
            start_new_session=True,  # a site's own wrapper around a program is ended with the program
        )
    except OSError as error:
        return ProgramOutput(NOT_THERE, "", f"{argv[0]} cannot be started ({error.strerror})")
    with process:
        try:
            out, err = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            return ProgramOutput(TOO_LATE, "", f"{argv[0]} did not answer within {limit_s:g} s")
        finally:
            if process.poll() is None:
                with suppress(OSError):  # it ended meanwhile
                    os.killpg(process.pid, signal.SIGKILL)
    return ProgramOutput(process.returncode, out, err)


def shell_status(code: int) -> int:
    """An exit status as a shell reports it: 128 + n for signal n, which Python writes as -n."""
    return 128 - code if code < 0 else code


def usable_cores() -> int:
    """Number of cores, at least one; on Linux of those that the process is bound to, as a job may have only some."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def git_state_of(folder: Path) -> dict[str, str | bool | None]:
    """The repository that holds the folder: its top, commit and branch, whether tracked files differ from the commit,
    and a checksum of the differences. None: git does not say."""
    found = git_state(folder, "--untracked-files=no")
    differences = _git(folder, "diff", "HEAD") if found["dirty"] else None
    return {
        "repository": _git(folder, "rev-parse", "--show-toplevel"),
        **found,
        "differences": hashlib.sha256(differences.encode()).hexdigest()[:16] if differences else None,
    }


def git_state(folder: Path = ROOT, *of_status: str) -> dict[str, str | bool | None]:
    """The commit and branch of a checkout, and whether files differ from it; None: git does not say."""
    if folder == ROOT and not IN_CHECKOUT:  # a repository around it is another project's
        return dict.fromkeys(("commit", "branch", "dirty"))
    changed = _git(folder, "status", "--porcelain", *of_status)
    return {
        "commit": _git(folder, "rev-parse", "HEAD"),
        "branch": _git(folder, "rev-parse", "--abbrev-ref", "HEAD"),
        "dirty": None if changed is None else bool(changed),
    }


def _git(folder: Path, *arguments: str) -> str | None:
    # In a checkout of another user git answers only if it is told to: that user's Python runs here already.
    argv = ["git", "--no-optional-locks", "-c", f"safe.directory={ROOT}", "-C", str(folder), *arguments]
    answer = ask(argv, 30.0, os.environ)
    return answer.out.strip() if answer.code == 0 else None
