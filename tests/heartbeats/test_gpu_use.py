"""The use of GPUs from a monitor's files. No GPU: the files are written as the monitor writes them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.heartbeats.collect import gpu_use


def written(folder: Path, source: str, rows: str) -> Path:
    (folder / "meta.json").write_text(json.dumps({"schema": 1, "source": source}))
    (folder / "samples.csv").write_text(f"unix_ns,device,memory_used_bytes,utilization_percent\n{rows}")
    return folder


def test_the_last_whole_sample_of_each_gpu_counts(tmp_path: Path) -> None:
    rows = "1,0,5,10.000\n1,1,5,20.000\n2,0,5,97.400\n2,1,5,\n3,0,5"
    assert gpu_use(written(tmp_path, "nvml", rows)) == {0: 97, 1: 20}


@pytest.mark.parametrize("source", ["processes", "nonsense"])
def test_without_gpus_there_is_none(tmp_path: Path, source: str) -> None:
    assert gpu_use(written(tmp_path, source, "1,0,5,10.0\n")) == {}


def test_files_that_are_missing_or_damaged_are_none(tmp_path: Path) -> None:
    assert gpu_use(tmp_path) == {}
    assert gpu_use(written(tmp_path, "nvml", "")) == {}
    (tmp_path / "samples.csv").write_bytes(b"\xff\xfe")
    assert gpu_use(tmp_path) == {}
