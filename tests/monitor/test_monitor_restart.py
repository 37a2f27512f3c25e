"""A monitor that died and was started again: its samples go on in the same file, and nothing is made up for the gap."""

from __future__ import annotations

import json
import math
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.launch.on_node.node_monitor import Monitor, MonitoredNode
from harness.monitor import plot as plots
from harness.monitor.plot import thinned
from harness.monitor.record import begin_or_go_on
from harness.monitor.samples import read
from harness.monitor.source import MonitorError, find_gaps, pieces
from harness.monitor.summary import summarize
from tests.monitor.conftest import START_UNIX_NS, Start, Write, recorder, samples_of, wait_for_samples
from tests.monitor.test_monitor_plot import panel_of
from tests.waiting import limit_s, wait_until

S = 10**9
GPU = [{"index": 0, "uuid": "GPU-a"}, {"index": 1, "uuid": "GPU-b"}]


def test_killed_and_started_again_it_goes_on_in_the_same_file_and_the_gap_is_seen(tmp_path: Path, start: Start) -> None:
    folder = samples_of(tmp_path)
    first = recorder(start, tmp_path)
    wait_for_samples(tmp_path, 3)
    first.kill()
    first.wait(limit_s())
    before = read(folder)
    whole = len(before.devices[0].unix_ns)
    assert (before.died, before.damaged_rows, whole >= 3) == (True, 0, True)
    second = recorder(start, tmp_path)
    wait_for_samples(tmp_path, whole + 3)
    second.terminate()
    assert second.wait(limit_s()) == 0
    recording = read(folder)
    moments = recording.devices[0].unix_ns
    assert moments == sorted(moments) and len(moments) >= whole + 3
    assert not recording.died and len(recording.starts) == 2
    assert recording.gaps == ((moments[whole - 1], moments[whole]),)
    assert recording.starts[0] <= moments[0] and moments[whole - 1] < recording.starts[1] <= moments[whole]


def test_it_sees_what_is_below_a_process_but_not_who_starts_it_again(tmp_path: Path, start: Start) -> None:
    workload = "import time; print(1, flush=True); time.sleep(60)"
    node = f"-m harness.heartbeats.node --run '{tmp_path}' --node 0 --name node7 --hz 10 --below $$"
    code = f"{sys.executable} -c '{workload}' &\n(trap : TERM; {sys.executable} {node}; true) &\nwait %1"
    shell = start("-c", code, program="bash")
    wait_for_samples(tmp_path, 4)
    assert {count for _, count in read(samples_of(tmp_path)).devices[0].points("processes")} == {1.0}
    started = psutil.Process(shell.pid).children()
    shell.kill()
    for process in started:
        if "time.sleep(60)" in " ".join(process.cmdline()[:3]):
            process.kill()
    wait_until(lambda: not read(samples_of(tmp_path)).died, "the end of a monitor whose processes were killed")


# ---- the description


def described(folder: Path, devices: Sequence[dict[str, Any]] = GPU, **more: object) -> Path:
    path = folder / "meta.json"
    meta, _ = begin_or_go_on(path, {"schema": 1, "devices": [dict(each) for each in devices]})
    path.write_text(json.dumps({**meta, **more}))
    return path


def test_a_wall_clock_that_was_set_back_meanwhile_reorders_no_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = described(tmp_path)
    before = json.loads(path.read_text())["starts_unix_ns"][-1]
    monkeypatch.setattr("time.time_ns", lambda: before - 3600 * S)
    meta, clock = begin_or_go_on(path, {"devices": GPU})
    assert meta["starts_unix_ns"][0] == before < meta["starts_unix_ns"][1] <= clock.unix_ns()


def test_on_another_boot_the_clock_begins_anew_and_an_end_that_was_said_does_not_hold(tmp_path: Path) -> None:
    path = described(tmp_path, boot="another", started_monotonic_ns=10**18, ended_unix_ns=1)
    meta, clock = begin_or_go_on(path, {"devices": GPU})
    assert abs(clock.unix_ns() - time.time_ns()) < 3600 * S
    assert "ended_unix_ns" not in meta


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"schema": 1}', '{"schema": 1, "starts_unix_ns": 3, "devices": 4}']
)
def test_a_description_that_was_cut_off_or_is_older_is_begun_anew(tmp_path: Path, content: str) -> None:
    (tmp_path / "meta.json").write_text(content)
    meta, _ = begin_or_go_on(tmp_path / "meta.json", {"devices": GPU})
    assert len(meta["starts_unix_ns"]) == 1
    assert meta["devices"] == GPU


def test_a_device_that_fell_off_the_bus_keeps_its_samples_and_another_one_is_refused(tmp_path: Path) -> None:
    meta, _ = begin_or_go_on(described(tmp_path), {"devices": GPU[:1]})
    assert meta["devices"] == GPU
    moved = [{"index": 0, "uuid": "GPU-b"}]
    with pytest.raises(MonitorError, match=r"samples of another device 0 \(GPU-a, not GPU-b\)"):
        begin_or_go_on(described(tmp_path), {"devices": moved})


# ---- numbers and pictures


@pytest.mark.parametrize(
    ("moments", "starts", "gaps"),
    [
        ([0, 1, 2, 3], [0], []),
        ([0, 1, 2, 3], [], []),
        ([0, 1, 5, 6], [0], []),  # a busy machine
        ([0, 1, 12, 13], [0], [(1, 12)]),  # nothing is so busy
        ([0, 1, 5, 6], [0, 4], [(1, 5)]),
        ([0, 1, 2, 3], [0, 2], [(1, 2)]),
        ([0, 1], [0, 4], []),  # it was started again, and died before a sample
        ([4, 5], [0, 4], []),  # it died before its first sample
        ([0, 9, 30], [0, 5, 20], [(0, 9), (9, 30)]),
        ([], [0], []),
    ],
)
def test_a_gap_is_where_the_monitor_was_started_again_or_long_silent(
    moments: list[int], starts: list[int], gaps: list[tuple[int, int]]
) -> None:
    found = find_gaps([m * S for m in moments], [s * S for s in starts], S)
    assert found == tuple((a * S, b * S) for a, b in gaps)


def test_points_are_parted_at_each_gap() -> None:
    points = [(at, float(at)) for at in (0, 1, 5, 6, 9)]
    assert [[at for at, _ in piece] for piece in pieces(points, [(1, 5), (6, 9)])] == [[0, 1], [5, 6], [9]]
    assert pieces([], [(1, 5)]) == []


def again_after(write: Write, columns: list[str], rows: list[list[float]], second: int) -> Path:
    """A recording with a row per second, started again before the row of `second`."""
    starts = [START_UNIX_NS, START_UNIX_NS + second * S - 1]
    return write(columns, rows, starts_unix_ns=starts)


@pytest.mark.parametrize(
    ("columns", "rows", "joules", "lacks_s"),
    [
        (["power_watts"], [[100], [100], [900], [100]], 100 + 500, 1),  # a trapezoid over the gap would add 500
        (["power_watts"], [[100], [None], [None], [100]], 0, 3),
        (["energy_joules"], [[5000], [5100], [5900], [6000]], 1000, 0),  # the counter of the board ran on
        (["energy_joules"], [[5000], [5100], [0], [100]], 200, 1),  # it began again
        (["energy_joules", "power_watts"], [[5000, 1], [4000, 1], [0, 1], [1, 1]], 2, 1),  # it is broken
    ],
)
def test_energy_is_not_made_up_for_a_gap(
    write_samples: Write, columns: list[str], rows: list[list[float]], joules: float, lacks_s: int
) -> None:
    numbers = summarize(read(again_after(write_samples, columns, rows, 2)))
    device = numbers.devices[0]
    assert (device.energy_joules, device.energy_lacks_ns, numbers.gaps_ns) == (joules, lacks_s * S, S)


def test_no_line_of_a_picture_bridges_a_gap(write_samples: Write) -> None:
    folder = again_after(write_samples, ["power_watts"], [[float(i)] for i in range(900)], 450)
    assert plots._power(panel_of(folder)).endswith(" of the sampled time")
    device = read(folder).devices[0]
    values = [value for _, value in thinned(device, "power_watts", max)]
    (blank,) = (place for place, value in enumerate(values) if math.isnan(value))
    assert (values[blank - 1], values[blank + 1], len(values)) == (449.0, 452.0, 301)


# ---- the node's program, which starts it again


ONCE = "warning: node1: the monitor ended with status {} at T; it is started again once"
AGAIN = ONCE.replace("started again once", "not started again: samples are missing from now on")
LATER = "(($(wc -l <starts) > 1)) && exit 0; kill -KILL $$"
FATES: dict[str, tuple[str, int, list[str]]] = {
    "it ends as asked": ("exit 0", 1, []),
    "it dies once": (LATER, 2, [ONCE.format(137)]),
    "it dies twice": ("kill -KILL $$", 2, [ONCE.format(137), AGAIN.format(137)]),
    "it cannot start": ("exit 2", 2, [ONCE.format(2), AGAIN.format(2)]),
}


class StandIn(MonitoredNode):
    """A node without commands."""

    def __init__(self, folder: Path) -> None:
        self.run, self.number, self.host, self.watched, self.stopped = folder, 0, "node1", "node1", False
        self.said: list[str] = []

    def say(self, sentence: str) -> None:
        self.said.append(sentence)


def started(folder: Path, fate: str, monkeypatch: pytest.MonkeyPatch) -> tuple[StandIn, Monitor]:
    """The starter of a monitor of this fate."""
    monitor = folder / "python"
    monitor.write_text(f"#!/bin/bash\ncd '{folder}'\necho \"$*\" >>starts\n{fate}\n")
    monitor.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(monitor))
    node = StandIn(folder)
    return node, Monitor(node, 1.0, "report")


@pytest.mark.parametrize(("fate", "starts", "said"), FATES.values(), ids=FATES)
def test_the_node_starts_it_again_once_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fate: str, starts: int, said: list[str]
) -> None:
    node, monitor = started(tmp_path, fate, monkeypatch)
    monitor._thread.join(limit_s())
    assert (tmp_path / "starts").read_text().count("\n") == starts
    assert [re.sub(r"\d\d:\d\d:\d\d", "T", sentence) for sentence in node.said] == said


@pytest.mark.parametrize("late", [True, False], ids=["late", "at once"])
def test_asked_to_end_it_is_not_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: bool) -> None:
    fate = "trap 'exit 143' TERM; for i in {1..600}; do sleep 0.1; done; exit 1"
    node, monitor = started(tmp_path, fate, monkeypatch)
    if late:
        wait_until((tmp_path / "starts").exists, "the monitor's start")
    monitor.end()
    assert node.said == []
    assert not (tmp_path / "starts").exists() or (tmp_path / "starts").read_text().count("\n") == 1
