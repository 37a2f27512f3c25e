"""Revisions of the user's repository: found by name, each checked out in a worktree of its own, and removed.

The user's working tree, index and branches stay as they are. A worktree lies beside the runs, where the nodes of a
cluster see it, below a folder that one process locks: what a killed process left there, the next one removes.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from harness.common.display.printable import printable
from harness.common.errors import RequestError, WorkError, nearest
from harness.common.paths import COMMAND, expanded
from harness.common.run_folder.run_files import LINES
from harness.common.system.programs import NOT_THERE, ProgramOutput, ask
from harness.experiment.exercises import OwnTraining
from harness.run import Run
from harness.study.check.series import ArmLaunch
from harness.study.series.folder import driving, holder_is_gone, series_root

_CHECKOUT_S = 3600.0  # of a large repository, on a network file system
_SUFFIX = ".revisions"
# A hook or an alias sets them: git would look there, and not in the folder that it is given.
_OF_A_PLACE = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY", "GIT_PREFIX")
_LIMIT_S = 120.0
_LONGEST = 60  # characters of a subject in a sentence
_ENDING = (signal.SIGTERM, signal.SIGHUP)


class Repository(NamedTuple):
    """top: of the working tree. inside: the folder where the command was typed, seen from there."""

    top: Path
    inside: Path


class Revision(NamedTuple):
    """A commit: its whole name, a short one, and the first line of its message."""

    commit: str
    short: str
    subject: str

    def __str__(self) -> str:
        text = printable(self.subject)
        return f"{self.short} ({text if len(text) <= _LONGEST else f'{text[:_LONGEST]}…'})"


def git(folder: Path, *arguments: str, limit_s: float = _LIMIT_S) -> ProgramOutput:
    """An answer of git about the repository of a folder, in English. No hook of the repository runs."""
    environ = without_git_place() | {"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0"}
    return ask(["git", "-c", "core.hooksPath=/dev/null", "-C", str(folder), *arguments], limit_s, environ)


def without_git_place() -> dict[str, str]:
    """The environment in which git looks into the folder that it is given."""
    return {name: value for name, value in os.environ.items() if name not in _OF_A_PLACE}


def repository_of(folder: Path) -> Repository:
    """The repository that holds the folder. Raises RequestError: there is none, or it has no files or no commit."""
    top = git(folder, "rev-parse", "--show-toplevel")
    if top.code == NOT_THERE:
        raise RequestError("git is not on PATH: --rev compares revisions of a git repository")
    if top.code:
        if git(folder, "rev-parse", "--is-bare-repository").out.strip() == "true":
            raise RequestError(f"{folder}: is a bare repository, without files: type this in a clone of it")
        raise RequestError(f"{folder}: git finds no working tree here ({printable(top.reason)}): type this in yours")
    root = Path(top.out.rstrip("\n"))
    if git(root, "rev-parse", "--verify", "--quiet", "HEAD").code:
        raise RequestError(f"{root}: the repository has no commit yet, so there is no revision to measure")
    return Repository(root, folder.resolve().relative_to(root.resolve()))


def revision_of(repository: Repository, text: str) -> Revision:
    """The commit that a text names: a hash, a branch, a tag, HEAD~3, ….
    Raises RequestError: it names none."""
    found = ProgramOutput(1, "", "") if text.startswith("-") or not text else _commit(repository, text)
    if found.code:
        names = git(
            repository.top, "for-each-ref", "--format=%(refname:short)", "refs/heads", "refs/tags", "refs/remotes"
        ).out.split()
        near = nearest(text.lstrip("-"), ["HEAD", *names])
        hint = f": did you mean {printable(near)}?" if near else " (a hash, a branch, a tag, or such as HEAD~3)"
        raise RequestError(f"--rev {printable(text)!r}: there is no such revision in {repository.top}{hint}")
    commit = found.out.strip()
    told = git(repository.top, "log", "-1", "--format=%h%n%s", commit).out.splitlines()
    return Revision(commit, told[0], told[1] if len(told) > 1 else "")


def _commit(repository: Repository, text: str) -> ProgramOutput:
    named = git(repository.top, "rev-parse", "--verify", "--quiet", text)
    return named if named.code else git(repository.top, "rev-parse", "--verify", f"{named.out.strip()}^{{commit}}")


def uncommitted(repository: Repository) -> int:
    """Files that git tracks and that differ from the commit that is checked out."""
    return len(git(repository.top, "status", "--porcelain", "--untracked-files=no").out.splitlines())


class Worktrees:
    """The worktrees of one series, each made when it is first needed; see `worktrees`."""

    def __init__(self, folder: Path, repository: Repository) -> None:
        self.folder, self.repository = folder, repository
        self._ready: set[str] = set()

    def start_in(self, revision: Revision) -> Path:
        """Where a training of the revision starts: the same folder inside of it as the one where the command was typed.
        It need not be there yet."""
        return self._top(revision) / self.repository.inside

    def is_there(self, revision: Revision) -> bool:
        return revision.commit in self._ready

    def make(self, revision: Revision) -> None:
        """Check the revision out. Raises WorkError: git cannot, or it lacks the folder."""
        place = self._top(revision)
        words = ["worktree", "add", "--quiet", "--detach", str(place), revision.commit]
        made = git(self.repository.top, *words, limit_s=_CHECKOUT_S)
        if made.code:
            raise WorkError(f"{revision}: git cannot check it out in {place} ({printable(made.reason)})")
        if not self.start_in(revision).is_dir():
            inside = self.repository.inside
            raise WorkError(f"{revision} has no folder {inside}, and a training starts where this was typed")
        self._ready.add(revision.commit)

    def _top(self, revision: Revision) -> Path:
        return self.folder / revision.commit[:12]

    def wrong_code(self, revision: Revision, runs: Sequence[Run]) -> str:
        """A sentence if runs of the revision executed files of the user's working tree in place of its own, as those of
        a package that is installed there in editable mode; else empty."""
        tracked = set(git(self.repository.top, "ls-files", "-z").out.split("\0"))
        for run in runs:
            for file in dict.fromkeys(_executed(run)):
                if file.is_relative_to(self.repository.top) and not file.is_relative_to(self.folder):
                    name = str(file.relative_to(self.repository.top))
                    if name in tracked:
                        return (
                            f"{revision}: its run {run.job_id} executed {file}, of your working tree and not of the "
                            "revision, as a package that is installed in editable mode: put the relative path of its "
                            f"folder first, as in PYTHONPATH=src {COMMAND} check …"
                        )
        return ""


def _executed(run: Run) -> Iterator[Path]:
    """The user's files in which the run's main threads were seen."""
    for path in run.lines():
        for line in LINES.lines(path):
            with suppress(ValueError, KeyError, TypeError):
                told = json.loads(line)
                if told["event"] == "place":
                    yield Path(told["file"])
                    yield from (Path(caller[0]) for caller in told.get("callers", []))


def require_relative(launch: ArmLaunch, repository: Repository) -> None:
    """Raises RequestError: it is no training of the user's own, or it names its script by a path in the working tree,
    which would be the same for each revision."""
    asked = launch.experiment
    if not isinstance(asked, OwnTraining):
        raise RequestError("--rev takes a training of your own, as in 'run -g 2 -- train.py'")
    script = expanded(asked.program)
    if script.is_absolute() and script.resolve().is_relative_to(repository.top.resolve()):
        near = os.path.relpath(script.resolve(), asked.start_in)
        raise RequestError(
            f"--rev: {printable(asked.program)} is a file of your working tree, the same for each revision: give its "
            f"path from this folder, {printable(near)}"
        )


@contextmanager
def worktrees(series: str, repository: Repository) -> Iterator[Worktrees]:
    """The worktrees of a series, removed at the end: also after an error, Ctrl-C, SIGTERM and SIGHUP, which both raise
    KeyboardInterrupt as Ctrl-C does. Raises WorkError: another process has them, or they cannot be written."""
    with _ending_properly(), driving(f"{series}{_SUFFIX}") as place:
        folder = place.resolve()
        _remove_abandoned(series)
        try:
            _remove_all(folder)
            yield Worktrees(folder, repository)
        finally:
            with _undisturbed():
                _remove_all(folder)


def _remove_abandoned(series: str) -> None:
    """What processes of this machine that were killed left of other series."""
    for folder in series_root().glob(f"*{_SUFFIX}"):
        is_other = folder.name != f"{series}{_SUFFIX}" and any(each.is_dir() for each in folder.iterdir())
        if is_other and holder_is_gone(folder):
            with suppress(WorkError), driving(folder.name) as ours:
                _remove_all(ours.resolve())


def _remove_all(folder: Path) -> None:
    for place in folder.iterdir():
        if place.is_dir() and not place.is_symlink():
            of_git = _kept_by_git(place)
            shutil.rmtree(place, ignore_errors=True)
            if of_git is not None:
                shutil.rmtree(of_git, ignore_errors=True)
                with suppress(OSError):  # other worktrees are kept there
                    of_git.parent.rmdir()


def _kept_by_git(worktree: Path) -> Path | None:
    """What git keeps of a worktree in its repository: a folder that names the worktree. Not `git worktree remove`,
    which refuses one with submodules, nor `prune`, which forgets worktrees of the user whose disk is away."""
    with suppress(OSError, ValueError):
        found = Path((worktree / ".git").read_text(encoding="utf-8").removeprefix("gitdir:").strip())
        named = found / (found / "gitdir").read_text(encoding="utf-8").strip()
        if found.parent.name == "worktrees" and named.resolve() == (worktree / ".git").resolve():
            return found
    return None


@contextmanager
def _ending_properly() -> Iterator[None]:
    before = {number: signal.signal(number, signal.default_int_handler) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _undisturbed() -> Iterator[None]:
    numbers = (signal.SIGINT, *_ENDING)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
