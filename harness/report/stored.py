"""Summaries by name: stored ones are read, a run or traces without one are measured now."""

from __future__ import annotations

from pathlib import Path

from harness.analysis.summary import Summary
from harness.errors import RequestError
from harness.report.jobs import Request, measure_request, resolve


def load_summary(token: str) -> tuple[str, Summary]:
    """(name, summary) of a summary.json, or of a run or traces, measured now if they were not yet.

    Raises:
        RequestError: it is none of these, or the file is not a summary.
    """
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
