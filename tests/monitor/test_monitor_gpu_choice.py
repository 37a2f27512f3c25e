"""Which GPUs are the job's, and what is said of those that are not sampled as the job sees them. Fake drivers."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from harness.analysis.summary import RankTraining, RecordingVerdict
from harness.analysis.summary.problem_texts import OTHER_GPUS
from harness.common.system.processes import RunningProcess
from harness.measure.run_files import read_monitor
from harness.monitor.gpu_choice import choose_visible
from harness.monitor.nvml import NvmlSource, open_nvml
from harness.monitor.processes import ProcessTree
from harness.monitor.record import _open_source, begin_or_go_on
from harness.monitor.samples import read, replace_json
from tests.monitor.conftest import Write
from tests.monitor.fake_nvml import FakeDevice, FakeNvml

UUIDS = ["GPU-aa00", "GPU-bb00", "GPU-cc00"]


def devices(count: int = 3) -> list[FakeDevice]:
    return [FakeDevice(uuid=uuid) for uuid in UUIDS[:count]]


def indices(source: NvmlSource) -> list[int]:
    return [device["index"] for device in source.describe()["devices"]]


@pytest.mark.parametrize(
    ("visible", "expected", "end"),
    [
        (None, [0, 1, 2], None),
        ("2,0", [0, 2], None),
        ("GPU-bb", [1], None),
        ("GPU-cc00,0", [0, 2], None),
        ("", [], "an empty entry names no GPU, so no GPU is sampled"),
        ("-1", [], "its entry '-1' names no GPU of this node, so no GPU is sampled"),
        ("NoDevFiles", [], "its entry 'NoDevFiles' names no GPU of this node, so no GPU is sampled"),
        ("0,-1,1", [0], "its entry '-1' names no GPU of this node, so only the GPUs before it are sampled"),
        ("7", [], "its entry '7' names no GPU of this node, so no GPU is sampled"),
        ("GPU-", [], "its entry 'GPU-' names several GPUs, so no GPU is sampled"),
    ],
)
def test_cuda_visible_devices_chooses_the_jobs_gpus_up_to_the_first_entry_that_is_none(
    visible: str | None, expected: Sequence[int], end: str | None
) -> None:
    choice = choose_visible(UUIDS, visible)
    assert list(choice.places) == expected
    assert choice.notes == (() if end is None else (f"CUDA_VISIBLE_DEVICES is {visible!r}: {end}",))


def test_with_a_fake_pynvml_one_lost_gpu_has_no_values_and_the_others_are_sampled() -> None:
    three = devices()
    three[1].lost = True
    assert indices(NvmlSource(FakeNvml(*three), {"CUDA_VISIBLE_DEVICES": "GPU-bb00,GPU-cc00"})) == [1, 2]
    source = NvmlSource(FakeNvml(*three), {"CUDA_VISIBLE_DEVICES": "1,2"})
    rows = source.sample()
    assert indices(source) == [1, 2]
    assert set(rows[0]) == {None}
    assert dict(zip(source.columns, rows[1], strict=True))["power_watts"] == 450.0
    assert source.notes == ("GPU 1 does not answer (GPU is lost): its numbers are not known",)
    assert source.describe()["devices"][0] == {
        "index": 1, "name": "unknown", "uuid": None, "memory_total_bytes": None
    }  # fmt: skip


def test_with_a_fake_pynvml_gpus_that_the_job_may_not_ask_are_neither_sampled_nor_counted() -> None:
    """CUDA numbers the GPUs that it may open."""
    three = devices()
    three[0].forbidden = True
    for environ in ({}, {"CUDA_VISIBLE_DEVICES": "0,1"}):
        source = NvmlSource(FakeNvml(*three), environ)
        assert (indices(source), source.notes) == ([1, 2], ())
    for device in three:
        device.forbidden = True
    assert NvmlSource(FakeNvml(*three)).notes == (
        "3 of the node's 3 GPUs may not be asked (Insufficient Permissions)",
    )  # fmt: skip


SLICES: dict[str, tuple[list[int], str]] = {
    "1": ([1], "GPU 1: it is split (MIG); its numbers are the whole board's"),
    "MIG-5e0c": ([1], "GPU 1: the job has the slice MIG-5e0c of it; its numbers are the whole board's"),
    "MIG-ffff": (
        [],
        "CUDA_VISIBLE_DEVICES is 'MIG-ffff': the GPU of MIG-ffff is not known (Not Found), so no GPU is sampled",
    ),
}


@pytest.mark.parametrize(("name", "gpus", "said"), [(name, *about) for name, about in SLICES.items()])
def test_with_a_fake_pynvml_of_a_mig_slice_only_its_gpu_is_sampled_and_marked(
    name: str, gpus: list[int], said: str
) -> None:
    three = devices()
    three[1].mig, three[1].slices = (1, 1), ("MIG-5e0c",)
    source = NvmlSource(FakeNvml(*three), {"CUDA_VISIBLE_DEVICES": name})
    assert (indices(source), source.notes) == (gpus, (said,))
    names = [device["name"] for device in source.describe()["devices"]]
    assert names == ["NVIDIA H200 (whole board)"] * len(gpus)


def test_with_a_fake_pynvml_numbers_among_unlike_models_are_doubted_where_cuda_may_count_otherwise() -> None:
    unlike = FakeNvml(FakeDevice(uuid="GPU-aa00", name="NVIDIA L4"), FakeDevice(uuid="GPU-bb00"))
    (note,) = NvmlSource(unlike, {"CUDA_VISIBLE_DEVICES": "0"}).notes
    assert "of several models" in note and "CUDA_DEVICE_ORDER" in note
    certain = ({"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, {"CUDA_VISIBLE_DEVICES": "GPU-aa"})
    for environ in (*certain, {"CUDA_VISIBLE_DEVICES": "0,1"}, {}):
        assert NvmlSource(unlike, environ).notes == ()
    assert NvmlSource(FakeNvml(*devices()), {"CUDA_VISIBLE_DEVICES": "0"}).notes == ()


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
