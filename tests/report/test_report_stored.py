"""A summary that is kept is read back as it was written, or refused in a sentence that says what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.analysis.summary import Problem, Summary
from harness.common.errors import RequestError
from harness.measure.request import load_summary
from tests.report.conftest import Made


def test_a_summary_is_read_back_as_it_was_written(made: Made, tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text(made.summary.model_dump_json())
    assert load_summary(str(tmp_path)) == (tmp_path.name, made.summary)


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
    assert said.endswith("`slurm.sh report RUN` writes it anew from the traces")


def test_every_summary_has_its_version() -> None:
    assert '"schema_version":1' in Summary().model_dump_json()


def test_a_summary_of_an_older_version_still_reads(tmp_path: Path, made: Made) -> None:
    doubt = Problem.doubt("events were lost", "3 of 10")
    quality = made.summary.quality.model_copy(update={"problems": [doubt]})
    content = made.summary.model_copy(update={"quality": quality}).model_dump()
    content["quality"]["findings"] = content["quality"].pop("problems")
    content |= {"hta": [{"source": "rank0.json", "total_us": 5.0}], "reference": {"name": "spring", "step_ns": 5}}
    file = tmp_path / "summary.json"
    file.write_text(json.dumps(content))
    assert load_summary(str(file))[1].quality.problems == [doubt]


def test_a_summary_of_a_timeline_of_operations_still_reads(tmp_path: Path) -> None:
    """An older version wrote the slowdown by stragglers as an object."""
    content = Summary(ranks=[0, 1]).model_dump() | {"stragglers": {"slowdown": 1.2, "by_stage": {"0": 1.1}}}
    file = tmp_path / "summary.json"
    file.write_text(json.dumps(content))
    found = load_summary(str(file))[1]
    assert (found.ranks, found.stragglers) == ([0, 1], [])
