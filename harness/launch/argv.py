"""Words of a command line, and the only place that quotes them for a shell. A word is plain text, or `Shell`: text
joined with variables that only the running job knows (its run directory, its node's rank). No other module may put text
into a script."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import NamedTuple

from harness.common.system.shell_words import lines_of

NODE = "%q{SLURM_NODEID}"
NODE_NAME = "%q{SLURMD_NODENAME}"
"""The node's number and name, as nsys writes a variable of the node; harness.launch.on_node.node puts its own there."""
OF_NODE = re.compile(r"%q\{(SLURM_NODEID|SLURMD_NODENAME)\}")
_INERT = re.compile(r"[^\"$`\\!\n\0]*")  # inside of double quotes
_OPTION = re.compile(r"--?[\w-]+=(?!\Z)")  # its value gets the quotes, if it needs some
_WIDE = 132


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
MASTER_ADDR = Var(var="MASTER_ADDR")
MASTER_PORT = Var(var="MASTER_PORT")


def join(*parts: str | Var) -> Shell:
    return Shell(parts=parts)


def from_site(text: str) -> Word:
    """A text of a site file, in which `$NAME` and `${NAME}` stand for the cluster's variables. Not for the words of a
    command line: the user's shell has expanded their variables."""
    from harness.site.alphabets import VARIABLE  # with pydantic, which a node does not need

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
    text = "".join(part.read(environ) if isinstance(part, Var) else part for part in _parts(word))
    return Here(OF_NODE.sub(lambda found: environ.get(found[1], found[0]), text), unset)


def shown(word: Word) -> str:
    """The word for people: variables by name."""
    return "".join(f"${part.var}" if isinstance(part, Var) else part for part in _parts(word))


def quote(word: Word) -> str:
    """The word as bash reads it back: text is inert, variables are expanded and stay one word. Raises ValueError: the
    text holds a NUL byte, which no command line can carry."""
    first, *rest = _parts(word) or ("",)
    option = _OPTION.match(first) if isinstance(first, str) else None
    if option is None and isinstance(first, str) and rest and re.fullmatch(r"--?[\w-]+=", first):
        return first + _quoted(Shell(tuple(rest)))
    if option is None or not isinstance(first, str):
        return _quoted(word)
    value = first[option.end() :]
    return option[0] + _quoted(Shell((value, *rest)) if rest else value)


def _quoted(word: Word) -> str:
    if isinstance(word, Shell):
        if all(isinstance(part, Var) or _INERT.fullmatch(part) for part in word.parts):
            return f'"{"".join(_expanded(word.parts))}"'
        return "".join(f'"{p.expansion}"' if isinstance(p, Var) else _quoted(p) for p in word.parts)
    if "\0" in word:
        raise ValueError("a NUL byte cannot be part of a command line")
    return shlex.quote(word)


def _expanded(pieces: Sequence[str | Var]) -> Iterator[str]:
    """Texts and expansions, the latter without braces where none are needed."""
    for part, after in zip(pieces, [*pieces[1:], ""], strict=True):
        if isinstance(part, str):
            yield part
        elif part.before or part.otherwise or isinstance(after, Var) or re.match(r"\w|\[", after):
            yield part.expansion
        else:
            yield f"${part.var}"


def quote_all(words: Sequence[Word]) -> str:
    """A whole argv on one line."""
    return " ".join(map(quote, words))


def quote_lines(words: Sequence[Word], why: str = "") -> str:
    """The words below each other: an option with its values a line, the program's own words before on the first. why: a
    comment for it."""
    first, *rest = lines_of((shown(word), quote(word)) for word in words)
    return "\n  ".join([f"{first} # {why}" if why and rest else first, *rest])


def continued(words: Sequence[Word]) -> str:
    """The lines of `quote_lines` as one command."""
    return " \\\n  ".join(lines_of((shown(word), quote(word)) for word in words))


def assignments(variables: Mapping[str, Word], first: str = "export") -> str:
    """Assignments of variables: the first on a line of its own, of the others as many as fit."""
    texts = [f"{name}={quote(word)}" for name, word in variables.items()]
    lines = [f"{first} {texts[0]}", " "]
    for text in texts[1:]:
        if len(lines[-1]) + len(text) > _WIDE:
            lines.append(" ")
        lines[-1] += f" {text}"
    return " \\\n".join(lines)
