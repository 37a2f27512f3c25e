"""What is recorded: the window's steps, and further ones when the training is asked for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import pytest

from harness.common.run_folder.captures import (
    CaptureRequest,
    answer_file,
    as_text,
    folder_of,
    given_up_file,
    request_file,
    stop_file,
)
from harness.common.run_folder.profile_window import ProfileWindow
from tests.exercises.launching import trace_events

torch = pytest.importorskip("torch", reason="the training scripts need PyTorch")

from harness.observe.capture import LOOK_S, Capture, OnRequest, open_capture  # noqa: E402
from harness.observe.ranges import annotate  # noqa: E402


@pytest.mark.parametrize(
    ("active", "recorded"), [(2, {"batch_3", "batch_4"}), (50, {"batch_3", "batch_4", "batch_5"})], ids=["whole", "cut"]
)
def test_torch_capture_records_the_active_steps_and_leaves_no_partial_file(
    tmp_path: Path, active: int, recorded: set[str]
) -> None:
    with open_capture("torch", ProfileWindow(1, 1, 1, active), tmp_path, rank=3) as capture:
        for step in range(6):
            capture.step_begins(step)
            with annotate(f"batch_{step}"):
                torch.ones(2, 2) @ torch.ones(2, 2)
            capture.step_ends(step)
    (path,) = tmp_path.rglob("*.json.gz")
    assert path == tmp_path / "torch/rank3.json.gz"
    names = {str(event["name"]) for event in trace_events(path)}
    assert {name for name in names if name.startswith("batch_")} == recorded


def ask(run: Path, number: int, steps: int, reports: int = 0) -> None:
    request_file(run).write_text(as_text(CaptureRequest(number, steps=steps, reports=reports)))


def trained(capture: Capture, steps: int, events: Mapping[int, Sequence[Callable[[], object]]]) -> None:
    """A training whose steps are longer than the time between two looks. events: what happens before a step."""
    with capture:
        for step in range(steps):
            for event in events.get(step, ()):
                event()
            capture._looked_s = -LOOK_S  # type: ignore[attr-defined]
            capture.step_begins(step)
            with annotate(f"batch_{step}"):
                torch.ones(2).sum()
            capture.step_ends(step)


def test_steps_that_are_asked_for_are_recorded_without_a_new_start(tmp_path: Path) -> None:
    def recorded(number: int) -> list[str]:
        path = folder_of(tmp_path, number) / "rank0.json.gz"
        return sorted({e["name"] for e in trace_events(path) if str(e.get("name")).startswith("batch_")})

    request_file(tmp_path).parent.mkdir()
    trained(OnRequest(Capture(), tmp_path, rank=0, first_step=2, lead=1), 12, {
        1: [partial(ask, tmp_path, 1, 2)],  # before the first step that may be recorded
        6: [partial(ask, tmp_path, 2, 100)],
        9: [stop_file(tmp_path, 2).touch],
    })  # fmt: skip
    assert recorded(1) == ["batch_3", "batch_4"]
    assert recorded(2) == ["batch_10", "batch_7", "batch_8", "batch_9"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"number": 0, "steps": 1}', '{"number": 1, "steps": 9999}'])
def test_a_request_that_is_none_records_nothing(tmp_path: Path, text: str) -> None:
    request_file(tmp_path).parent.mkdir()
    request_file(tmp_path).write_text(text)
    with OnRequest(Capture(), tmp_path, rank=0, first_step=0, lead=1) as capture:
        for step in range(3):
            capture.step_begins(step)
            capture.step_ends(step)
    assert not list(tmp_path.rglob("rank*.json.gz"))


def test_nsys_is_told_when_to_record_once_every_nsys_is_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr("harness.observe.capture._start_nsys", lambda: told.append("begin"))
    monkeypatch.setattr("harness.observe.capture._stop_nsys", lambda _window: told.append("end"))

    def ready(number: int, report: str) -> Callable[[], None]:
        return answer_file(tmp_path, number, report, "ready").touch

    request_file(tmp_path).parent.mkdir()
    capture = open_capture("nsys", ProfileWindow(skip=0, wait=0, warmup=0, active=1), tmp_path, rank=0)
    happens: dict[int, list[Callable[[], object]]] = {
        1: [partial(ask, tmp_path, 1, 2, 2), ready(1, "node0")],
        3: [ready(1, "node1")],  # recorded from step 4 on, as every rank can know it then
        7: [partial(ask, tmp_path, 2, 1, 2), ready(2, "node0")],
        8: [stop_file(tmp_path, 2).touch],
        10: [partial(ask, tmp_path, 3, 100, 2), ready(3, "node0"), ready(3, "node1")],
    }
    trained(capture, 13, {step: [partial(told.append, str(step)), *happens.get(step, ())] for step in range(13)})
    assert " ".join(told) == "0 begin end 1 2 3 4 begin 5 end 6 7 8 9 10 11 begin 12 end"
    assert given_up_file(tmp_path, 2).exists()
