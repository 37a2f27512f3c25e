"""A command for people: an option a line, as a job's script has it, and as a shell reads it back. Whatever is in its
words, it steers no terminal. Standard library only."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator

from harness.common.display.printable import printable

_WINDOW = ("--wait", "--warmup", "--active")  # of --skip: the steps around the profiled ones are one line
_FILE = re.compile(r".*\.(py|sif|sqsh)")  # a script or an image: no value of the option before it
_OPTION = re.compile(r"--?[\w-]+=(?!\Z)")  # its value gets the quotes, if it needs some


def quoted(word: str) -> str:
    r"""One word for a shell. What cannot be seen is written as a number.

    >>> quoted("it's"), quoted("--x=a\x1b[2J\n\u202e"), quoted("\udcff")
    ('\'it\'"\'"\'s\'', "--x=$'a\\x1b[2J\\n\\u202e'", "$'\\xff'")
    """
    option = _OPTION.match(word)
    name, value = (option[0], word[option.end() :]) if option else ("", word)
    if printable(value) == value:
        return name + shlex.quote(value)
    return f"{name}$'{''.join(map(_seen, value))}'"


def _seen(character: str) -> str:
    if character in "\\'":
        return f"\\{character}"
    if "\udc80" <= character <= "\udcff":  # a byte of a name that is no UTF-8
        return f"\\x{ord(character) - 0xDC00:02x}"
    if "\x80" <= character <= "\xff":  # \x would be a byte
        return f"\\u{ord(character):04x}"
    return character if " " <= character <= "~" else character.encode("unicode_escape").decode("ascii")


def lines_of(words: Iterable[tuple[str, str]]) -> Iterator[str]:
    """A line for the program with its subcommand, one for each option with its values, one for a script. words: each as
    it is, and as it is written."""
    line: list[str] = []
    for word, written in words:
        of_option = bool(line) and line[0].startswith("-")
        is_file = _FILE.fullmatch(word) and (len(line) > 1 or of_option)
        begins = word.startswith("-") or is_file or (len(line) > 1 and of_option and "/" in word)
        if line and begins and not (word in _WINDOW and line[0] == "--skip"):
            yield " ".join(line)
            line = []
        line.append(written)
    yield " ".join(line)
