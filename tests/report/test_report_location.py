"""The place of a loss on the first screen: sampled lines, else what the trace recorded of the host, with its share."""

from __future__ import annotations

from typing import Any

import pytest

from harness.analysis.summary import (
    CodeLocation,
    Device,
    HostActivity,
    LineShare,
    LongMessage,
    Replay,
    Summary,
    TimeLost,
)
from harness.explain.answer import answer
from harness.explain.location import locations
from harness.replay.attribute.host_causes import activity_words
from harness.report.first_screen import first_screen

MS = 1_000_000
WINDOW_NS = 100 * MS
USERS = CodeLocation(file="app/model.py", line=40, function="run_on_input")


def activity(ms: float, what: str | None, **more: Any) -> HostActivity:
    common: dict[str, Any] = {
        "cause": "host work",
        "kind": "operator",
        "rank": 0,
        "device": 0,
        "count": 1,
        "first_ns": 0,
    }
    return HostActivity(**(common | {"what": what, "idle_ns": round(ms * MS), "longest_ns": round(ms * MS)} | more))


def loss(ms: float, first: HostActivity | None, **more: Any) -> TimeLost:
    common: dict[str, Any] = {"cause": "host-stall", "ranks": [0], "phase": "other", "evidence": "…"}
    return TimeLost(
        **(
            common
            | {"lost_ns": round(ms * MS), "share": ms * MS / WINDOW_NS, "what": first and activity_words(first)}
            | more
        )
    )


def job(findings: list[TimeLost], *activities: HostActivity) -> Summary:
    device = Device(
        window_ns=WINDOW_NS, compute_ns=20 * MS, communication_ns=0, exposed_communication_ns=0, memory_ns=0,
        exposed_memory_ns=0, overlapped_communication_ns=0, idle_ns=80 * MS, rank=0, device=0, source="x",
        gpu_events=1, kernels=1, idle_causes=[], longest_gaps=[],
    )  # fmt: skip
    replayed = Replay(steps=1, processes=1, step_ns=WINDOW_NS, replayed_ns=WINDOW_NS, error=0.0)
    return Summary(devices=[device], findings=findings, host_activities=list(activities), ranks=[0], replay=replayed)


def where(found: TimeLost, *activities: HostActivity) -> list[str]:
    return locations(job([found], *activities), found)


def test_a_python_function_is_told_with_its_share_and_what_is_around_it() -> None:
    inner = CodeLocation(file="lib/images.py", line=9, function="_resize")
    row = activity(60, "preprocess (lib/pipe.py)", kind="python", where=USERS, innermost=inner, innermost_ns=45 * MS)
    (said,) = where(loss(60, row), row)
    assert (
        said
        == "75 % in _resize (lib/images.py), inside preprocess (lib/pipe.py), inside run_on_input (app/model.py:40)"
    )


def test_an_inner_function_with_less_than_half_is_not_told_if_the_one_around_it_has_more() -> None:
    inner = CodeLocation(file="lib/images.py", line=9, function="_resize")
    row = activity(60, "preprocess (lib/pipe.py)", kind="python", innermost=inner, innermost_ns=20 * MS)
    assert where(loss(60, row), row) == ["100 % in preprocess (lib/pipe.py)"]


def test_a_range_has_all_that_was_sampled_in_it_and_a_state_is_no_place() -> None:
    asleep = activity(40, "not on a core", kind="wait", range="load_weights")
    sampled = activity(18, "memcpy (libc.so)", kind="sample", range="load_weights")
    assert where(loss(60, asleep), asleep, sampled) == ["97 % in load_weights"]


def test_calls_in_many_operators_are_told_by_the_range_around_them() -> None:
    rows = [activity(12, "cudaMalloc", kind="call", operator=f"aten::op{n}", range="Adam.step") for n in range(5)]
    assert where(loss(60, rows[0]), *rows) == ["100 % in Adam.step"]


def test_a_place_with_less_than_a_quarter_and_an_unknown_one_are_not_told() -> None:
    rows = [activity(6, f"call{n}", cause="first use", kind="call") for n in range(10)]
    assert where(loss(60, rows[0], cause="first-use"), *rows) == []
    unknown = activity(60, None, kind="")
    assert where(loss(60, None), unknown) == []
    assert where(loss(60, None, cause="communication"), activity(60, "aten::add")) == []


@pytest.mark.parametrize("rank", [0, 1])
def test_only_the_ranks_that_lose_it_count(rank: int) -> None:
    mine = activity(60, "cudaFree", cause="allocation", kind="call", rank=rank)
    said = where(loss(60, mine, cause="allocation"), mine)
    assert said == (["100 % in cudaFree"] if rank == 0 else [])


def test_a_share_is_of_the_loss_and_never_more_than_all_of_it() -> None:
    row = activity(30, "cudaFree", cause="allocation", kind="call")
    assert where(loss(60, row, cause="allocation"), row) == ["50 % in cudaFree"]
    assert where(loss(20, row, cause="allocation"), row) == ["100 % in cudaFree"]


def test_a_sampled_line_with_a_quarter_is_told_instead() -> None:
    row = activity(60, "aten::to")
    line = LineShare(where=USERS, share=0.31)
    assert where(loss(60, row, lines=[line]), row) == ["31 % at app/model.py:40 in run_on_input"]
    little = line.model_copy(update={"share": 0.2})
    assert where(loss(60, row, lines=[little]), row) == ["100 % in aten::to"]


def test_exposed_communication_is_told_by_its_messages_only_from_a_quarter_on() -> None:
    found = loss(60, None, cause="communication")
    message = LongMessage(
        kind="all_gather", rank=0, group_size=2, bytes=4_000_000, range="Head", phase="other", count=1,
        duration_ns=45 * MS, exposed_ns=45 * MS, waiting_ns=None, transfer_ns=None, mean_start_skew_ns=None,
    )  # fmt: skip
    s = job([found])
    devices = [s.devices[0].model_copy(update={"exposed_communication_ns": 60 * MS})]
    s = s.model_copy(update={"devices": devices, "long_messages": [message]})
    assert locations(s, found) == ["75 % in one all-gather of 4.00 MB among 2 ranks inside Head"]
    short = message.model_copy(update={"exposed_ns": 10 * MS})
    assert locations(s.model_copy(update={"long_messages": [short]}), found) == []


def test_the_first_screen_has_the_place_below_the_loss_and_tells_two_stalls_apart() -> None:
    rows = [activity(ms, what) for ms, what in ((60, "aten::to"), (10, "aten::cat"), (8, "aten::item"))]
    findings = [loss(row.idle_ns / MS, row) for row in rows]
    s = job(findings, *rows)
    lines = first_screen(s, 100).plain.splitlines()
    assert "  where:   100 % in aten::to" in lines
    assert "  also:    host stall in aten::cat 10 ms · host stall in aten::item 8 ms" in lines
    assert "Where: 100 % in aten::to." in answer(s).first
