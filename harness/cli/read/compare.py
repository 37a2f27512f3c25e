"""`slurm.sh compare`: each run or summary against the first one."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.analysis.expression import Unanswerable, evaluate
from harness.cli.options import JsonOption
from harness.common.display.printable import printable
from harness.common.errors import RequestError
from harness.common.paths import COMMAND

if TYPE_CHECKING:
    from harness.analysis.summary import Summary
    from harness.compare.summaries import SummaryDifferences


def compare(
    runs: Annotated[
        list[str], typer.Argument(metavar="A B [C…]", help="runs, traces or summary.json files, each compared with A")
    ],
    *,
    as_json: JsonOption = False,
    fail_if: Annotated[
        list[str] | None, typer.Option(metavar="EXPRESSION", help="exit 1 if true, e.g. 'step_time > 1.05' (B / A)")
    ] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="also write the comparison as one page")] = None,
    force: Annotated[bool, typer.Option("--force", help="compare also if model or sequence length differ")] = False,
) -> int:
    """Show the differences between runs: first in configuration, then in results."""
    from harness.cli.terminal import columns
    from harness.compare.summaries import compare_series
    from harness.measure.request import load_summary
    from harness.report.compare.terminal import render_comparisons
    from harness.report.tables.table import WHOLE

    if len(runs) < 2:
        raise RequestError(f"compare: give at least two runs, e.g. {COMMAND} compare local-1 local-2")
    if html is not None and html.is_dir():
        raise RequestError(f"--html {html}: is a folder; give a file, as in --html {html / 'compare.html'}")
    _refuse_twice(runs)
    found = [load_summary(token) for token in runs]
    pairs = compare_series(found, force)
    answers = [(text, _answer(pair, text)) for pair in pairs for text in fail_if or []]
    if html is not None:
        _write_page(found, pairs, html)
    if as_json:
        dumped = [p.model_dump(mode="json") for p in pairs]
        print(json.dumps(dumped[0] if len(dumped) == 1 else dumped, indent=1))
    else:
        sys.stdout.write(render_comparisons(pairs, [summary for _, summary in found], columns(WHOLE)))
    for text, fails in answers:
        print(f"fail-if {text}: {'yes' if fails else 'no'}", file=sys.stderr)
    return int(any(fails for _, fails in answers))


def _refuse_twice(runs: list[str]) -> None:
    """Raises RequestError: two of the words name the same run, summary or traces."""
    from harness.measure.request import resolve_path
    from harness.run import Run

    paths = [resolve_path(token).absolute() for token in runs]
    whole = [path.parent if path == Run(path.parent).summary else path for path in map(Path.resolve, paths)]
    for token, path in zip(runs, whole, strict=True):
        if whole.count(path) > 1:
            raise RequestError(f"compare: {printable(token)} is given twice: a run cannot be compared with itself")


def _write_page(named: list[tuple[str, Summary]], pairs: list[SummaryDifferences], html: Path) -> None:
    from harness.report.compare.page import ComparedRuns, write_comparison
    from harness.run import naming_flag

    names, summaries = zip(*named, strict=True)
    with naming_flag("--html"):
        write_comparison(ComparedRuns(names, summaries, pairs), html)
    print(f"the page: {html}", file=sys.stderr)


def _answer(comparison: SummaryDifferences, text: str) -> bool:
    """Whether what --fail-if says holds. Raises RequestError: it cannot be answered."""
    from harness.compare.summaries import ratios

    try:
        value = evaluate(text, ratios(comparison))
    except Unanswerable as why:
        raise RequestError(f"--fail-if {text!r}: {why}") from None
    if not isinstance(value, bool):
        raise RequestError(f"--fail-if {text!r}: is a number; compare it with one, as in --fail-if '{text} > 1.05'")
    return value
