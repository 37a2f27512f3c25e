"""Lines of the user's code as the page shows them below a sentence."""

from __future__ import annotations

from textwrap import dedent

from harness.analysis.summary import LineShare, Summary
from harness.explain.code_lines import line_words, share_words
from harness.report.elements import Code


def code_of(s: Summary, line: LineShare) -> Code:
    """The line of a finding with those around it, and its share of the loss."""
    caption = f"{line_words(s, line, sign='')}, {share_words(line)} of the loss"
    source = dedent("\n".join(line.source)).split("\n")
    return Code(caption, source, line.first_line, line.where.line or 0)
