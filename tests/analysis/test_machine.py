"""Whether ranks on a CPU had the cores to themselves is said beside their times: from the monitor's samples."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from harness.analysis.summary import Problem, RankTraining, RecordingVerdict
from harness.analysis.summary.problem_texts import BUSY, CROWDED
from harness.measure.run_files import read_monitor, read_training

START_NS = 1_700_000_000_000_000_000
S = 10**9

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


def recorded(
    folder: Path,
    seconds: Sequence[tuple[float, float]],
    cores: int = 2,
    of: int | None = 2,
    *,
    host: str = "n0",
    machine: str = "one",
) -> Path:
    """A monitor's folder with one sample per second; the first sample has no rate."""
    folder.mkdir(parents=True)
    device = {"index": 0, "name": f"job on {cores} CPUs", "memory_total_bytes": None}
    meta = {"schema": 1, "host": host, "source": "processes", "period_ns": S, "devices": [device], "cpus": cores}
    more = {"machine": machine} | ({} if of is None else {"machine_cpus": of})
    (folder / "meta.json").write_text(json.dumps(meta | more))
    rows = ["unix_ns,device,utilization_percent,machine_utilization_percent", f"{START_NS},0,,"]
    rows += [f"{START_NS + (i + 1) * S},0,{job},{every}" for i, (job, every) in enumerate(seconds)]
    (folder / "samples.csv").write_text("\n".join(rows) + "\n")
    return folder


def ranks(
    count: int, steps: tuple[float, float] | None = None, device: str = "cpu", node: int | None = None
) -> list[RankTraining]:
    """Ranks whose profiled steps lie between two moments, seconds after the monitor's start."""
    span = None if steps is None else (START_NS + round(steps[0] * S), START_NS + round(steps[1] * S))
    return [
        RankTraining(rank=rank, host="n0", node=node, device=device, profiled_unix_ns=span) for rank in range(count)
    ]


def said(folders: list[Path], training: list[RankTraining]) -> list[Problem]:
    return read_monitor(folders, training)[1]


def test_others_on_the_cores_during_the_profiled_steps_make_a_run_doubtful(tmp_path: Path) -> None:
    (found,) = said([recorded(tmp_path / "m", DISTURBED)], ranks(2, DISTURBED_STEPS))
    assert (found.severity, found.what) == (RecordingVerdict.DOUBTFUL, BUSY)
    assert "over the counted steps the job used 66 % of 2 cores, other programs at least 34 %" in found.evidence


@pytest.mark.parametrize(
    ("seconds", "steps"), [(QUIET, QUIET_STEPS), (LATE, LATE_STEPS)], ids=["loaded before", "found late"]
)
def test_what_went_on_before_and_after_the_profiled_steps_does_not_count(
    tmp_path: Path, seconds: list[tuple[float, float]], steps: tuple[float, float]
) -> None:
    """Other processes work while the job starts; new processes do not belong to the job yet; the job ends last."""
    assert said([recorded(tmp_path / "m", seconds)], ranks(2, steps)) == []


def test_the_part_of_each_sample_that_lies_in_the_steps_is_its_weight(tmp_path: Path) -> None:
    seconds = [(100, 100), (20, 100), (100, 100)]
    (found,) = said([recorded(tmp_path / "a", seconds)], ranks(2, (0.5, 2.0)))  # 0.5 s of the first, 1 s of the second
    assert "the job used 47 % of 2 cores, other programs at least 53 %" in found.evidence
    assert said([recorded(tmp_path / "b", seconds)], ranks(2, (2.0, 3.0))) == []


@pytest.mark.parametrize("steps", [None, (40.0, 42.0)], ids=["no profile", "samples ended before"])
def test_without_samples_of_the_steps_the_whole_job_is_judged(
    tmp_path: Path, steps: tuple[float, float] | None
) -> None:
    (found,) = said([recorded(tmp_path / "a", DISTURBED)], ranks(2, steps))
    assert "over the whole run the job used 47 % of 2 cores, other programs at least" in found.evidence
    assert said([recorded(tmp_path / "b", LATE)], ranks(2, steps)) == []


def test_others_on_cores_that_the_job_does_not_need_are_no_doubt(tmp_path: Path) -> None:
    """Sixteen cores: other processes use half of them, two ranks use the rest."""
    assert said([recorded(tmp_path / "a", [(12, 62)] * 5, 16, 16)], ranks(2, (1, 4))) == []
    (found,) = said([recorded(tmp_path / "b", [(12, 62)] * 5, 16, 16)], ranks(10, (1, 4)))
    assert found.what == BUSY


def test_others_on_cores_that_the_job_may_not_use_are_no_doubt(tmp_path: Path) -> None:
    """The ranks are bound to 2 of 16 cores and use both; other processes may use the other 14."""
    assert said([recorded(tmp_path / "a", [(100, 100)] * 5, 2, 16)], ranks(2, (1, 4))) == []
    (found,) = said([recorded(tmp_path / "b", [(50, 100)] * 5, 2, 16)], ranks(2, (1, 4)))
    assert "other programs at least 50 %" in found.evidence


def test_ranks_that_the_monitor_did_not_see_are_no_others(tmp_path: Path) -> None:
    """The ranks are children of a program outside of the job."""
    assert said([recorded(tmp_path / "a", [(0.5, 99)] * 5)], ranks(2, (1, 4))) == []
    (found,) = said([recorded(tmp_path / "many cores", [(1.2, 100)] * 5, 128, 128)], ranks(2, (1, 4)))
    assert found.what == BUSY
    assert said([recorded(tmp_path / "b", [(5, 99)] * 5)], ranks(2, (1, 4))) != []


def test_nodes_that_one_machine_plays_are_no_others_to_each_other(tmp_path: Path) -> None:
    folders = [recorded(tmp_path / f"n0-{i}", [(49, 99)] * 5, host=f"n0-{i}") for i in range(2)]
    training = [*ranks(1, (1, 4), node=0), *ranks(1, (1, 4), node=1)]
    assert said(folders, training) == []
    apart = [recorded(tmp_path / f"m{i}", [(49, 99)] * 5, host=f"n0-{i}", machine=str(i)) for i in range(2)]
    assert [f.what for f in said(apart, training)] == [BUSY, BUSY]


def test_more_ranks_than_cores_are_a_finding(tmp_path: Path) -> None:
    folders = [recorded(tmp_path / f"n0-{i}", [(50, 100)] * 5, host=f"n0-{i}") for i in range(2)]
    training = [*ranks(2, (1, 4), node=0), *ranks(2, (1, 4), node=1)]
    (found,) = said(folders, training)
    assert (found.severity, found.what) == (RecordingVerdict.DOUBTFUL, CROWDED)
    assert "n0-0, n0-1: 4 ranks on 2 cores" in found.evidence


def test_ranks_with_gpus_and_recordings_that_do_not_say_how_many_cores_there_are_raise_nothing(tmp_path: Path) -> None:
    assert said([recorded(tmp_path / "a", DISTURBED)], ranks(8, DISTURBED_STEPS, device="cuda")) == []
    assert said([recorded(tmp_path / "b", DISTURBED, of=None)], ranks(2, DISTURBED_STEPS)) == []


def test_the_profiled_steps_are_those_that_the_training_calls_active(tmp_path: Path) -> None:
    lines: list[dict[str, object]] = [{"event": "start", "rank": 0, "device": "cpu"}]
    lines += [
        {"event": "step", "phase": phase, "unix_ns": START_NS + i * S, "step_ns": S // 2}
        for i, phase in enumerate(["warmup", "active", "active", "after"])
    ]
    path = tmp_path / "rank0.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    ((found,), _) = read_training([path])
    assert found.profiled_unix_ns == (START_NS + S, START_NS + 2 * S + S // 2)
