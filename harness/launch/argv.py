"""Words of a command line, and the only place that quotes them for a shell. A word is plain text, or `Shell`: text
joined with variables that only the running job knows (its run directory, its node's rank). No other module may put text
into a script."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import NamedTuple

from harness.site.alphabets import VARIABLE


@dataclass(frozen=True)
class Var:
    """A shell variable, expanded when the script runs. before: a sign to write before its value, both left out where it
    is unset or empty. otherwise: its value there."""

    var: str
    before: str = ""
    otherwise: str = ""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", self.var):
            raise ValueError(f"{self.var!r} is not the name of a shell variable")
        if not re.fullmatch(r":?", self.before) or not re.fullmatch(r"[0-9]*", self.otherwise):
            raise ValueError(f"{self.before!r} or {self.otherwise!r} is no text that may stand in an expansion")

    @property
    def expansion(self) -> str:
        """As bash reads it, without quotes around it."""
        if self.before:
            return f"${{{self.var}:+{self.before}${{{self.var}}}}}"
        return f"${{{self.var}:-{self.otherwise}}}" if self.otherwise else f"${{{self.var}}}"

    def read(self, environ: Mapping[str, str]) -> str:
        """Its text in an environment."""
        value = environ.get(self.var, "")
        return (self.before + value if value else "") if self.before else value or self.otherwise


@dataclass(frozen=True)
class Shell:
    parts: tuple[str | Var, ...]


Word = str | Shell

RUN_DIR = Var(var="RUN_DIR")
NODE = Var(var="NODE")
MASTER_ADDR = Var(var="MASTER_ADDR")
MASTER_PORT = Var(var="MASTER_PORT")


def join(*parts: str | Var) -> Shell:
    return Shell(parts=parts)


def from_site(text: str) -> Word:
    """A text of a site file, in which `$NAME` and `${NAME}` stand for the cluster's variables. Not for the words of a
    command line: the user's shell has expanded their variables."""
    if not VARIABLE.search(text):
        return text
    parts: list[str | Var] = []
    end = 0
    for match in VARIABLE.finditer(text):
        parts += [text[end : match.start()], Var(var=match[1] or match[2])]
        end = match.end()
    return Shell(parts=tuple(p for p in [*parts, text[end:]] if p != ""))


def concatenated(*words: Word) -> Word:
    """The words as one, plain text if all of them are."""
    parts = [part for word in words for part in _parts(word)]
    return Shell(parts=tuple(parts)) if any(isinstance(part, Var) for part in parts) else "".join(map(str, parts))


def _parts(word: Word) -> tuple[str | Var, ...]:
    return word.parts if isinstance(word, Shell) else (word,)


def parent(path: Word) -> Word | None:
    """The folder that holds `path`; None if only a variable holds it."""
    if not isinstance(path, Shell):
        return str(PurePosixPath(path).parent)
    *before, last = path.parts
    folder = last.rpartition("/")[0] if isinstance(last, str) else ""
    kept = (*before, folder) if folder else tuple(before)
    return Shell(parts=kept) if kept else None


class Here(NamedTuple):
    """A word as this machine expands it, and the variables that are not set here."""

    text: str
    unset: list[str]


def read_here(word: Word, environ: Mapping[str, str]) -> Here:
    """The word with its variables expanded from `environ`."""
    variables = [part for part in _parts(word) if isinstance(part, Var)]
    unset = [v.var for v in variables if not (v.before or v.otherwise or environ.get(v.var))]
    return Here("".join(part.read(environ) if isinstance(part, Var) else part for part in _parts(word)), unset)


def shown(word: Word) -> str:
    """The word for people: variables by name."""
    return "".join(f"${part.var}" if isinstance(part, Var) else part for part in _parts(word))


def quote(word: Word) -> str:
    """The word as bash reads it back: text is inert, variables are expanded and stay one word. Raises ValueError: the
    text holds a NUL byte, which no command line can carry."""
    if isinstance(word, Shell):
        return "".join(f'"{p.expansion}"' if isinstance(p, Var) else quote(p) for p in word.parts) or "''"
    if "\0" in word:
        raise ValueError("a NUL byte cannot be part of a command line")
    return shlex.quote(word)


def quote_all(words: list[Word]) -> str:
    """A whole argv; if it is longer than 100 characters, with a line per flag."""
    quoted = [quote(w) for w in words]
    if sum(map(len, quoted)) + len(quoted) <= 100:
        return " ".join(quoted)
    lines: list[str] = []
    for word in quoted:
        if lines and not word.startswith("--"):
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return " \\\n        ".join(lines)
