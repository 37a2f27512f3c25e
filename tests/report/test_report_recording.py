"""A report says that a trace is missing, or that no trace was requested; each doubt is shown whole. A summary that is
kept is read back as it was written, or refused in a sentence that says what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.summary import Problem, Quality, RecordingVerdict, Summary, Withheld
from harness.common.errors import RequestError
from harness.measure.paths import measure_jobs
from harness.measure.request import load_summary
from harness.report.page.compose import compose
from harness.report.page.inputs import Inputs, gather
from harness.report.tables.table import WIDTH
from harness.report.tables.terminal import render
from harness.run import Run
from tests.report.conftest import Made
from tests.synthetic.job import write_traces


def a_run(folder: Path, expects: list[str], state: str = "completed") -> Path:
    """A run that trained and should leave these reports."""
    (folder / "metrics").mkdir(parents=True)
    (folder / "metrics/rank0.jsonl").write_text(
        '{"event": "start", "rank": 0, "world_size": 1}\n{"event": "end", "status": "completed"}\n'
    )
    record: dict[str, Any] = {"job_id": "local-1", "experiment": {"exercise": 1}, "job": {"expects": expects}}
    (folder / "run.json").write_text(json.dumps(record))
    (folder / "status.json").write_text(json.dumps({"state": state}))
    return folder


def shown(run: Path) -> tuple[Summary, str, str]:
    """The summary, and what terminal and page say about its recording."""
    (summary,) = measure_jobs([run])
    page = compose(summary, Inputs())
    (quality,) = (section for section in (*page.before, *page.after) if section.id == "quality")
    rows = [" ".join(row) for table in quality.tables for row in table.rows]
    return summary, render(summary), " ".join([quality.note, *rows])


@pytest.mark.parametrize(
    ("state", "why"),
    [("completed", "the program started no profiler, or the"), ("running", "has not recorded its end")],
)
def test_a_trace_that_was_asked_for_and_is_not_there_is_missing(tmp_path: Path, state: str, why: str) -> None:
    run = a_run(tmp_path / "run", ["nsys/profile_node0.nsys-rep", "nsys/profile_node1.nsys-rep"], state)
    summary, terminal, page = shown(run)
    assert summary.quality.verdict is RecordingVerdict.DOUBTFUL
    for text in (terminal, page):
        assert "Recording: doubtful" in text and "Recording: good" not in text
        assert "no trace" in text and "nsys/profile_node0.nsys-rep and 1 more are missing" in text and why in text


def test_an_empty_trace_is_missing_and_a_report_kept_only_as_its_export_is_not(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", ["torch/rank0.json.gz", "torch/rank1.json.gz", "nsys/profile_node0.nsys-rep"])
    for file in write_traces(run / "torch", ranks=1):
        file.rename(file.with_name("rank0.json.gz"))
    (run / "torch/rank1.json.gz").write_bytes(b"")
    (run / "nsys").mkdir()
    (run / "nsys/profile_node0.sqlite").write_bytes(b"SQLite format 3\0")
    summary, terminal, _ = shown(run)
    assert "? a trace is missing: torch/rank1.json.gz is missing" in terminal
    assert "profile_node0.nsys-rep" not in terminal
    assert summary.sources


def test_a_run_that_asked_for_no_profile_misses_none(tmp_path: Path) -> None:
    summary, terminal, page = shown(a_run(tmp_path / "run", []))
    assert summary.quality.verdict is RecordingVerdict.GOOD
    assert "Recording: none was asked for" in terminal and "Recording: none was asked for" in page


@pytest.mark.parametrize("content", [
    '{"exper', '{"job": {"expects": [-1]}}', '{"site": "leonardo"}', "[]",
    '{"inherited": {"NCCL_X": 1}}', '{"edited": 3}',
])  # fmt: skip
def test_a_damaged_record_is_named_and_the_rest_is_shown(tmp_path: Path, content: str) -> None:
    run = a_run(tmp_path / "run", [])
    (run / "run.json").write_text(content)
    summary, terminal, _ = shown(run)
    assert "? the run's record cannot be read: run.json: " in terminal
    assert summary.training and summary.run is None
    facts = dict(next(s for s in compose(summary, gather(Run(run))).after if s.id == "run").facts)
    assert "run.json cannot be read" in facts["left out"]


def test_a_finding_is_shown_whole_with_its_count_before_its_reason() -> None:
    evidence = "/a/long/path/" * 8 + "trace.json: is a Git LFS pointer: fetch it with `git lfs pull`"
    findings = [Problem(severity=RecordingVerdict.DOUBTFUL, what="a trace cannot be read", evidence=evidence)] * 2
    withheld = [Withheld(field="idle_ns", reason="because " * 30 + "of that")]
    text = render(Summary(quality=Quality(verdict=RecordingVerdict.DOUBTFUL, problems=findings, withheld=withheld)))
    assert max(map(len, text.splitlines())) <= WIDTH
    words = " ".join(text.split())
    assert "? a trace cannot be read (and 1 more like it): /a/long" in words
    assert "fetch it with `git lfs pull`" in words and "because of that" in words


def test_a_summary_is_read_back_as_it_was_written(made: Made, tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text(made.summary.model_dump_json())
    assert load_summary(str(tmp_path)) == (tmp_path.name, made.summary)
    (trace,) = write_traces(tmp_path / "torch", ranks=1)
    before = [
        source.model_copy(update={"path": f"/elsewhere/torch/{trace.name}"}) for source in made.summary.sources[:1]
    ]
    (tmp_path / "summary.json").write_text(made.summary.model_copy(update={"sources": before}).model_dump_json())
    assert load_summary(str(tmp_path))[1].sources[0].path == str(trace), "of a run that was moved"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ('{"schema_version": 99}', "version 99, not 1"),
        ("{}", "it has no version"),
        ("[]", "it has no version"),
        ('{"schema_ver', "is not JSON: Unterminated string"),
        ('{"schema_version": 1, "later": 2}', "Object contains unknown field `later`"),
    ],
)
def test_what_is_no_summary_of_this_version_is_not_compared(tmp_path: Path, content: str, why: str) -> None:
    file = tmp_path / "summary.json"
    file.write_text(content)
    with pytest.raises(RequestError) as refused:
        load_summary(str(file))
    said = str(refused.value)
    assert said.startswith(f"{file}: is not a summary of this program ({why}")
    assert said.endswith("`bash slurm.sh report RUN` writes it anew from the traces")
