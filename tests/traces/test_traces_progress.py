"""Every reader reports its progress."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.traces import open_trace
from tests.synthetic import kineto, nsys


@pytest.mark.parametrize("kind", ["t.json", "t.sqlite"])
def test_progress_grows_up_to_the_files_size(tmp_path: Path, kind: str) -> None:
    path = tmp_path / kind
    if kind == "t.json":
        kineto.kineto(path, [r for i in range(2_000) for r in kineto.gpu_step(10**15 + i, 10 * i)])
    else:
        made = nsys.nsys_step()
        for i in range(20_000):
            made.kernel("k", 50_000 + i, 1)
        made.saved(path)
    reported: list[tuple[int, int]] = []
    open_trace(path, progress=lambda done, total: reported.append((done, total)))
    assert len(reported) > 2
    assert {total for _, total in reported} == {path.stat().st_size}
    assert all(0 < done <= total for done, total in reported)
    assert [done for done, _ in reported] == sorted(done for done, _ in reported)
