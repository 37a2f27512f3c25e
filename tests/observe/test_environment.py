"""What the record of a node's environment takes from files and variables, by files that are made for it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

from harness.observe import environment
from harness.observe.environment import EnvironmentRecorder, installed, used, variables
from tests.waiting import wait_until

HEADER = b"#!/usr/bin/env run-singularity\n".ljust(32, b"\0") + b"SIF_MAGIC\x0001\x0002\0" + bytes(range(16))


def a_package(folder: Path, about: str, **files: str) -> None:
    (folder / about).mkdir(parents=True)
    for name, text in files.items():
        (folder / about / name).write_text(text)


def test_names_and_versions_are_those_of_the_first_folder(tmp_path: Path) -> None:
    a_package(tmp_path / "first", "Flash_Attn-2.7.4+cu12.dist-info")
    a_package(tmp_path / "first", "old.thing-1.0-py3.11.egg-info")
    a_package(tmp_path / "second", "flash_attn-2.6.dist-info")
    a_package(tmp_path / "second", "mine.egg-info", **{"PKG-INFO": "Name: mine\nVersion: 0.3\n"})
    a_package(tmp_path / "second", "bare.egg-info")
    found = installed([str(tmp_path / name) for name in ("none", "first", "second")])
    assert {name: package.version for name, package in found.items()} == {
        "bare": "", "flash-attn": "2.7.4+cu12", "mine": "0.3", "old-thing": "1.0",
    }  # fmt: skip


def test_a_package_is_used_by_its_module_its_folder_or_its_list_of_files(tmp_path: Path) -> None:
    for name, file in (("nvidia_nccl_cu12", "nvidia/nccl/lib/libnccl.so.2"), ("nvidia_cudnn_cu12", "nvidia/cudnn.so")):
        a_package(tmp_path, f"{name}-1.0.dist-info", RECORD=f"{file},sha256=x,1\n")
    for name in ("torch", "PyYAML", "editable", "idle"):
        a_package(tmp_path, f"{name}-1.0.dist-info", RECORD="yaml/__init__.py,,\n" if name == "PyYAML" else "")
    yaml = ModuleType("yaml")
    yaml.__file__ = str(tmp_path / "yaml/__init__.py")
    mapped = [f"{tmp_path}/nvidia/nccl/lib/libnccl.so.2", f"{tmp_path}/torch/lib/libtorch.so", "/usr/lib/libc.so"]
    found = used(installed([str(tmp_path)]), {"yaml": yaml, "editable.part": ModuleType("x"), "none": None}, mapped)
    assert found == ["editable", "nvidia-nccl-cu12", "pyyaml", "torch"]


def test_variables_are_without_ranks_the_run_s_folder_and_secrets() -> None:
    ours = str(Path(environment.__file__).parent / "site")
    kept = {"NCCL_ALGO": "Ring", "OMP_NUM_THREADS": "4", "SLURM_CPU_BIND_TYPE": "mask_cpu:", "OMPI_MCA_pml": "ucx"}
    left = {
        "RANK": "3", "MASTER_ADDR": "n0", "TORCHELASTIC_RUN_ID": "7", "CUDA_VISIBLE_DEVICES": "2", "HOME": "/root",
        "NCCL_DEBUG_FILE": "/runs/7/nccl/%h.log", "OMPI_COMM_WORLD_RANK": "3", "NCCL_API_KEY": "x", "SLURM_JOB_ID": "7",
        "CCL_LOGIN": "hf_abcdefghijkl", "OMPI_MCA_ess_base_jobid": "9",
    }  # fmt: skip
    path = {"PYTHONPATH": os.pathsep.join([ours, "/mine"])}
    assert variables({**kept, **left, **path}, Path("/runs/7")) == {**kept, "PYTHONPATH": "/mine"}
    assert variables({"PYTHONPATH": ours}, Path("/runs/7")) == {}


@pytest.mark.parametrize("is_sif", [True, False])
def test_an_image_is_known_by_its_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_sif: bool) -> None:
    image = tmp_path / "torch.sif"
    image.write_bytes(HEADER + (1_700_000_000).to_bytes(8, "little") + bytes(1000) if is_sif else b"x" * 5000)
    labels = tmp_path / "labels.json"
    labels.write_text('{"org.label-schema.build-date": "Friday"}')
    monkeypatch.setattr(environment, "_LABELS", labels)
    of_header = {"image id": bytes(range(16)).hex(), "image built": "1700000000"} if is_sif else {}
    expected = {"image": str(image), **of_header, "image label org.label-schema.build-date": "Friday"}
    assert recorded(tmp_path, monkeypatch, APPTAINER_CONTAINER=str(image))["system"].items() >= expected.items()


def recorded(folder: Path, monkeypatch: pytest.MonkeyPatch, **more: str) -> dict[str, dict[str, str]]:
    """What a process has recorded that is killed then."""
    for name, text in more.items():
        monkeypatch.setenv(name, text)
    EnvironmentRecorder(folder, "n0", 1, {"host processor": "a CPU", "cuda": None})
    file = folder / "environment/n0-1.json"
    wait_until(file.exists, "the environment")
    return dict(json.loads(file.read_text(encoding="utf-8")))


def test_a_training_that_is_killed_says_not_what_it_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = recorded(tmp_path, monkeypatch)
    assert found["used"] is None and found["packages"]["pytest"]
    assert found["system"]["executable"] == sys.executable and "cuda" not in found["system"]
