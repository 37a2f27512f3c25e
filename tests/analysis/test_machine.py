"""What the monitor's samples say beside a run's times: whether ranks on a CPU had the cores to themselves, and which
part of the job the monitor did not see."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.summary import RankTraining, RecordingVerdict
from harness.analysis.summary.problem_texts import BUSY, CROWDED, MONITOR_GAP, NO_MONITOR
from harness.measure.run_contents import read_contents
from harness.measure.run_files import read_monitor
from harness.run.record import NodeStatus

START_NS = 1_700_000_000_000_000_000
S = 10**9
Rows = dict[int, tuple[float, ...]]
Steps = tuple[float, float]  # seconds

# (job, machine) percent in each second, as recorded on a machine with two cores; the profiled steps in seconds.
QUIET = [(50, 50.3), (65.5, 79.1), (69, 100), (65, 100), (68, 99), (48.5, 80.9), (51, 74.9), (58.9, 59.9), (94, 95.5),
         (82, 83.1), (82, 83.3), (83, 83.4), (93.5, 93.8), (96.5, 99), (99.6, 100), (0, 62.4)]  # fmt: skip
QUIET_STEPS = (10.45, 12.47)
LATE = [(49.5, 50.3), (0.5, 99), (97.6, 98), (93.4, 94), (85, 86.2), (77.6, 76.7), (74.9, 77.3), (77.9, 78.1),
        (74.5, 75.9), (74, 74.3), (75.5, 76), (99, 100), (99.6, 100), (98.5, 99.5), (89.5, 91),
        (13.5, 72.5)]  # fmt: skip
LATE_STEPS = (7.41, 10.96)
DISTURBED = [(46.9, 86.4), (4, 100), (66, 97.6), (55.3, 100), (50.5, 100), (46.2, 99.5), (46.1, 100), (46.4, 100),
             (71.1, 100), (56.5, 100), (19.1, 99.5)]  # fmt: skip
DISTURBED_STEPS = (7.89, 8.45)
VARIED = [(100, 100), (20, 100), (100, 100)]


def recorded(folder: Path, columns: str, rows: Rows, **meta: Any) -> Path:
    """A monitor's folder with a sample at each of these seconds."""
    folder.mkdir(parents=True)
    device = {"index": 0, "name": "made", "memory_total_bytes": None}
    about = {"schema": 1, "host": folder.name, "period_ns": S, "devices": [device]}
    (folder / "meta.json").write_text(json.dumps(about | meta))
    lines = [f"{START_NS + at * S},0,{','.join(map(str, values))}" for at, values in rows.items()]
    (folder / "samples.csv").write_text("\n".join([f"unix_ns,device,{columns}", *lines]) + "\n")
    return folder


def span_of(steps: Steps | None) -> tuple[int, int] | None:
    return None if steps is None else (START_NS + round(steps[0] * S), START_NS + round(steps[1] * S))


def cores(folder: Path, seconds: list[tuple[float, float]], cores: int = 2, of: int | None = 2, **meta: Any) -> Path:
    """The shares of the cores in each second, from the second one on."""
    known = {"source": "processes", "cpus": cores, "machine": "one"} | ({} if of is None else {"machine_cpus": of})
    columns = "utilization_percent,machine_utilization_percent"
    return recorded(folder, columns, dict(enumerate(seconds, 1)), **known | meta)


def ranks(
    count: int, steps: tuple[float, float] | None = None, device: str = "cpu", node: int = 0
) -> list[RankTraining]:
    """Ranks whose profiled steps lie between two moments, seconds after the monitor's start."""
    about: dict[str, Any] = {"host": "n0", "node": node, "device": device, "profiled_unix_ns": span_of(steps)}
    return [RankTraining(rank=rank, **about) for rank in range(count)]


WHOLE = "over the whole run the job used 47 % of 2 cores, other programs at least"


@pytest.mark.parametrize(
    ("seconds", "on", "training", "said"),
    [
        (DISTURBED, {}, ranks(2, DISTURBED_STEPS),
         "over the counted steps the job used 66 % of 2 cores, other programs at least 34 %"),
        (QUIET, {}, ranks(2, QUIET_STEPS), None),  # others work while the job starts
        (LATE, {}, ranks(2, LATE_STEPS), None),  # new processes do not belong to the job yet
        # 0.5 s of the first sample, 1 s of the second
        (VARIED, {}, ranks(2, (0.5, 2.0)), "the job used 47 % of 2 cores, other programs at least 53 %"),
        (VARIED, {}, ranks(2, (2.0, 3.0)), None),
        (DISTURBED, {}, ranks(2), WHOLE),  # nothing was profiled
        (DISTURBED, {}, ranks(2, (40.0, 42.0)), WHOLE),  # the samples ended before
        (LATE, {}, ranks(2), None),
        ([(12, 62)] * 5, {"cores": 16, "of": 16}, ranks(2, (1, 4)), None),  # the job does not need them
        ([(12, 62)] * 5, {"cores": 16, "of": 16}, ranks(10, (1, 4)), "16 cores"),
        ([(100, 100)] * 5, {"of": 16}, ranks(2, (1, 4)), None),  # the job may not use the other 14
        ([(50, 100)] * 5, {"of": 16}, ranks(2, (1, 4)), "other programs at least 50 %"),
        ([(0.5, 99)] * 5, {}, ranks(2, (1, 4)), None),  # the monitor did not see the ranks
        ([(1.2, 100)] * 5, {"cores": 128, "of": 128}, ranks(2, (1, 4)), "128 cores"),
        (DISTURBED, {}, ranks(8, DISTURBED_STEPS, device="cuda"), None),
        (DISTURBED, {"of": None}, ranks(2, DISTURBED_STEPS), None),
    ],
)  # fmt: skip
def test_others_on_the_cores_that_the_job_needs_during_its_steps_make_it_doubtful(
    tmp_path: Path, seconds: Any, on: dict[str, Any], training: list[RankTraining], said: str | None
) -> None:
    found = read_monitor([cores(tmp_path / "n0", seconds, **on)], training)[1]
    assert [(each.severity, each.what) for each in found] == [(RecordingVerdict.DOUBTFUL, BUSY)] * (said is not None)
    assert said is None or said in found[0].evidence


@pytest.mark.parametrize(
    ("machines", "each", "share", "what"),
    [("same", 1, (49, 99), []), ("apart", 1, (49, 99), [BUSY, BUSY]), ("same", 2, (50, 100), [CROWDED])],
)
def test_nodes_that_one_machine_plays_share_its_cores(
    tmp_path: Path, machines: str, each: int, share: tuple[float, float], what: list[str]
) -> None:
    names = ["one", "one"] if machines == "same" else ["one", "two"]
    folders = [cores(tmp_path / f"n0-{i}", [share] * 5, machine=name) for i, name in enumerate(names)]
    found = read_monitor(folders, [*ranks(each, (1, 4), node=0), *ranks(each, (1, 4), node=1)])[1]
    assert [problem.what for problem in found] == what
    assert what != [CROWDED] or "n0-0, n0-1: 4 ranks on 2 cores" in found[0].evidence


def sampled(folder: Path, seconds: list[int], **meta: Any) -> Path:
    """A GPU's energy at each of these seconds, 100 J in each."""
    known = {"source": "nvml", "starts_unix_ns": [START_NS]} | meta
    return recorded(folder, "energy_joules", {at: (100.0 * at,) for at in seconds}, **known)


AGAIN = {"starts_unix_ns": [START_NS, START_NS + 8 * S]}
ENDED = {"ended_unix_ns": START_NS + 20 * S}
FEW, HOLED = list(range(9)), [*range(6), *range(9, 21)]
Gaps = list[tuple[float, int, int]]  # seconds without samples, from which second to which


@pytest.mark.parametrize(
    ("seconds", "job", "said"),
    [
        (FEW, ({}, 20.3, None), ([(12.3, 8, 20)], None)),  # it died
        ([0, 1, 2, 9, 10], (AGAIN, 20, None), ([(7.0, 2, 9), (10.0, 10, 20)], None)),  # twice
        (HOLED, (AGAIN | ENDED, 20, None), ([(4.0, 5, 9)], 2000.0)),  # the device's counter went on
        ([0, 1, 2, 18, 19], (ENDED, 20, None), ([(16.0, 2, 18)], 1900.0)),  # it could not sample
        (HOLED, (AGAIN | ENDED, 20, (10, 12)), ([(4.0, 5, 9)], 2000.0)),
        (HOLED, (AGAIN | ENDED, 20, (4, 6)), ([(4.0, 5, 9)], 2000.0)),
        (FEW, ({"ended_unix_ns": START_NS + 8 * S}, 20, None), ([], 800.0)),
        (FEW, ({}, None, None), ([], 800.0)),  # the job was killed with it
        (FEW, ({}, 10.9, None), ([], 800.0)),  # the job ended a moment later
        (FEW, ({"starts_unix_ns": None}, 20, None), ([], 800.0)),
    ],
)
def test_what_the_monitor_did_not_see_is_said_and_no_energy_without_a_part_is_given(
    tmp_path: Path, seconds: list[int], job: tuple[dict[str, Any], float | None, Steps | None], said: tuple[Gaps, Any]
) -> None:
    (meta, ended_s, steps), (gaps, joules) = job, said
    ends = {} if ended_s is None else {"node1": START_NS + round(ended_s * S)}
    training = [RankTraining(rank=0, profiled_unix_ns=span_of(steps))]
    (device,), found = read_monitor([sampled(tmp_path / "node1", seconds, **meta)], training, ends)
    assert [problem.evidence for problem in found] == [
        f"node1: no samples for {lasts} s, from {clock(begin)} to {clock(end)}; its means do not cover this time"
        for lasts, begin, end in gaps
    ]
    severity = RecordingVerdict.GOOD if steps == (10, 12) else RecordingVerdict.DOUBTFUL
    assert {(problem.what, problem.severity) for problem in found} == ({(MONITOR_GAP, severity)} if gaps else set())
    assert device.energy_joules == joules


def clock(second: int) -> str:
    return datetime.fromtimestamp(START_NS / S + second).strftime("%H:%M:%S")


def test_the_ends_of_the_nodes_are_those_of_their_monitors(tmp_path: Path) -> None:
    """One that never started is told once its job ended; nodes that one machine plays have their own ends."""
    for name in ("node1", "node2"):
        (tmp_path / "gpus-monitor" / name).mkdir(parents=True)
    sampled(tmp_path / "gpus-monitor" / "host-1", FEW)
    (tmp_path / "node-status").mkdir()
    for node, (host, end_s) in enumerate([("host", 8), ("host", 20), ("node1", 1)]):
        ended = NodeStatus(node=node, host=host, exit=0, started_ns=1, ended_ns=START_NS + end_s * S)
        (tmp_path / "node-status" / f"{node}.json").write_text(ended.model_dump_json())
    said = {(each.what, each.evidence.partition(":")[0]) for each in read_contents(tmp_path).problems}
    assert {each for each in said if each[0] in (NO_MONITOR, MONITOR_GAP)} == {
        (NO_MONITOR, "node1"),
        (MONITOR_GAP, "host-1"),
    }
