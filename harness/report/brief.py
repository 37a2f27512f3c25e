"""A Summary as a notebook shows it: its answer in a few lines of HTML; every text is escaped."""

from __future__ import annotations

from html import escape

from harness.analysis.summary import Summary
from harness.common.display.printable import printable
from harness.explain.answer import answer


def brief(summary: Summary) -> str:
    """The HTML of one job, some ten lines however many ranks it has."""
    said = answer(summary)
    command = [f"<pre>{_text(said.command)}</pre>"] if said.command else []
    # The class keeps a notebook from setting a name with two dollar signs as a formula.
    return "\n".join(
        [
            '<div class="tex2jax_ignore mathjax_ignore">',
            *(f"<p>{_text(sentence)}</p>" for sentence in said.first),
            *command,
            *(f"<p>{_text(sentence)}</p>" for sentence in said.rest),
            "</div>",
        ]
    )


def _text(text: str) -> str:
    return escape(printable(text))
