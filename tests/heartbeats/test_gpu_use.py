"""The use of GPUs from a monitor's files. No GPU: the files are written as the monitor writes them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.heartbeats.collect import gpu_use

HEAD = b"unix_ns,device,memory_used_bytes,utilization_percent\n"
SAMPLES = {
    "the last whole sample of each GPU": (
        "nvml",
        HEAD + b"1,0,5,10.000\n1,1,5,20.000\n2,0,5,97.400\n2,1,5,\n3,0,5",
        {0: 97, 1: 20},
    ),
    "no GPUs": ("processes", HEAD + b"1,0,5,10.0\n", {}),
    "an unknown source": ("nonsense", HEAD + b"1,0,5,10.0\n", {}),
    "no sample yet": ("nvml", HEAD, {}),
    "a damaged file": ("nvml", b"\xff\xfe", {}),
}


@pytest.mark.parametrize(("source", "samples", "use"), SAMPLES.values(), ids=SAMPLES)
def test_the_use_is_that_of_the_last_samples(tmp_path: Path, source: str, samples: bytes, use: dict[int, int]) -> None:
    assert gpu_use(tmp_path) == {}, "no file"
    (tmp_path / "meta.json").write_text(json.dumps({"schema": 1, "source": source}))
    (tmp_path / "samples.csv").write_bytes(samples)
    assert gpu_use(tmp_path) == use
