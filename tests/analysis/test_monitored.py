"""A monitor that did not see all of its job is said, with times and with what its numbers then are about."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.summary import MonitorDevice, Problem, RankTraining, RecordingVerdict
from harness.analysis.summary.problem_texts import MONITOR_DIED, MONITOR_GAP, NO_MONITOR
from harness.measure.run_contents import read_contents
from harness.measure.run_files import read_monitor
from harness.run.record import NodeStatus

START_NS = 1_700_000_000_000_000_000
S = 10**9


def recorded(folder: Path, seconds: list[int], columns: dict[str, list[float]] | None = None, **meta: Any) -> Path:
    """The folder of node1's monitor, with a sample at each of these seconds."""
    folder.mkdir(parents=True)
    device = {"index": 0, "name": "H200", "memory_total_bytes": None}
    about = {"schema": 1, "host": folder.name, "source": "nvml", "period_ns": S, "devices": [device]}
    (folder / "meta.json").write_text(json.dumps({**about, "starts_unix_ns": [START_NS], **meta}))
    values = columns or {"energy_joules": [100.0 * at for at in seconds]}
    rows = [
        f"{START_NS + at * S},0,{','.join(map(str, row))}" for at, *row in zip(seconds, *values.values(), strict=True)
    ]
    (folder / "samples.csv").write_text("\n".join([f"unix_ns,device,{','.join(values)}", *rows]) + "\n")
    return folder


def judged(
    folder: Path, ended_s: float | None = 20, steps: tuple[float, float] | None = None
) -> tuple[MonitorDevice, list[Problem]]:
    """What is said of the only device, where the job ended then and profiled these seconds."""
    span = None if steps is None else (START_NS + round(steps[0] * S), START_NS + round(steps[1] * S))
    ends = {} if ended_s is None else {folder.name: START_NS + round(ended_s * S)}
    devices, findings = read_monitor([folder], [RankTraining(rank=0, profiled_unix_ns=span)], ends)
    return devices[0], findings


def clock(second: int) -> str:
    return datetime.fromtimestamp(START_NS / S + second).strftime("%H:%M:%S")


STARTED_AGAIN = [START_NS, START_NS + 8 * S]
EVERY = list(range(21))


def test_one_that_died_is_said_with_the_time_from_which_samples_are_missing(tmp_path: Path) -> None:
    device, (found,) = judged(recorded(tmp_path / "node1", EVERY[:9]), ended_s=20.3)
    assert (found.severity, found.what) == (RecordingVerdict.DOUBTFUL, MONITOR_DIED)
    assert found.evidence == (
        f"node1: it ended 12.3 s before the training there did: no samples after {clock(8)}; its numbers cover the "
        "time before, and the energy is not given"
    )
    assert device.energy_joules is None and device.samples == 9


def test_one_that_died_twice_says_so(tmp_path: Path) -> None:
    folder = recorded(tmp_path / "node1", [0, 1, 2, 9, 10], starts_unix_ns=STARTED_AGAIN)
    gap, end = judged(folder)[1]
    assert (gap.what, end.what) == (MONITOR_GAP, MONITOR_DIED)
    assert "10.0 s before the training there did and was started again only once: no samples after" in end.evidence


def test_one_that_was_started_again_says_the_gap_and_what_its_numbers_are_of(tmp_path: Path) -> None:
    seconds = [*range(6), *range(9, 21)]
    folder = recorded(tmp_path / "node1", seconds, starts_unix_ns=STARTED_AGAIN, ended_unix_ns=1)
    device, (found,) = judged(folder)
    assert (found.severity, found.what) == (RecordingVerdict.DOUBTFUL, MONITOR_GAP)
    assert found.evidence == (
        f"node1: it died and was started again: no samples for 4.0 s, from {clock(5)} to {clock(9)}; its means cover "
        "the sampled 80.0 % of its time; the energy covers all of it, because the device's counter continued"
    )
    assert (device.energy_joules, device.gaps_ns, device.duration_ns) == (2000.0, 4 * S, 20 * S)


def test_an_energy_without_a_counter_over_the_gap_is_not_given(tmp_path: Path) -> None:
    seconds = [*range(6), *range(9, 21)]
    power = {"power_watts": [100.0] * len(seconds)}
    folder = recorded(tmp_path / "node1", seconds, power, starts_unix_ns=STARTED_AGAIN, ended_unix_ns=1)
    device, (found,) = judged(folder)
    assert found.evidence.endswith("; the energy is not given")
    assert (device.energy_joules, device.energy_from, device.mean_power_watts) == (None, None, 100.0)


@pytest.mark.parametrize(
    ("steps", "severity"),
    [
        ((10, 12), RecordingVerdict.GOOD),
        ((1, 5), RecordingVerdict.GOOD),
        ((4, 6), RecordingVerdict.DOUBTFUL),
        ((6, 7), RecordingVerdict.DOUBTFUL),
    ],
)
def test_a_gap_outside_of_the_profiled_steps_is_a_remark(
    tmp_path: Path, steps: tuple[float, float], severity: RecordingVerdict
) -> None:
    seconds = [*range(6), *range(9, 21)]
    folder = recorded(tmp_path / "node1", seconds, starts_unix_ns=STARTED_AGAIN, ended_unix_ns=1)
    assert [found.severity for found in judged(folder, steps=steps)[1]] == [severity]


NOTHING: dict[str, tuple[dict[str, Any], float | None]] = {
    "it ended as asked": ({"ended_unix_ns": START_NS + 8 * S}, 20),
    "the job was killed with it": ({}, None),
    "the job ended a moment later": ({}, 10.9),
    "it does not say when it was started": ({"starts_unix_ns": None}, 20),
}


@pytest.mark.parametrize(("meta", "ended_s"), NOTHING.values(), ids=NOTHING)
def test_what_is_no_loss_is_not_said(tmp_path: Path, meta: dict[str, Any], ended_s: float | None) -> None:
    device, findings = judged(recorded(tmp_path / "node1", EVERY[:9], **meta), ended_s)
    assert findings == []
    assert device.energy_joules == 800.0


def test_one_that_was_kept_from_sampling_says_so(tmp_path: Path) -> None:
    (found,) = judged(recorded(tmp_path / "node1", [0, 1, 2, 18, 19], ended_unix_ns=1))[1]
    assert "it could not sample: no samples for 16.0 s" in found.evidence


def test_one_that_never_started_is_said_once_its_job_ended(tmp_path: Path) -> None:
    for name in ("node1", "node2"):
        (tmp_path / "gpus-monitor" / name).mkdir(parents=True)
    (tmp_path / "node-status").mkdir()
    ended = NodeStatus(node=0, host="node1", exit=0, started_ns=1, ended_ns=2)
    (tmp_path / "node-status" / "0.json").write_text(ended.model_dump_json())
    said = read_contents(tmp_path).problems
    assert [(each.what, each.evidence.partition(":")[0]) for each in said if each.what == NO_MONITOR] == [
        (NO_MONITOR, "node1")
    ]


def test_nodes_that_one_machine_plays_have_their_own_ends(tmp_path: Path) -> None:
    recorded(tmp_path / "gpus-monitor" / "host-1", EVERY[:9])
    (tmp_path / "node-status").mkdir()
    for node, end_s in ((0, 8), (1, 20)):
        ended = NodeStatus(node=node, host="host", exit=0, started_ns=1, ended_ns=START_NS + end_s * S)
        (tmp_path / "node-status" / f"{node}.json").write_text(ended.model_dump_json())
    assert [each.what for each in read_contents(tmp_path).problems] == [MONITOR_DIED]
