"""Which GPUs are the job's, and what is said of those that are not sampled as the job sees them. Fake drivers."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from harness.analysis.summary import RankTraining, RecordingVerdict
from harness.analysis.summary.problem_texts import OTHER_GPUS
from harness.common.system.processes import RunningProcess
from harness.measure.run_files import read_monitor
from harness.monitor.nvml import NvmlSource, open_nvml
from harness.monitor.processes import ProcessTree
from harness.monitor.record import _open_source, begin_or_go_on
from harness.monitor.samples import read, replace_json
from tests.monitor.conftest import Write, rows_of
from tests.monitor.fake_nvml import FakeDevice, FakeNvml

UUIDS = ["GPU-aa00", "GPU-bb00", "GPU-cc00"]
VISIBLE = "CUDA_VISIBLE_DEVICES"


def devices(count: int = 3) -> list[FakeDevice]:
    return [FakeDevice(uuid=uuid) for uuid in UUIDS[:count]]


def source_of(changes: dict[int, dict[str, Any]], environ: dict[str, str]) -> NvmlSource:
    """Three GPUs, some of them changed."""
    return NvmlSource(FakeNvml(*(replace(each, **changes.get(i, {})) for i, each in enumerate(devices()))), environ)


class Scene(NamedTuple):
    """GPUs with a change, variables, and which are sampled with what is said of them."""

    changes: dict[int, dict[str, Any]]
    environ: dict[str, str]
    gpus: list[int]
    said: tuple[str, ...] = ()


CHOICES = {
    "2,0": ([0, 2], None),
    "GPU-bb": ([1], None),
    "GPU-cc00,0": ([0, 2], None),
    "": ([], "an empty entry names no GPU, so no GPU is sampled"),
    "-1": ([], "its entry '-1' names no GPU of this node, so no GPU is sampled"),
    "NoDevFiles": ([], "its entry 'NoDevFiles' names no GPU of this node, so no GPU is sampled"),
    "0,-1,1": ([0], "its entry '-1' names no GPU of this node, so only the GPUs before it are sampled"),
    "7": ([], "its entry '7' names no GPU of this node, so no GPU is sampled"),
    "GPU-": ([], "its entry 'GPU-' names several GPUs, so no GPU is sampled"),
    "MIG-ffff": ([], "the GPU of MIG-ffff is not known (Not Found), so no GPU is sampled"),
}
LOST: dict[int, dict[str, Any]] = {1: {"lost": True}}
SILENT = "GPU 1 does not answer (GPU is lost): its numbers are not known"
FORBIDDEN: dict[str, Any] = {"forbidden": True}
UNLIKE: dict[int, dict[str, Any]] = {0: {"name": "NVIDIA L4"}}
SPLIT: dict[int, dict[str, Any]] = {1: {"mig": (1, 1), "slices": ("MIG-5e0c",)}}
SCENES = {
    "all": Scene({}, {}, [0, 1, 2]),
    **{
        visible: Scene({}, {VISIBLE: visible}, gpus, () if end is None else (f"{VISIBLE} is {visible!r}: {end}",))
        for visible, (gpus, end) in CHOICES.items()
    },
    "a lost one": Scene(LOST, {VISIBLE: "1,2"}, [1, 2], (SILENT,)),
    "a UUID that may be the lost one's": Scene(LOST, {VISIBLE: "GPU-bb00,GPU-cc00"}, [1, 2], (SILENT,)),
    "one that the job may not ask": Scene({0: FORBIDDEN}, {}, [1, 2]),
    "CUDA numbers those that it may open": Scene({0: FORBIDDEN}, {VISIBLE: "0,1"}, [1, 2]),
    "none may be asked": Scene(
        dict.fromkeys(range(3), FORBIDDEN), {}, [],
        ("3 of the node's 3 GPUs may not be asked (Insufficient Permissions)",),
    ),
    "a split one": Scene(
        SPLIT, {VISIBLE: "1"}, [1], ("GPU 1: it is split (MIG); its numbers are the whole board's",)
    ),
    "a slice": Scene(
        SPLIT, {VISIBLE: "MIG-5e0c"}, [1],
        ("GPU 1: the job has the slice MIG-5e0c of it; its numbers are the whole board's",),
    ),
    "numbers among unlike models": Scene(
        UNLIKE, {VISIBLE: "0"}, [0],
        (
            f"{VISIBLE} is '0', and the node's GPUs are of several models, which CUDA numbers by their speed and NVML "
            "by their place: the sampled GPUs may be others than the job's, unless CUDA_DEVICE_ORDER is PCI_BUS_ID",
        ),
    ),
    "in the order of places": Scene(UNLIKE, {VISIBLE: "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, [0]),
    "a UUID among unlike models": Scene(UNLIKE, {VISIBLE: "GPU-aa"}, [0]),
    "all unlike models": Scene(UNLIKE, {VISIBLE: "0,1,2"}, [0, 1, 2]),
}  # fmt: skip


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES)
def test_with_a_fake_pynvml_the_jobs_gpus_are_sampled_and_what_is_not_as_it_sees_them_is_said(scene: Scene) -> None:
    source = source_of(scene.changes, scene.environ)
    assert [device["index"] for device in source.describe()["devices"]] == scene.gpus
    assert source.notes == scene.said


def test_with_a_fake_pynvml_a_lost_gpu_has_no_values_and_a_split_one_is_marked() -> None:
    source = source_of(LOST | {2: SPLIT[1]}, {})
    _, lost, split = rows_of(source)
    assert (set(lost.values()), split["power_watts"]) == ({None}, 450.0)
    about = source.describe()["devices"]
    assert about[1] == {"index": 1, "name": "unknown", "uuid": None, "memory_total_bytes": None}
    assert about[2]["name"] == "NVIDIA H200 (whole board)"


@pytest.mark.parametrize(("module", "visible", "notes"), [
    (FakeNvml(init_error=12), None, ()),
    (FakeNvml(init_error=9), None, ()),
    (FakeNvml(), None, ()),
    (FakeNvml(init_error=18), None, ("no GPU is sampled: NVML does not answer (NVML/RM version mismatch)",)),
    (FakeNvml(*devices(1)), "-1",
     ("CUDA_VISIBLE_DEVICES is '-1': its entry '-1' names no GPU of this node, so no GPU is sampled",)),
])  # fmt: skip
def test_where_no_gpu_is_sampled_the_reason_is_said_unless_there_is_no_gpu(
    monkeypatch: pytest.MonkeyPatch, module: FakeNvml, visible: str | None, notes: tuple[str, ...]
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", module)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert open_nvml() == (None, notes)


def test_with_a_fake_pynvml_the_cpu_that_stands_in_for_hidden_gpus_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(*devices(2)))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    source, (note,) = _open_source(ProcessTree(RunningProcess(os.getpid(), 0), with_root=True))
    assert source.kind == "processes"
    assert note.startswith("CUDA_VISIBLE_DEVICES is '-1'")


@pytest.mark.parametrize(("source", "device", "told"), [
    ("nvml", "cuda", True), ("processes", "cuda", True), ("processes", None, True), ("processes", "cpu", False),
])  # fmt: skip
def test_the_report_has_the_monitors_sentence_as_a_remark_unless_the_ranks_need_no_gpu(
    write_samples: Write, source: str, device: str | None, told: bool
) -> None:
    folder = write_samples(["utilization_percent"], [[1.0], [1.0]], source=source, notes=["GPU 1 does not answer"])
    training = [RankTraining(rank=0, host="node1", device=device)]
    problems = [problem for problem in read_monitor([folder], training)[1] if problem.what == OTHER_GPUS]
    assert [(p.severity, p.evidence) for p in problems] == [
        (RecordingVerdict.GOOD, "node1: GPU 1 does not answer")
    ] * told  # fmt: skip


def test_notes_of_a_damaged_description_are_left_out(write_samples: Write) -> None:
    folder = write_samples(["utilization_percent"], [[1.0]], notes=[7, "x" * 9_999, *["y"] * 99])
    notes = read(folder).notes
    assert (len(notes), len(notes[0])) == (20, 500)


def test_a_gpu_that_is_lost_when_the_monitor_is_started_again_keeps_its_name(tmp_path: Path) -> None:
    three = devices(2)
    meta, _ = begin_or_go_on(tmp_path / "meta.json", {"schema": 1, **NvmlSource(FakeNvml(*three)).describe()})
    replace_json(tmp_path / "meta.json", meta)
    three[1].lost = True
    again, _ = begin_or_go_on(tmp_path / "meta.json", {"schema": 1, **NvmlSource(FakeNvml(*three)).describe()})
    assert [device["uuid"] for device in again["devices"]] == UUIDS[:2]
