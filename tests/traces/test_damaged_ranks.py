"""Of many ranks each damaged file is named, and the others answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.analysis.summary import RecordingVerdict, Summary
from harness.cli.main import main
from harness.measure.paths import measure_jobs
from harness.report.tables.terminal import render
from tests.synthetic.ranks import DAMAGES, damaged, rank_trace


@pytest.fixture(scope="module")
def sixty(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[int, str], Summary]:
    """A job of 60 ranks of which several files are damaged: the folder, the damage by rank, the summary."""
    folder = tmp_path_factory.mktemp("ranks")
    for rank in range(60):
        rank_trace(folder / f"rank{rank}.json", rank, 60)
    ranks = dict(zip(range(3, 60, 3), DAMAGES * 4, strict=False))
    for rank, damage in ranks.items():
        damaged(folder / f"rank{rank}.json", damage)
    (summary,) = measure_jobs([folder])
    return folder, ranks, summary


def test_each_damaged_file_of_many_is_named_and_the_rest_answers(
    sixty: tuple[Path, dict[int, str], Summary], tmp_path: Path
) -> None:
    folder, ranks, summary = sixty
    evidence = {finding.evidence for finding in summary.quality.problems}
    unnamed = [rank for rank in ranks if not any(f"rank{rank}.json" in one for one in evidence)]
    assert unnamed == []
    assert {*range(60)} - {*ranks} <= {*summary.ranks}
    assert summary.quality.verdict is not RecordingVerdict.GOOD and summary.steps.counted >= 3 * 50
    page = tmp_path / "page.html"
    assert main(["report", str(folder), "--html", str(page)]) == 0
    text = page.read_text().replace("<wbr>", "")
    assert all(f"rank{rank}.json" in text for rank in ranks)


def test_the_terminal_names_a_few_files_and_says_where_the_others_are(
    sixty: tuple[Path, dict[int, str], Summary],
) -> None:
    folder, ranks, summary = sixty
    lost = sorted({*ranks} - {*summary.ranks})
    lines = render(summary).splitlines()
    at = lines.index(f"  ! a trace cannot be read, {len(lost)} in all:")
    block = lines[at + 1 : at + 12]
    named = [line for line in block if line.startswith(f"    {folder}")]
    assert len(named) == 3
    assert f"    … and {len(lost) - 3} more: the page (--html FILE) and --json name each" in block
