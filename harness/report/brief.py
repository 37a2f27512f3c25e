"""A Summary as a notebook shows it, in a few lines of HTML; every text is escaped. Knows only the Summary."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from harness.analysis.device_time import busiest_and_idlest
from harness.analysis.summary import Summary
from harness.common.printable import printable
from harness.explain.answer import answer
from harness.report.elements import PageTable
from harness.report.tables.time import SPLIT, labelled

MOST_DEVICES = 8  # more than these are shown as the busiest and the idlest
_WITHOUT = frozenset({"idle by cause", "peak memory"})


def brief(summary: Summary) -> str:
    """The HTML of one job, some twenty lines however many ranks it has."""
    said = answer(summary)
    command = [f"<pre>{_text(said.command)}</pre>"] if said.command else []
    # The class keeps a notebook from setting a name with two dollar signs as a formula.
    return "\n".join(
        [
            '<div class="tex2jax_ignore mathjax_ignore">',
            *(f"<p>{_text(sentence)}</p>" for sentence in said.first),
            *command,
            *(f"<p>{_text(sentence)}</p>" for sentence in said.rest),
            *_split(summary),
            "</div>",
        ]
    )


def _text(text: str) -> str:
    return escape(printable(text))


def _split(s: Summary) -> Iterable[str]:
    shown = busiest_and_idlest(s.devices, MOST_DEVICES, MOST_DEVICES)
    if not shown:
        return
    whole = SPLIT.of(labelled(shown, s), s)
    kept = [i for i, name in enumerate(whole.head) if name not in _WITHOUT]
    yield _table(whole, kept)
    if len(shown) < len(s.devices):
        half = MOST_DEVICES // 2
        yield f"<p>The {half} busiest and the {half} idlest of {len(s.devices)} are shown.</p>"


def _table(shown: PageTable, kept: list[int]) -> str:
    head = "".join(f"<th>{_text(shown.head[i])}</th>" for i in kept)
    rows = "".join("<tr>" + "".join(f"<td>{_text(row[i])}</td>" for i in kept) + "</tr>" for row in shown.rows)
    return f"<table><caption>{_text(shown.caption)}</caption><tr>{head}</tr>{rows}</table>"
