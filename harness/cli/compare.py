"""`slurm.sh compare`: runs or summaries against the first of them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.errors import RequestError

if TYPE_CHECKING:
    from harness.analysis.compare import Comparison
    from harness.analysis.summary import Summary


def compare(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="A B [C…]", help="runs, traces, or summary.json files; A is the base"),
    ],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="print the comparison as JSON")] = False,
    fail_if: Annotated[
        list[str] | None,
        typer.Option(
            "--fail-if", metavar="EXPRESSION", help="exit 1 when true, e.g. 'step_time > 1.05' (b over a)"
        ),
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="also write the comparison as one page")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="compare even another model or sequence length")
    ] = False,
) -> int:
    """What differs between runs: configuration first, then results."""
    from harness.analysis.compare import compare as compare_summaries  # noqa: PLC0415 - numpy
    from harness.report.compare_terminal import render_comparisons  # noqa: PLC0415 - as above

    if len(runs) < 2:
        raise RequestError("compare: give at least two runs, e.g. slurm.sh compare local-1 local-2")
    found = [load_summary(token) for token in runs]
    pairs = [compare_summaries(found[0][1], b, (found[0][0], name), force) for name, b in found[1:]]
    if html is not None:
        _write_page(found, pairs, html)
    if as_json:
        dumped = [p.model_dump(mode="json") for p in pairs]
        print(json.dumps(dumped[0] if len(dumped) == 1 else dumped, indent=1))
    else:
        sys.stdout.write(render_comparisons(pairs))
    failures = [_fails(pair, text) for pair in pairs for text in fail_if or []]  # each says what it found
    return int(any(failures))


def _write_page(found: list[tuple[str, Summary]], pairs: list[Comparison], html: Path) -> None:
    from harness.report.page_compare import Compared, write_comparison  # noqa: PLC0415 - as in `compare`
    from harness.traces.progress import Progress  # noqa: PLC0415 - as above

    if html.is_dir():
        raise RequestError(f"--html {html}: is a folder; give a file, as in --html {html / 'compare.html'}")
    names, summaries = zip(*found, strict=True)
    with Progress("drawing the page") as progress:
        write_comparison(Compared(names, summaries, pairs), html, progress)
    print(f"the page: {html}", file=sys.stderr)


def _fails(comparison: Comparison, text: str) -> bool:
    from harness.analysis.compare import ratios  # noqa: PLC0415 - numpy
    from harness.study.expression import Unanswerable, evaluate  # noqa: PLC0415 - as above

    known = ratios(comparison)
    try:
        true = bool(evaluate(text, known))
    except Unanswerable as missing:
        raise RequestError(f"--fail-if {text!r}: {missing} was not measured in both runs") from None
    print(f"fail-if {text}: {'yes' if true else 'no'}", file=sys.stderr)
    return true


def load_summary(token: str) -> tuple[str, Summary]:
    """(name, summary) of a summary.json, or of a run or traces, measured now if they were not yet.

    Raises:
        RequestError: it is none of these, or the file is not a summary.
    """
    from harness.analysis.summary import Summary  # noqa: PLC0415 - --help does without
    from harness.report.jobs import Request, measure_request, resolve  # noqa: PLC0415 - as above

    path = resolve(token)
    stored = path if path.suffix == ".json" and path.name.startswith("summary") else path / "summary.json"
    if not stored.is_file():
        measured = measure_request(Request(tokens=[token]))
        if len(measured) != 1:
            raise RequestError(f"{token}: holds the traces of {len(measured)} jobs: name one of them")
        return path.name, measured[0]
    try:
        name = stored.parent.name if stored.name == "summary.json" else stored.name
        summary = Summary.model_validate_json(stored.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RequestError(f"{stored}: is not a summary of ours ({str(error).splitlines()[0]})") from None
    return name, _found_again(summary, stored.parent)


def _found_again(summary: Summary, folder: Path) -> Summary:
    """The summary with the traces of a run that was moved since: they lie in it as they did."""
    sources = []
    for source in summary.sources:
        before = Path(source.path)
        now = folder / before.parent.name / before.name
        is_moved = not before.exists() and now.is_file()
        sources.append(source.model_copy(update={"path": str(now)}) if is_moved else source)
    return summary.model_copy(update={"sources": sources})
