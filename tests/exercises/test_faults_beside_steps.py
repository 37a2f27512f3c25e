"""Each fault outside of the steps takes its time where it says: imports, weights, checkpoints."""

from __future__ import annotations

import io
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("accelerate", reason="the training scripts need their libraries")

import torch
import torch.distributed.checkpoint as distributed_checkpoint

from exercises.utils.faults import startup
from exercises.utils.faults.inject import injected
from tests.exercises.small_training import Tiny, arguments, prepared

MS = 1_000_000


@pytest.fixture(autouse=True)
def ended_at_the_first_step() -> Iterator[None]:
    """Whatever a test started ends with it."""
    yield
    startup.first_step_begins()


def lines(folder: Path, rank: int = 0) -> list[dict[str, Any]]:
    path = folder / "faults" / f"rank{rank}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def timed(read: Callable[[], Any]) -> tuple[Any, int]:
    begin_ns = time.perf_counter_ns()
    return read(), time.perf_counter_ns() - begin_ns


@pytest.fixture
def without_plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder for temporary files; afterwards the package is not imported any more."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == startup.PACKAGE]:
        del sys.modules[name]


def test_a_slow_import_imports_a_package_file_by_file(tmp_path: Path, without_plugins: Path) -> None:
    paths, hooks = list(sys.path), list(sys.path_hooks)
    begin_ns = time.perf_counter_ns()
    arguments(tmp_path, "slow-import,s=0.4")
    took_ns = time.perf_counter_ns() - begin_ns
    modules = [name for name in sys.modules if name.partition(".")[0] == startup.PACKAGE]
    assert len(modules) == startup.FILES == 201
    assert sys.modules[f"{startup.PACKAGE}.module_7"].name() == "module_7"
    (line,) = lines(tmp_path)
    assert (line["step"], line["fault"], line["rank"]) == (-1, "slow-import", 0)
    assert 400 * MS <= line["ns"] <= took_ns
    assert (sys.path, sys.path_hooks) == (paths, hooks)
    assert list(without_plugins.iterdir()) == []
    assert not [entry for entry in sys.path_importer_cache if "plugins-" in entry]


def test_each_tensor_of_the_weights_is_late_until_the_training_begins(tmp_path: Path) -> None:
    asked = arguments(tmp_path, "slow-weights,ms=25")
    training, build_ns = timed(lambda: prepared(asked, steps=1))
    tensors = len(list(training.model.parameters()))
    assert build_ns >= 25 * tensors * MS
    with torch.device("meta"):
        Tiny()  # its tensors have no values, so that none comes late
    with injected(training, training.model, training.optimizer):
        (line,) = lines(tmp_path)
        assert line["step"] == -1 and 25 * tensors * MS <= line["ns"] <= build_ns
        Tiny()
    assert len(lines(tmp_path)) == 1


def test_a_slow_checkpoint_delays_each_file_of_it(tmp_path: Path) -> None:
    took: list[int] = []

    def save(step: int) -> None:
        if step == 1:
            state = {"weight": torch.ones(3)}
            took.append(timed(lambda: torch.save(state, tmp_path / "whole.pt"))[1])
            torch.save(state, io.BytesIO())  # memory is no file
            took.append(timed(lambda: distributed_checkpoint.save(state, checkpoint_id=tmp_path / "parts"))[1])  # type: ignore[attr-defined]  # not in its __all__

    asked = arguments(tmp_path, "slow-checkpoint,ms=150", extra=("--checkpoint-every", "2"))
    training = prepared(asked, steps=3)
    with injected(training, training.model, training.optimizer) as faulty:
        for step, batch in enumerate(faulty.loader):
            faulty.model(batch)
            save(step)
    assert [line["step"] for line in lines(tmp_path)] == [1, 1]
    for line, ns in zip(lines(tmp_path), took, strict=True):
        assert 150 * MS <= line["ns"] <= ns
    assert torch.equal(torch.load(tmp_path / "whole.pt")["weight"], torch.ones(3))
