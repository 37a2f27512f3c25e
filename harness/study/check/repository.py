"""The user's repository and its revisions, as git knows them. Changes nothing there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from harness.common.errors import RequestError, nearest
from harness.common.printable import printable
from harness.common.programs import NOT_THERE, Answer, ask

# A hook or an alias sets them: git would look there, and not in the folder that it is given.
_OF_A_PLACE = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY", "GIT_PREFIX")
_LIMIT_S = 120.0
_LONGEST = 60  # characters of a subject in a sentence


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


def git(folder: Path, *arguments: str, limit_s: float = _LIMIT_S) -> Answer:
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
        raise RequestError("git is not on PATH: --rev and --bisect compare revisions of a git repository")
    if top.code:
        if git(folder, "rev-parse", "--is-bare-repository").out.strip() == "true":
            raise RequestError(f"{folder}: is a bare repository, without files: type this in a clone of it")
        raise RequestError(f"{folder}: git finds no working tree here ({printable(top.reason)}): type this in yours")
    root = Path(top.out.rstrip("\n"))
    if git(root, "rev-parse", "--verify", "--quiet", "HEAD").code:
        raise RequestError(f"{root}: the repository has no commit yet, so there is no revision to measure")
    return Repository(root, folder.resolve().relative_to(root.resolve()))


def revision_of(repository: Repository, text: str, flag: str) -> Revision:
    """The commit that a text names: a hash, a branch, a tag, HEAD~3, ….
    Raises RequestError: it names none. flag: which gave the text."""
    found = Answer(1, "", "") if text.startswith("-") or not text else _commit(repository, text)
    if found.code:
        names = git(
            repository.top, "for-each-ref", "--format=%(refname:short)", "refs/heads", "refs/tags", "refs/remotes"
        ).out.split()
        near = nearest(text.lstrip("-"), names)
        hint = f": did you mean {printable(near)}?" if near else " (a hash, a branch, a tag, or such as HEAD~3)"
        raise RequestError(f"{flag} {printable(text)!r}: there is no such revision in {repository.top}{hint}")
    commit = found.out.strip()
    told = git(repository.top, "log", "-1", "--format=%h%n%s", commit).out.splitlines()
    return Revision(commit, told[0], told[1] if len(told) > 1 else "")


def _commit(repository: Repository, text: str) -> Answer:
    named = git(repository.top, "rev-parse", "--verify", "--quiet", text)
    return named if named.code else git(repository.top, "rev-parse", "--verify", f"{named.out.strip()}^{{commit}}")


def uncommitted(repository: Repository) -> int:
    """Files that git tracks and that differ from the commit that is checked out."""
    return len(git(repository.top, "status", "--porcelain", "--untracked-files=no").out.splitlines())
