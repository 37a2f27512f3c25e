"""What goes into the timeline is what was measured, to the nanosecond, and fits into a page."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from isal import igzip

from harness.analysis.process.host_calls import CAUSES
from harness.analysis.process.kinds import load_rules
from harness.analysis.process.prepared import prepare_process
from harness.analysis.process.view import views
from harness.analysis.summary import Device, RankSteps, Steps, Summary, Window
from harness.cli.main import main
from harness.measure.page_data import KINDS, MOST_TRACKS, process_track
from harness.measure.request import ReportRequest, measure_request
from harness.report.timeline.encode import pack, pack_to_fit
from harness.report.timeline.timeline_model import MOST_EVENTS, ShownRanks, TimelineModel, choose, draw, notes
from harness.traces import many as many_traces
from harness.traces.open import open_trace
from tests.report.conftest import Made
from tests.synthetic.columns import Made as Built
from tests.synthetic.job import HOSTILE, STEPS, write_traces


@pytest.fixture(scope="module")
def drawn(made: Made) -> TimelineModel:
    return draw(made.summary, choose(made.summary))


def read(packed: bytes) -> dict[str, Any]:
    """What timeline.js reads: the head, with start, end, text and code of every lane."""
    size = int.from_bytes(packed[:4], "little")
    head: dict[str, Any] = json.loads(packed[4 : 4 + size])
    lanes = [(strip, lane) for strip in head["strips"] for lane in strip["lanes"]]
    total = sum(lane["n"] for _, lane in lanes)
    body = np.frombuffer(packed[4 + size :], np.uint8)
    columns = [
        body[4 * total * i : 4 * total * (i + 1)].reshape(4, total).T.copy().view("<u4").ravel() for i in range(3)
    ]
    delta, length, text = (column.astype(np.int64) for column in columns)
    code = body[12 * total :]
    assert len(code) == total
    at = 0
    for strip, lane in lanes:
        rows = slice(at, at + lane["n"])
        lane["start"] = strip["begin"] + np.cumsum(delta[rows])
        lane["end"] = lane["start"] + length[rows]
        lane["text"] = [head["texts"][i] for i in text[rows]]
        lane["code"] = code[rows]
        at += lane["n"]
    return head


def lanes_of(head: dict[str, Any], group: str, rank: int) -> list[dict[str, Any]]:
    (strip,) = [s for s in head["strips"] if s["rank"] == rank]
    return [lane for lane in strip["lanes"] if lane["group"] == group]


def test_time_per_kind_in_the_timeline_is_the_summarys(made: Made, drawn: TimelineModel) -> None:
    kinds, head = list(KINDS), read(pack(drawn.tracks, {}))
    for device in made.summary.devices:
        assert device.rank is not None
        sums: dict[str, int] = {}
        for lane in lanes_of(head, "stream", device.rank):
            for code, length in zip(lane["code"], lane["end"] - lane["start"], strict=True):
                sums[kinds[code]] = sums.get(kinds[code], 0) + int(length)
        expected: dict[str, int] = {}
        for kind in device.kinds:
            name = "memory" if kind.kind.startswith(("copy", "memset")) else kind.kind
            expected[name] = expected.get(name, 0) + kind.duration_ns
        assert sums == expected


def test_gaps_in_the_timeline_are_the_idle_time_exactly(made: Made, drawn: TimelineModel) -> None:
    head = read(pack(drawn.tracks, {}))
    for device in made.summary.devices:
        assert device.rank is not None
        (idle,) = lanes_of(head, "idle", device.rank)
        assert int((idle["end"] - idle["start"]).sum()) == device.idle_ns
        assert {CAUSES[code] for code in idle["code"]} >= {"data loading", "launch-bound"}


def test_names_and_steps_arrive_whole(drawn: TimelineModel) -> None:
    head = read(pack(drawn.tracks, {}))
    assert [name for name, *_ in head["strips"][0]["steps"]] == [f"step {i}" for i in range(STEPS)]
    ranges = [text for lane in lanes_of(head, "ranges", 0) for text in lane["text"]]
    assert ranges.count(HOSTILE) == STEPS and ranges.count("backward") == STEPS
    streams = lanes_of(head, "stream", 1)
    assert {lane["label"] for lane in streams} == {"stream 7", "stream 20 · nccl"}
    (collectives,) = [lane for lane in streams if "nccl" in lane["label"]]
    assert all("all_reduce · 2.10 MB · 2 ranks" in text for text in collectives["text"])


def test_a_host_that_is_ahead_is_shown_from_the_mark_of_the_first_step_on() -> None:
    made = Built()
    for i in range(4):
        made.step(i * 100, (i + 1) * 100, i).event(50 + i * 200, 250 + i * 200, launch_ns=i * 100 + 5)
    track = process_track(prepare_process(views(made.trace())[0], Window.STEPS, load_rules()))
    assert [(start, end) for _, start, end in track.steps] == [(50 + i * 200, 250 + i * 200) for i in range(4)]
    assert track.window == (0, 850)
    (ranges,) = [lane for lane in track.lanes if lane.group == "ranges"]
    assert len(ranges) == 4


def test_nested_ranges_lie_below_what_holds_them_and_no_lane_holds_two_intervals_at_once(drawn: TimelineModel) -> None:
    head = read(pack(drawn.tracks, {}))
    depth = {text: i for i, lane in enumerate(lanes_of(head, "ranges", 0)) for text in lane["text"]}
    assert depth["ProfilerStep#1"] < depth["batch_1"] < depth["forward"]
    lanes = [lane for strip in head["strips"] for lane in strip["lanes"]]
    assert all((lane["start"][1:] >= lane["end"][:-1]).all() for lane in lanes)


def test_clocks_that_run_ahead_are_set_back_and_those_that_cannot_be_compared_give_a_note(drawn: TimelineModel) -> None:
    one, two = drawn.tracks
    ahead, lost = [one, replace(two, clock="ahead")], [replace(strip, epoch_ns=None) for strip in drawn.tracks]
    heads = [read(pack(*given)) for given in ((drawn.tracks, {}), (ahead, {"ahead": 250_000}), (lost, {}))]
    begins = [[strip["steps"][0][1] for strip in head["strips"]] for head in heads]
    assert begins == [[0, 0], [250_000, 0], [0, 0]]
    assert "clocks cannot be compared" in heads[2]["notes"][0]


def test_a_window_of_minutes_still_fits_the_columns(drawn: TimelineModel) -> None:
    (strip, _) = drawn.tracks
    long = replace(strip, window=(strip.window[0], strip.window[0] + 600 * 10**9))
    head = read(pack([long], {}))
    assert head["unit_ns"] > 1
    last = max(int(lane["end"].max()) for lane in head["strips"][0]["lanes"]) * head["unit_ns"]
    assert last == pytest.approx(strip.steps[-1][2] - strip.window[0], rel=0.3)


def opened_by(command: list[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the traces that a command opens, once for each opening."""
    opened: list[str] = []

    def counting(path: Path, **options: Any) -> Any:
        opened.append(path.name)
        return open_trace(path, **options)

    monkeypatch.setattr(many_traces, "open_trace", counting)
    assert main(command) == 0
    return sorted(opened)


def test_a_page_and_its_numbers_come_from_one_reading_of_each_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_traces(tmp_path / "traces")
    opened = opened_by(["report", "--html", str(tmp_path / "out"), str(tmp_path / "traces")], monkeypatch)
    assert opened == ["rank0.json", "rank1.json"]
    assert (tmp_path / "out").is_file()


def test_of_many_ranks_only_those_that_the_timeline_shows_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = MOST_TRACKS + 3
    write_traces(tmp_path / "traces", count)
    page = tmp_path / "page.html"
    asked = ["report", str(tmp_path / "traces"), "--html", str(page)]
    assert len(opened_by(asked, monkeypatch)) == count + MOST_TRACKS


@pytest.mark.parametrize("workers", [1, 2])
def test_what_is_kept_while_measuring_draws_as_what_is_read_again(workers: int, tmp_path: Path) -> None:
    write_traces(tmp_path)
    request = ReportRequest([str(tmp_path)], workers=workers, page=True)
    (summary,), page_data = measure_request(request)
    kept, again = (draw(summary, choose(summary), given) for given in (page_data, ()))
    assert len(page_data) == 2 and pack(kept.tracks, {}) == pack(again.tracks, {})
    assert kept.passes == again.passes


def many(ranks: int, events: int, steps: int) -> Summary:
    """A Summary of many ranks; the steps of each rank are a little longer than those of the rank before."""
    devices = [
        Device(window_ns=100, compute_ns=0, communication_ns=0, exposed_communication_ns=0, memory_ns=0,
               overlapped_communication_ns=0, exposed_memory_ns=0, idle_ns=100, rank=rank, device=0,
               source="made", gpu_events=events, kernels=events)
        for rank in range(ranks)
    ]  # fmt: skip
    per_rank = [RankSteps(rank=rank, durations_ns=[100 + rank] * steps, median_ns=100 + rank) for rank in range(ranks)]
    found = Steps(source="made", found=ranks * steps, counted=ranks * steps, per_rank=per_rank)
    return Summary(devices=devices, ranks=list(range(ranks)), steps=found)


def test_of_many_ranks_few_are_shown_among_them_the_slowest_and_the_fastest_and_of_many_steps_those_that_fit() -> None:
    choice = choose(many(ranks=1000, events=1000, steps=10))
    assert choice.ranks is not None and len(choice.ranks) == MOST_TRACKS and {0, 999} <= choice.ranks
    assert 1 <= choose(many(ranks=2, events=1_000_000, steps=20)).steps * 50_000 * 2 <= MOST_EVENTS


def test_one_step_that_is_too_large_is_cut_and_says_so(made: Made) -> None:
    choice = choose(made.summary)
    small = draw(made.summary, ShownRanks(choice.ranks, 0, 1, 5))
    head = read(pack(small.tracks, {}))
    assert any("the first 5 of 13 events of rank 0 are shown" in note for note in head["notes"])
    assert sum(lane["n"] for lane in lanes_of(head, "stream", 0)) == 5


def test_a_timeline_that_would_make_the_page_too_large_is_cut_at_its_end(drawn: TimelineModel) -> None:
    whole = pack(drawn.tracks, {})
    limit = len(igzip.compress(whole, 3)) * 3 // 4
    small = pack_to_fit(drawn.tracks, {}, ["as before"], limit)
    assert len(igzip.compress(small, 3)) <= limit
    before, after = read(whole), read(small)
    assert after["notes"][0] == "as before" and "too large to send" in after["notes"][1]
    kept = after["strips"][0]["window"][1]
    assert 0 < kept < before["strips"][0]["window"][1]
    for old, new in zip(lanes_of(before, "stream", 0), lanes_of(after, "stream", 0), strict=True):
        assert new["start"].tolist() == [t for t in old["start"].tolist() if t < kept]
    assert pack_to_fit(drawn.tracks, {}, []) == whole, "it fits"


def test_what_a_timeline_leaves_out_is_said() -> None:
    s = Summary(
        world_size=3, ranks=[0, 1, 2], steps=Steps(source="marks", per_rank=[RankSteps(rank=0, durations_ns=[1] * 10)])
    )
    told = notes(s, ShownRanks(frozenset({0}), first_step=4, steps=3, events_each=1), [])
    assert [text.split(" are shown")[0] for text in told] == ["0 of 3 ranks", "3 of 10 counted steps"]
    assert notes(s, ShownRanks(None, first_step=0, steps=10, events_each=1), []) == []
