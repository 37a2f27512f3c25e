"""Summaries by name: stored ones are read, a run or traces without one are measured now."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from harness.analysis.summary import SCHEMA_VERSION, Summary
from harness.common.bounded_read import parse_json, read_bounded_text, why_unread
from harness.common.errors import RequestError
from harness.common.paths import PROGRAM
from harness.common.printable import printable_json
from harness.measure.request import Request, measure_request, resolve_path
from harness.run import Run


def load_summary(token: str) -> tuple[str, Summary]:
    """(name, summary) of a summary.json, or of a run or traces, which are measured now without a stored summary.

    Raises:
        RequestError: there is no such path or run, or the file is not a summary.
    """
    path = resolve_path(token)
    stored = path if path.suffix == ".json" and path.name.startswith("summary") else Run(path).summary
    if not stored.is_file():
        measured = measure_request(Request(tokens=[token])).summaries
        if len(measured) != 1:
            raise RequestError(f"{token}: holds the traces of {len(measured)} jobs: name one of them")
        return path.name, measured[0]
    name = stored.parent.name if stored == Run(stored.parent).summary else stored.name
    return name, _found_again(_read(stored), stored.parent)


def _read(stored: Path) -> Summary:
    try:
        text = read_bounded_text(stored)
        version = _version(parse_json(text))
        if version == SCHEMA_VERSION:
            return Summary.model_validate_json(printable_json(text))
        reason = "it has no version" if version is None else f"version {version}, not {SCHEMA_VERSION}"
    except ValidationError as error:
        first = error.errors()[0]
        reason = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    except (OSError, ValueError) as error:
        reason = why_unread(error)
    raise RequestError(
        f"{stored}: is not a summary of this program ({reason}): `{PROGRAM} report RUN` writes it anew from the traces"
    )


def _version(content: object) -> object:
    return content.get("schema_version") if isinstance(content, dict) else None


def _found_again(summary: Summary, folder: Path) -> Summary:
    """The summary with the present paths of the traces, if the run was moved after the summary was written."""
    sources = []
    for source in summary.sources:
        before = Path(source.path)
        now = folder / before.parent.name / before.name
        is_moved = not before.exists() and now.is_file()
        sources.append(source.model_copy(update={"path": str(now)}) if is_moved else source)
    return summary.model_copy(update={"sources": sources})
