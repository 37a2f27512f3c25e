"""A file that lacks its end never gives a confident answer, however it lost it; of many files each is named."""

from __future__ import annotations

import gzip
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.analysis.summary import RecordingVerdict, Summary
from harness.cli.main import main
from harness.common.errors import HarnessError
from harness.measure.paths import measure_jobs
from harness.report.tables.terminal import render
from tests.synthetic import kineto, nsys, one_gpu
from tests.synthetic.ranks import DAMAGES, damaged, rank_trace

SHARES = [0.02, 0.2, 0.5, 0.8, 0.95, 0.99, 0.999]


def verdict(path: Path) -> RecordingVerdict | None:
    """What the report says of one file; None: that it cannot be read."""
    try:
        (summary,) = measure_jobs([path])
    except HarnessError as error:
        assert str(error).startswith(str(path))
        return None
    return summary.quality.verdict


def good_export(path: Path) -> Path:
    """Six steps of which each has a kernel and the call that launched it, over many pages."""
    made = nsys.Nsys()
    made.add("TARGET_INFO_GPU", vmId=1, id=1, name="NVIDIA A100", cuDevice=0)
    number = 0
    for step in range(6):
        begin = 1_000_000 * step
        made.range(f"batch_{step}", begin, 999_000)
        for k in range(50):
            number += 1
            made.call("cudaLaunchKernel", begin + 1_000 + 15_000 * k, 500, correlation=number)
            made.kernel("gemm", begin + 3_000 + 15_000 * k, 14_000, correlation=number)
    return made.saved(path, page_bytes=512)


def cuts(folder: Path) -> Iterator[tuple[str, Path]]:
    """One recording in every form that a copy or a full disk can leave behind."""
    packed = one_gpu.written(folder / "whole.json.gz", one_gpu.training()).read_bytes()
    texts = {"json": gzip.decompress(packed), "pretty.json": kineto.kineto_text(kineto.gpu_step()).rstrip()}
    export = good_export(folder / "whole.sqlite").read_bytes()
    whole = {**texts, "json.gz": packed, "sqlite": export, "sqlite.gz": gzip.compress(export)}
    for form, data in whole.items():
        for share in SHARES:
            path = folder / f"cut-{share}.{form}"
            path.write_bytes(data[: int(share * len(data))])
            yield f"{form} cut at {share}", path
    for form in ("json.gz", "sqlite.gz"):
        path = folder / f"trailer.{form}"
        path.write_bytes(whole[form][:-8])
        yield f"{form} without its checksum", path


def test_no_file_that_lacks_its_end_is_called_good(tmp_path: Path) -> None:
    assert verdict(one_gpu.written(tmp_path / "whole.json.gz", one_gpu.training())) is RecordingVerdict.GOOD
    assert verdict(good_export(tmp_path / "whole.sqlite")) is RecordingVerdict.GOOD
    assert [name for name, path in cuts(tmp_path) if verdict(path) is RecordingVerdict.GOOD] == []


@pytest.mark.parametrize("table", ["CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"])
def test_an_export_whose_last_rows_are_holes_is_not_called_good(tmp_path: Path, table: str) -> None:
    """A copy that was interrupted can leave a file of the right length with zeros in it."""
    path = good_export(tmp_path / "t.sqlite")
    with sqlite3.connect(path) as database:
        ((root,),) = database.execute(f"SELECT rootpage FROM sqlite_master WHERE name='{table}'")
    database.close()
    data = bytearray(path.read_bytes())
    right_child = int.from_bytes(data[512 * (root - 1) + 8 : 512 * (root - 1) + 12], "big")
    data[512 * (right_child - 1) : 512 * right_child] = bytes(512)
    path.write_bytes(data)
    assert verdict(path) is None


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
