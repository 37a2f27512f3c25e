"""The place of a loss on the first screen: sampled lines, else what the trace recorded of the host, with its share."""

from __future__ import annotations

from typing import Any

import pytest

from harness.analysis.summary import CodeLocation, HostActivity, LineShare, LongMessage, Replay, Summary, TimeLost
from harness.explain.answer import answer
from harness.explain.location import locations
from harness.replay.attribute.host_causes import activity_words
from harness.report.first_screen import first_screen
from tests.report.given_summary import summary

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
    (device,) = summary(compute=20, idle={"other": 80}).devices
    replayed = Replay(steps=1, processes=1, step_ns=WINDOW_NS, replayed_ns=WINDOW_NS, error=0.0)
    return Summary(devices=[device], findings=findings, host_activities=list(activities), ranks=[0], replay=replayed)


INNER = CodeLocation(file="lib/images.py", line=9, function="_resize")
PIPE, PIPE_CALL = "preprocess (lib/pipe.py)", {"kind": "python", "innermost": INNER}
ASLEEP, FREE = activity(40, "not on a core", kind="wait", range="load_weights"), {"cause": "allocation", "kind": "call"}
Rows = list[HostActivity]
PLACES: dict[str, tuple[float, dict[str, Any], Rows, list[str]]] = {  # ms, of the loss, what the host did, told
    "a Python function with what is around it": (
        60, {}, [activity(60, PIPE, where=USERS, innermost_ns=45 * MS, **PIPE_CALL)],
        [f"75 % in _resize (lib/images.py), inside {PIPE}, inside run_on_input (app/model.py:40)"],
    ),
    "an inner function with less than half": (
        60, {}, [activity(60, PIPE, innermost_ns=20 * MS, **PIPE_CALL)], [f"100 % in {PIPE}"],
    ),
    "a range has all that was sampled in it, and a state is no place": (
        60, {}, [ASLEEP, activity(18, "memcpy (libc.so)", kind="sample", range="load_weights")],
        ["97 % in load_weights"],
    ),
    "calls in many operators": (
        60, {}, [activity(12, "cudaMalloc", kind="call", operator=f"aten::op{n}", range="Adam.step") for n in range(5)],
        ["100 % in Adam.step"],
    ),
    "less than a quarter": (
        60, {"cause": "first-use"}, [activity(6, f"call{n}", cause="first use", kind="call") for n in range(10)], [],
    ),
    "not known": (60, {"what": None}, [activity(60, None, kind="")], []),
    "no place of communication": (60, {"cause": "communication", "what": None}, [activity(60, "aten::add")], []),
    "the rank that loses it": (60, {"cause": "allocation"}, [activity(60, "cudaFree", **FREE)], ["100 % in cudaFree"]),
    "another rank": (60, {"cause": "allocation"}, [activity(60, "cudaFree", rank=1, **FREE)], []),
    "a share of the loss": (60, {"cause": "allocation"}, [activity(30, "cudaFree", **FREE)], ["50 % in cudaFree"]),
    "not more than the loss": (20, {"cause": "allocation"}, [activity(30, "cudaFree", **FREE)], ["100 % in cudaFree"]),
    "a sampled line with a quarter": (
        60, {"lines": [LineShare(where=USERS, share=0.31)]}, [activity(60, "aten::to")],
        ["31 % at app/model.py:40 in run_on_input"],
    ),
    "a sampled line with less": (
        60, {"lines": [LineShare(where=USERS, share=0.2)]}, [activity(60, "aten::to")], ["100 % in aten::to"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PLACES)
def test_where_a_loss_is(name: str) -> None:
    ms, more, rows, told = PLACES[name]
    found = loss(ms, rows[0], **more)
    assert locations(job([found], *rows), found) == told


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
