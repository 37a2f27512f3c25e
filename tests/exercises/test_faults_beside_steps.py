"""Each fault outside of the steps takes its time where it says: imports, the meeting, data, weights, the first forward,
checkpoints, the end."""

from __future__ import annotations

import atexit
import builtins
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
import torch.distributed as dist
import torch.distributed.checkpoint as distributed_checkpoint

from exercises.utils.faults import slow, startup
from exercises.utils.faults.inject import injected
from harness.common.errors import RequestError
from harness.common.faults import parse_fault
from tests.exercises.small_training import Tiny, arguments, prepared, train

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


def test_a_slow_import_imports_a_tree_of_modules_file_by_file(tmp_path: Path, without_plugins: Path) -> None:
    paths, hooks = list(sys.path), list(sys.path_hooks)
    begin_ns = time.perf_counter_ns()
    arguments(tmp_path, "slow-import,s=0.4")
    took_ns = time.perf_counter_ns() - begin_ns
    modules = [name for name in sys.modules if name.partition(".")[0] == startup.PACKAGE]
    assert len(modules) == startup.FILES == 211
    assert sys.modules[f"{startup.PACKAGE}.part_3.module_7"].name() == "part_3.module_7"
    (line,) = lines(tmp_path)
    assert (line["step"], line["fault"], line["rank"]) == (-1, "slow-import", 0)
    assert 400 * MS <= line["ns"] <= took_ns
    assert (sys.path, sys.path_hooks) == (paths, hooks)
    assert list(without_plugins.iterdir()) == []
    assert not [entry for entry in sys.path_importer_cache if "plugins-" in entry]


def test_the_import_is_late_on_its_rank_alone(
    tmp_path: Path, without_plugins: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    arguments(tmp_path, "slow-import,s=60,rank=1")
    assert startup.PACKAGE not in sys.modules
    assert lines(tmp_path) == []


def test_a_late_start_delays_the_meeting_on_its_rank_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    met: list[str] = []
    monkeypatch.setattr(dist, "init_process_group", met.append)
    usual = dist.init_process_group
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in (0, 1):
        monkeypatch.setenv("RANK", str(rank))
        arguments(tmp_path, "late-start,s=0.1,rank=1")
        _, took_ns = timed(lambda: dist.init_process_group("gloo"))
        startup.first_step_begins()
        assert dist.init_process_group is usual
    assert met == ["gloo", "gloo"]
    assert lines(tmp_path, 0) == []
    (line,) = lines(tmp_path, 1)
    assert (line["step"], line["fault"]) == (-1, "late-start") and 100 * MS <= line["ns"] <= took_ns


def test_a_process_that_knows_its_rank_only_then_is_late_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "init_process_group", lambda *_, **__: None)
    startup.begin_own(tmp_path, ["late-start,s=0.05,rank=1"])
    for rank in (0, 1):
        dist.init_process_group("gloo", rank=rank, world_size=2)
    startup.first_step_begins()  # else a later test would put this test's function back
    assert (len(lines(tmp_path, 0)), len(lines(tmp_path, 1))) == (0, 1)


@pytest.fixture
def usual_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Afterwards files are opened as before."""
    monkeypatch.setattr(builtins, "open", builtins.open)
    monkeypatch.setattr(io, "open", io.open)


def test_each_block_of_the_data_is_slow_once(tmp_path: Path, usual_files: None) -> None:
    data, other = tmp_path / "data.json", tmp_path / "other.json"
    text = json.dumps(["é" * 60] * 2000)
    for path in (data, other):
        path.write_text(text, encoding="utf-8")
    blocks = -(-data.stat().st_size // startup.BLOCK)
    assert blocks > 2
    arguments(tmp_path, "cold-cache,ms=40", extra=("--data", str(data)))
    with data.open("rb") as file:
        head, head_ns = timed(lambda: file.read(10))
    assert head == text.encode()[:10] and head_ns >= 40 * MS
    read, cold_ns = timed(lambda: data.read_text(encoding="utf-8"))
    assert read == data.read_text(encoding="utf-8") == other.read_text(encoding="utf-8") == text
    first, second = lines(tmp_path)  # what was read again, or is no data, was not delayed
    assert {line["fault"] for line in (first, second)} == {"cold-cache"}
    assert 40 * MS <= first["ns"] <= head_ns and 40 * (blocks - 1) * MS <= second["ns"] <= cold_ns


def test_in_a_training_of_ones_own_every_file_that_is_no_code_is_data(tmp_path: Path, usual_files: None) -> None:
    run, mine = tmp_path / "run", tmp_path / "mine"
    run.mkdir()
    mine.mkdir()
    for path in (run / "x.json", mine / "x.json", mine / "x.py"):
        path.write_text("1", encoding="ascii")
    startup.begin_own(run, ["cold-cache,ms=1"])
    for path in (run / "x.json", mine / "x.py", mine / "x.json"):
        assert path.open(encoding="ascii").read() == path.read_bytes().decode() == "1"
    with (mine / "new.txt").open("x") as file:
        file.write("written as ever")
    assert len(lines(run)) == 1


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


def test_a_long_compile_is_in_the_first_forward_alone(tmp_path: Path) -> None:
    seen = train(tmp_path, "long-compile,s=0.2", steps=3)
    (line,) = seen.lines
    assert (line["step"], line["fault"]) == (0, "long-compile")
    assert 200 * MS <= line["ns"] <= seen.phase("forward")[0]


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
    torch.save({}, tmp_path / "later.pt")
    assert len(lines(tmp_path)) == 2


def test_a_slow_checkpoint_needs_one(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="the training writes no checkpoints: add --checkpoint-every 5"):
        arguments(tmp_path, "slow-checkpoint,ms=1")


def test_a_slow_tail_comes_when_the_script_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_end: list[Callable[[], object]] = []
    monkeypatch.setattr(atexit, "register", at_end.append)
    monkeypatch.setenv("WORLD_SIZE", "2")
    seen = train(tmp_path, "slow-tail,s=0.3", steps=2)
    assert seen.lines == []
    (write_results,) = (action for action in at_end if action.__module__ == slow.__name__)
    _, took_ns = timed(write_results)
    (line,) = lines(tmp_path)
    assert (line["step"], line["fault"]) == (1, "slow-tail")
    assert 300 * MS <= line["ns"] <= took_ns
    assert not list(tmp_path.glob("results-*"))


def test_a_training_that_failed_has_no_slow_tail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_end: list[Callable[[], object]] = []
    monkeypatch.setattr(atexit, "register", at_end.append)
    monkeypatch.setenv("WORLD_SIZE", "2")
    train(tmp_path, "slow-tail,s=60", steps=1)
    monkeypatch.setattr(sys, "last_value", RuntimeError("no"), raising=False)
    for action in at_end:
        action()
    assert lines(tmp_path) == []


def test_a_time_in_seconds_is_integer_nanoseconds() -> None:
    assert parse_fault("slow-import,s=0.25").ns() == 250 * MS
