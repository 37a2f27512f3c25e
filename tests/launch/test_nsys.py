"""nsys gets only options that its help lists. The help texts are stand-ins for three generations of nsys."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.common.errors import RequestError
from harness.launch.profilers.nsys import blindness, load_options, profile_argv, understood
from tests.launch.launch_shared import ROOT

COMMON = """
    --mpi-impl=

       Only with --trace=mpi, which this text merely mentions.

    --capture-range=
    --capture-range-end=
    --cuda-memory-usage=
    --cudabacktrace=
    --stats=
    -o, --output=
    -s, --sample=
    --cpuctxsw=
    --gpuctxsw=
    --env-var=
    --nvtx-capture=
    --gpu-metrics-frequency=
"""
TRACE = """
    -t, --trace=

       Possible values are 'cuda', 'nvtx', 'cublas', 'cudnn', 'osrt'{more} or 'none'.
       Select the API(s) to trace.
"""
OLD = understood(
    "NVIDIA Nsight Systems version 2022.4.2.50-32196742v0",
    f"{TRACE.format(more='')}    --gpu-metrics-device=\n{COMMON}",
)
NEW = understood(
    "NVIDIA Nsight Systems version 2024.6.2.225",
    TRACE.format(more=", 'ucx'") + f"    --gpu-metrics-devices=\n{COMMON}",
)


def test_the_version_is_read() -> None:
    assert OLD.version == (2022, 4, 2)
    assert NEW.version == (2024, 6, 2)


def test_the_workshops_options_reach_the_new_one() -> None:
    argv, warnings = profile_argv(NEW, load_options("default"), "out/profile_node0", has_gpu=True)
    assert argv[:3] == ["nsys", "profile", "--trace=cuda,nvtx,osrt,cudnn,cublas"]
    assert "--gpu-metrics-devices=all" in argv
    assert "--capture-range=cudaProfilerApi" in argv
    assert argv[-1] == "--output=out/profile_node0"
    assert warnings == []


def test_a_renamed_option_gets_the_name_this_one_knows() -> None:
    argv, warnings = profile_argv(OLD, load_options("default"), "out", has_gpu=True)
    assert "--gpu-metrics-device=all" in argv
    assert not any(a.startswith("--gpu-metrics-devices") for a in argv)
    assert warnings == []


def test_options_that_it_cannot_trace_are_left_out_with_a_warning() -> None:
    argv, warnings = profile_argv(OLD, load_options("megatron"), "out", has_gpu=True)
    assert "--trace=cuda,nvtx,osrt,cudnn,cublas" in argv
    assert warnings == ["this nsys (2022.4.2) cannot trace ucx: left out"]


def test_without_gpu_no_gpu_option_stops_the_application() -> None:
    argv, _ = profile_argv(NEW, load_options("default"), "out", has_gpu=False)
    assert not any("gpu" in a for a in argv)


def test_null_leaves_an_option_out(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text('{"stats": null, "sample": "none"}')
    argv, _ = profile_argv(NEW, load_options(str(path)), "out", has_gpu=True)
    assert argv == ["nsys", "profile", "--sample=none", "--output=out"]


@pytest.mark.parametrize(("text", "sentence"), [("[1]", "one JSON object"), ("{", "is not JSON")])
def test_a_wrong_option_file_is_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "mine.json"
    path.write_text(text)
    with pytest.raises(RequestError, match=sentence):
        load_options(str(path))


LISTED = "Possible --gpu-metrics-devices values are:\n    0: NVIDIA A100 PCI[0]\n    all: Select all supported GPUs\n"
NONE_LISTED = "Some GPUs are not supported:\n    0: Volta GV100 | Quadro GV100 PCI[0000:17:00.0]\n"
# The output of nsys 2022.4.2 on a machine without a GPU.
NO_GPU = "Possible --gpu-metrics-device values are:\n\tNVIDIA GPUs not found, feature is not available\n"
REFUSED = "Insufficient privilege, see https://developer.nvidia.com/ERR_NVGPUCTRPERM\n"


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (LISTED, ""),
        (LISTED + NONE_LISTED, ""),
        (REFUSED, "Insufficient privilege, see https://developer.nvidia.com/ERR_NVGPUCTRPERM"),
        (NONE_LISTED, "Some GPUs are not supported: 0: Volta GV100 | Quadro GV100 PCI[0000:17:00.0]"),
        (NO_GPU, "NVIDIA GPUs not found, feature is not available"),
        ("Already under profiling\n", "Already under profiling"),
        ("", "nsys names no GPU"),
    ],
)
def test_whether_gpu_metrics_can_be_had_is_read_from_nsyss_own_list(said: str, reason: str) -> None:
    assert blindness(said) == reason


@pytest.mark.parametrize(("said", "sampled"), [(LISTED, True), (REFUSED, False)])
def test_with_a_fake_nsys_metrics_that_may_not_be_read_do_not_stop_the_training(
    tmp_path: Path, said: str, sampled: bool
) -> None:
    help_text = (TRACE.format(more="") + "    --gpu-metrics-devices=\n" + COMMON).replace("'", "")
    body = f"*gpu-metrics-devices=help) echo '{said}';; *version*) echo version 2024.6.2;; *) echo '{help_text}';;"
    nsys = tmp_path / "nsys"
    nsys.write_text(f'#!/bin/sh\ncase "$*" in {body} esac\n')
    nsys.chmod(0o755)
    done = asked_on_node(f"{tmp_path}:/bin:/usr/bin", "default", "gpu")
    assert done.returncode == 0, done.stderr
    words = done.stdout.split("\0")
    assert "--capture-range=cudaProfilerApi" in words
    assert any(word.startswith("--gpu-metrics") for word in words) == sampled
    assert ("no GPU metrics here (Insufficient privilege" in done.stderr) != sampled


def asked_on_node(path: str, options: str = "cpu", device: str = "cpu") -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "harness.launch.profilers.nsys", options, "/tmp/o ut", device]
    env = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=False)


def test_a_node_without_nsys_says_what_to_do(tmp_path: Path) -> None:
    done = asked_on_node(str(tmp_path))
    assert done.returncode == 1
    assert done.stdout == ""
    assert "nsys is not on this node's PATH: load its module" in done.stderr


def test_a_node_with_a_fake_nsys_prints_arguments_separated_by_nul(tmp_path: Path) -> None:
    help_text = f"{TRACE.format(more='')}{COMMON}".replace("'", "")
    nsys = tmp_path / "nsys"
    nsys.write_text(
        f"#!/bin/sh\ncase $1 in --version) echo version 2022.4.2;; *) echo '{help_text}';; esac\n"
    )
    nsys.chmod(0o755)
    words = asked_on_node(f"{tmp_path}:/bin:/usr/bin").stdout.split("\0")
    assert words[words.index("nsys") + 1] == "profile"
    assert "--output=/tmp/o ut" in words
    assert "--nvtx-capture=profiling_window" in words
