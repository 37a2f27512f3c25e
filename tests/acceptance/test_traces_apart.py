"""A trace that cannot be made small does not affect the others."""

from __future__ import annotations

import json
import time
from pathlib import Path

import step_traces
import step_training
from place import Place
from pytest import MonkeyPatch
from results import Result, write_json

from tests.synthetic.one_gpu import summary_of, training, written


def test_one_trace_that_cannot_be_made_small_leaves_the_others_and_their_truth(
    tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    """Nothing is launched: the runs are folders, and the report is made in this process."""
    monkeypatch.setattr(step_traces, "report", lambda _place, path, *_: summary_of(path))
    about = {"device_name": "GPU", "dtype": "bfloat16", "seq_length": 1, "micro_batch_size": 1, "versions": {}}
    names = step_training.NAMES[:3]
    for name in names:
        folder = tmp_path / "runs" / name / "torch"
        folder.mkdir(parents=True)
        written(folder / "rank0.json.gz", training())
        write_json(folder.parent / "summary.json", {"training": [about]})
    (tmp_path / "runs" / names[0] / "torch" / "rank0.json.gz").write_bytes(b"cut off")
    write_json(tmp_path / "runs.json", {name: str(tmp_path / "runs" / name) for name in names})

    result = Result("traces")
    step_traces.traces(Place(tmp_path, tmp_path, tmp_path / "python", time.monotonic() + 60), result)
    assert result.state == "failed"
    assert result.reason.startswith(f"{names[0]}: a small trace: ")
    kept = {f"{name}.json.gz" for name in names[1:]}
    assert set(json.loads((tmp_path / "traces" / "truth.json").read_text())) == kept
    assert {path.name for path in (tmp_path / "traces").iterdir()} == kept | {"truth.json"}
