"""Where a command line ends and that of the user's own training begins. Standard library only: every start asks it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

RUN = "run"
# The commands whose words are one launch.
TAKE_A_LAUNCH = frozenset({RUN, "plan", "doctor", "sweep", "scaling"})
_EXERCISE = re.compile(r"-e(=?[0-9].*)?|--exercise(=.*)?")


class Words(NamedTuple):
    """launcher: ours. script: the words of the training, untouched; None: it is an exercise, or no launch."""

    launcher: list[str]
    script: tuple[str, ...] | None


def split_line(argv: Sequence[str]) -> Words:
    """The whole command line of `slurm.sh`, as `split_launch`; one that is no launch stays whole."""
    if argv and argv[0].startswith("-"):
        return split_launch(argv)
    if not argv or argv[0] not in TAKE_A_LAUNCH:
        return Words(list(argv), None)
    words = split_launch(argv[1:], is_run=argv[0] == RUN)
    return words._replace(launcher=[argv[0], *words.launcher])


def split_launch(arguments: Sequence[str], is_run: bool = False) -> Words:
    """The words before and after the first `--`, where those after it are a training's.

    Behind `-e` they are flags of an exercise, and so are words that begin with a flag, unless `run` was typed.

    >>> split_launch(["-g", "2", "--", "train.py", "--", "-e", "1"])
    Words(launcher=['-g', '2'], script=('train.py', '--', '-e', '1'))
    >>> split_launch(["-e", "1", "--", "--mixed-precision"]).script
    """
    words = list(arguments)
    if "--" not in words:
        return Words(words, None)
    at = words.index("--")
    before, after = words[:at], words[at + 1 :]
    if _names_exercise(before) or (_is_flag(after) and (not is_run or _names_exercise(after))):
        return Words(words, None)
    return Words(before, tuple(after))


def _names_exercise(words: Sequence[str]) -> bool:
    return any(_EXERCISE.fullmatch(word) for word in words)


def _is_flag(after: Sequence[str]) -> bool:
    """Whether no program begins there: nothing, or a flag other than Python's `-m`."""
    return not after or (after[0].startswith("-") and after[0] != "-m")
