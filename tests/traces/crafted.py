"""What a report says of a file that somebody made to break it."""

from __future__ import annotations

from pathlib import Path

from harness.analysis.summary import RecordingVerdict
from harness.common.errors import HarnessError
from harness.measure.paths import measure_jobs
from harness.report.tables.terminal import render


def outcome(path: Path) -> str:
    """What a whole report says of a file: its one sentence, or the evidence of all findings."""
    try:
        (summary,) = measure_jobs([path])
    except HarnessError as error:
        text = str(error)
        assert text.startswith(str(path)) and "\n" not in text
        return text.removeprefix(f"{path}: ")
    assert render(summary)
    return "; ".join(finding.evidence for finding in summary.quality.problems)


def verdict(path: Path) -> RecordingVerdict | None:
    """What a report calls a file; None: that it cannot be read."""
    try:
        (summary,) = measure_jobs([path])
    except HarnessError:
        return None
    return summary.quality.verdict
