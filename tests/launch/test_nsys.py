"""nsys gets only options that its help lists. The help texts are stand-ins for three generations of nsys."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.common.errors import RequestError
from harness.experiment.nsys_sets import (
    Options,
    check_trace_list,
    is_trace_list,
    load_options,
    profile_words,
    trace_list,
)
from harness.launch.profilers.nsys import (
    Nsys,
    adapted,
    blindness,
    options_of_start,
    program_of,
    understood,
    without_whole_node,
)
from tests.launch.launch_shared import ROOT
from tests.launch.stand_ins import executable
from tests.waiting import limit_s

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
    --osrt-threshold=
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
    "NVIDIA Nsight Systems version 2024.6.2.225", TRACE.format(more=", 'ucx'") + f"    --gpu-metrics-devices=\n{COMMON}"
)


def profile_argv(nsys: Nsys, options: Options, has_gpu: bool, *changes: str) -> tuple[list[str], list[str]]:
    return adapted(profile_words(options, changes, has_gpu=has_gpu), nsys)


BY_TIME = ["--no-capture-range", "--no-capture-range-end", "--no-nvtx-capture"]
LATER = """
    -d, --duration=
    -y, --delay=
    --kill=
    --python-functions-trace=
    --python-sampling=
    --python-sampling-frequency=
"""
NIC = "    --nic-metrics=\n\n       Possible values are {}.\n       Collect metrics from NIC/HCA devices.\n\n"
# The paragraph of 2022.4 is nsys's own; that of 2026 is written after its user guide, not seen.
V2024 = understood("2024.6.2", TRACE.format(more="") + NIC.format("'true' or 'false'") + LATER + COMMON)
V2026 = understood("2026.2.1", TRACE.format(more="") + NIC.format("'lf', 'hf' or 'none'") + LATER + COMMON)


NO_METRICS = "this nsys (2024.6.2) has no --gpu-metrics-devices: left out"
NO_NEW_METRICS = NO_METRICS.replace("2024.6.2", "2026.2.1")


@pytest.mark.parametrize(
    ("nsys", "name", "has_gpu", "changes", "there", "absent", "warnings"),
    [
        (NEW, "default", True, [], ["--trace=cuda,nvtx,osrt,cudnn,cublas", "--gpu-metrics-devices=all",
                                    "--capture-range=cudaProfilerApi"], "--gpu-metrics-device=", []),
        (OLD, "default", True, [], ["--gpu-metrics-device=all"], "--gpu-metrics-devices", []),
        (OLD, "megatron", True, [], ["--trace=cuda,nvtx,osrt,cudnn,cublas"], "--gpu-metrics-devices",
         ["this nsys (2022.4.2) cannot trace ucx: left out"]),
        (NEW, "default", False, [], [], "--gpu", []),  # no GPU's option stops the application
        # what a run asks for changes the set
        (V2024, "default", True, ["--trace=nvtx", "--no-stats", "--delay=5", "--sample=a=b"],
         ["--trace=nvtx", "--delay=5", "--sample=a=b", "--cudabacktrace=kernel"], "--stats", [NO_METRICS]),
        (V2024, "default", True, ["--nic-metrics=true"], ["--nic-metrics=true"], "--gpu-metrics-d", [NO_METRICS]),
        (V2026, "default", True, ["--nic-metrics=true"], ["--nic-metrics=lf"], "--gpu-metrics-d", [NO_NEW_METRICS]),
        (V2026, "default", False, ["--nic-metrics=true"], ["--nic-metrics=lf"], "--gpu", []),
    ],
)  # fmt: skip
def test_an_option_set_is_written_in_the_words_of_this_version(
    nsys: Nsys, *, name: str, has_gpu: bool, changes: list[str], there: list[str], absent: str, warnings: list[str]
) -> None:
    argv, said = profile_argv(nsys, load_options(name), has_gpu, *changes)
    assert (argv[:2], set(there) - set(argv), said) == (["nsys", "profile"], set(), warnings)
    assert not any(word.startswith(absent) for word in argv)


WRONG_FILES = [
    (check_trace_list, "{", "is not JSON"),
    (check_trace_list, "{}", "must be a JSON list"),
    (check_trace_list, "[]", "must be a JSON list"),
    (check_trace_list, '["torch"]', '"module"'),
    (check_trace_list, '[{"module": "torch"}]', "functions"),
    (load_options, "[1]", "one JSON object"),
    (load_options, "{", "is not JSON"),
]


@pytest.mark.parametrize(("read", "text", "sentence"), WRONG_FILES)
def test_a_wrong_list_or_set_is_one_sentence(
    tmp_path: Path, read: Callable[..., object], text: str, sentence: str
) -> None:
    path = tmp_path / "mine.json"
    path.write_text(text)
    with pytest.raises(RequestError, match=sentence):
        read(str(path) if read is load_options else path)


def test_our_list_of_python_functions_is_known_by_its_name_and_null_leaves_an_option_out(tmp_path: Path) -> None:
    check_trace_list(trace_list("pytorch"))
    assert not is_trace_list("a" * 300)
    for name, hint in (("pytroch", "did you mean pytorch"), ("x", "there are pytorch, or give a path")):
        with pytest.raises(RequestError, match=rf"cannot be read .*; {hint}"):
            check_trace_list(trace_list(name))
    path = tmp_path / "mine.json"
    path.write_text('{"stats": null, "sample": "none"}')
    assert profile_argv(NEW, load_options(str(path)), True)[0] == ["nsys", "profile", "--sample=none"]


START = """
    -c, --capture-range=
    --capture-range-end=
    --gpuctxsw=
    -o, --output=
    --session=
    --stats=
"""


def test_it_can_record_again_with_the_options_that_nsys_start_takes() -> None:
    nsys = V2024._replace(of_start=understood("", "", START).of_start)
    words = profile_argv(nsys, load_options("default"), True)[0]
    again = ["--gpuctxsw=true", "--capture-range=cudaProfilerApi", "--capture-range-end=stop", "--stats=true"]
    assert options_of_start(nsys, words) == again
    for change in (["--no-capture-range-end"], [*BY_TIME, "--delay=3"], [*BY_TIME, "--duration=3"]):
        changed = profile_argv(nsys, load_options("default"), True, *change)[0]
        assert options_of_start(nsys, changed) is None, "once its own recording has ended it is over"
    assert options_of_start(V2024, words) is None, "no nsys start"


def test_only_the_first_rank_of_a_node_records_the_node() -> None:
    nsys = NEW._replace(flags=NEW.flags | {"nic-metrics"})
    first = profile_argv(nsys, load_options("default"), True, "--nic-metrics=true")[0]
    others = without_whole_node(first)
    whole_node = [word for word in first if word.startswith(("--gpu", "--nic"))]
    assert len(whole_node) == 4
    assert [word for word in first if word not in whole_node] == others


def test_what_a_person_writes_in_another_way_stays_and_what_is_unknown_goes_with_its_value() -> None:
    words = ["nsys", "profile", "-t", "cuda,nvtx", "--sample", "none", "--new-thing", "7", "--output=x"]
    found, left_out = adapted(words, NEW)
    assert found == ["nsys", "profile", "-t", "cuda,nvtx", "--sample", "none", "--output=x"]
    assert left_out == ["this nsys (2024.6.2) has no --new-thing: left out"]


@pytest.mark.parametrize("link", ["bin/nsys", "cuda/bin/nsys"])
def test_nsys_is_found_behind_a_link_or_beside_a_script(tmp_path: Path, link: str) -> None:
    place = "" if link == "bin/nsys" else "cuda/nsight-systems-2024.6.2"
    real = tmp_path / place / "target-linux-x64" / "nsys"
    real.parent.mkdir(parents=True)
    real.touch()
    named = tmp_path / link
    named.parent.mkdir(parents=True, exist_ok=True)
    named.touch()  # a script that would start the other
    assert program_of(named) == real
    named.unlink()
    named.symlink_to(real)
    assert program_of(named) == real
    assert program_of(Path("/usr/bin/env")) == Path("/usr/bin/env")


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
    executable(tmp_path / "nsys", f'#!/bin/sh\necho "$* $HF_TOKEN" >>"$0.said"\ncase "$*" in {body} esac\n')
    done = in_container(f"{tmp_path}:/bin:/usr/bin", *profile_words(load_options("default"), [], has_gpu=True))
    assert done.returncode == 0, done.stderr
    words = (tmp_path / "nsys.said").read_text().splitlines()[-1].split()
    assert "--capture-range=cudaProfilerApi" in words
    assert any(word.startswith("--gpu-metrics") for word in words) == sampled
    assert ("no GPU metrics here (Insufficient privilege" in done.stderr) != sampled
    assert words[-2:] == ["train.py", "7"]


def in_container(path: str, *words: str) -> subprocess.CompletedProcess[str]:
    """nsys.py, as a container that srun makes starts it: by its path, by a Python without packages, with a secret."""
    argv = [sys.executable, "-S", str(ROOT / "harness/launch/profilers/nsys.py"), *words, "train.py", "7"]
    env = {"PATH": path, "PYTHONPATH": "/somebody/elses", "HF_TOKEN": "a secret"}
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=limit_s())


def test_a_container_without_nsys_is_one_sentence() -> None:
    done = in_container("/nowhere", "nsys", "profile", "--output=x")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "nsys is not on the container's PATH: build it into the image (containers/README.md)" in done.stderr


FAKE = """#!/bin/bash
echo "$*" >>"$0.said"
[[ $1 != stop ]] || exit 0
while [[ $1 != -- && $1 != *python* ]]; do shift; done
echo "recorded: $HARNESS_RECORDED_NS" >>"$0.said"
"$@"
"""


def test_a_rank_becomes_the_nsys_of_its_place_and_is_stopped_by_the_clock(tmp_path: Path) -> None:
    """The nsys is a program that starts what it shall record and notes how it was called, also by `nsys stop`."""
    nsys = executable(tmp_path / "nsys", FAKE)
    file, script = tmp_path / "node.json", tmp_path / "it's.py"
    script.write_text("import sys, time; time.sleep(float(sys.argv[1])); sys.exit(7)")
    others = [str(nsys), "profile", "--output=/o ut_rank%q{RANK}"]
    file.write_text(json.dumps({"first": [*others, "--delay=1", "--duration=1"], "others": others}))
    for local, seconds in (("0", "3"), ("1", "0")):
        env = {**os.environ, "RANK": f"1{local}", "LOCAL_RANK": local}
        argv = [sys.executable, str(ROOT / "harness/launch/profilers/rank.py"), str(file), str(script), seconds]
        assert subprocess.run(argv, env=env, check=False, timeout=limit_s()).returncode == 7, (
            "the training's own exit status"
        )
    first, recorded, stop, other, nothing = (tmp_path / "nsys.said").read_text().splitlines()
    session = first.split()[1]
    assert first == f"profile {session} --output=/o ut_rank10 --delay=1 --kill=none {sys.executable} {script} 3"
    assert session.startswith("--session-new=harness-")
    begin, end = map(int, recorded.split()[1:])
    assert end - begin == 10**9
    assert stop == session.replace("--session-new", "stop --session")
    assert other == f"profile --output=/o ut_rank11 {sys.executable} {script} 0"
    assert nothing == "recorded: "
