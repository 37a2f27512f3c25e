"""Lines of the user's code in words: the line, its share of a loss, its path from where the training began."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from harness.analysis.summary import LineShare, Summary
from harness.common.paths import ROOT
from harness.experiment.own import Own
from harness.explain.request import asked_of

MOST_SHOWN = 0.2  # of a loss, from which a line after the first one is shown with its source


def lines_sentence(s: Summary, lines: Sequence[LineShare]) -> str:
    """The lines with their shares: "62 % of it is at train.py:42 in `train`, 20 % at data.py:7 in `load`."."""
    first, *others = lines
    more = "".join(f", {share_words(line)} at {line_words(s, line)}" for line in others)
    return f"{share_words(first)} of it is at {line_words(s, first)}{more}."


def line_words(s: Summary, line: LineShare, sign: str = "`") -> str:
    """The line as it is in a sentence: "train.py:42 in `train`". sign: around the function's name."""
    where = line.where
    inside = "" if where.function == "<module>" else f" in {sign}{_unquoted(where.function)}{sign}"
    return f"{_unquoted(short_file(s, where.file))}:{where.line}{inside}"


def _unquoted(name: str) -> str:
    """A name without the sign that begins and ends a command in a sentence."""
    return name.replace("`", "'")


def share_words(line: LineShare) -> str:
    """
    >>> from harness.analysis.summary import CodeLocation
    >>> share_words(LineShare(where=CodeLocation(file="a.py", line=1, function="f"), share=0.618))
    '62 %'
    """
    return f"{100 * line.share:.0f} %"


def short_file(s: Summary, file: str) -> str:
    """The path from the folder in which the training was started, or from this checkout; others as they are."""
    asked = asked_of(s)
    folders = [asked.start_in] if isinstance(asked, Own) and asked.start_in else []
    for folder in (*folders, str(ROOT)):
        if PurePath(file).is_relative_to(folder) and file != folder:
            return str(PurePath(file).relative_to(folder))
    return file


def shown_lines(lines: Sequence[LineShare]) -> list[LineShare]:
    """The lines whose source is worth showing."""
    return [line for i, line in enumerate(lines) if line.source and (i == 0 or line.share >= MOST_SHOWN)]
