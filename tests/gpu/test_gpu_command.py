"""scripts/gpu-acceptance: it refuses wrong requests, names what is missing, and tries its tests on a CPU."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.machine import ROOT, has_gpu, run
from tests.gpu.work import Work
from tests.waiting import limit_s

on_a_cpu = pytest.mark.skipif(has_gpu(), reason="with a GPU the command itself is the test: scripts/gpu-acceptance OUT")


def typed(*words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command, with the tests' Python unless the environment names another."""
    argv = ["bash", str(ROOT / "scripts/gpu-acceptance"), *map(str, words)]
    around = {**os.environ, "HARNESS_PYTHON": sys.executable, **environment}
    return subprocess.run(argv, capture_output=True, text=True, check=False, env=around, timeout=limit_s(600))


@pytest.mark.parametrize(
    ("python", "words", "reason"),
    [
        (sys.executable, (), "name the folder"),
        (sys.executable, ("{out}", "trainings"), "trainings: there is no such part; there are inventory training"),
        (sys.executable, ("{out}", "--budget", "soon"), "--budget soon: give whole seconds"),
        (sys.executable, ("{file}/out",), "cannot be made"),
        ("/nowhere/python3", ("{out}",), "/nowhere/python3 is not a Python 3.10 or newer: name one in HARNESS_PYTHON."),
        ("/bin/false", ("{out}",), "/bin/false is not a Python 3.10 or newer: name one in HARNESS_PYTHON."),
        ("{bare}", ("{out}",), "pytest is missing: bring the wheels of pytest"),
    ],
)
def test_a_wrong_request_is_one_sentence_and_writes_nothing(
    tmp_path: Path, python: str, words: tuple[str, ...], reason: str
) -> None:
    out, file, bare = tmp_path / "out", tmp_path / "file", tmp_path / "bare"
    file.touch()
    if python == "{bare}":
        venv.EnvBuilder(with_pip=False, symlinks=True).create(bare)
        python = f"{bare}/bin/python"
    done = typed(*(word.format(out=out, file=file) for word in words), HARNESS_PYTHON=python)
    assert (done.returncode, done.stdout) == (2, "")
    assert reason in done.stderr
    assert not out.exists()


def test_every_file_of_tests_is_a_part() -> None:
    parts = [line.split()[0] for line in typed("--list").stdout.splitlines()]
    files = {path.stem.removeprefix("test_gpu_") for path in Path(__file__).parent.glob("test_gpu_*.py")}
    assert set(parts) == files - {"command"}


def results(out: Path) -> dict[str, dict[str, Any]]:
    tests: dict[str, dict[str, Any]] = json.loads((out / "results.json").read_text(encoding="utf-8"))
    return tests


@on_a_cpu
def test_without_a_gpu_the_tests_skip_and_say_so(tmp_path: Path) -> None:
    assert typed(tmp_path / "out", "faults").returncode == 0
    reasons = {test["reason"] for test in results(tmp_path / "out").values()}
    assert reasons == {"Skipped: this machine shows no NVIDIA GPU; --tiny tries what a CPU can show"}


def test_without_time_nothing_begins(tmp_path: Path) -> None:
    done = typed(tmp_path / "out", "--budget", "10")
    assert (done.returncode, "inventory: no time left" in done.stdout) == (1, True)


def test_a_program_that_outlasts_its_time_hears_ctrl_c_first(tmp_path: Path) -> None:
    reported = tmp_path / "reported"
    # Unlike bash, Python handles SIGINT also where the parent process ignores it.
    code = (
        "import signal, sys, time, pathlib\n"
        "signal.signal(signal.SIGINT, lambda *_: (pathlib.Path(sys.argv[1]).touch(), sys.exit(3)))\n"
        "time.sleep(60)"
    )
    ended = run([sys.executable, "-I", "-S", "-c", code, str(reported)], limit_s(5), {"PATH": "/usr/bin:/bin"})
    assert ended.code is None
    assert reported.exists()


@on_a_cpu
@pytest.mark.train
@pytest.mark.long  # a whole training, for a script that runs on machines with a GPU
def test_a_run_is_launched_once_checked_and_its_trace_made_small(tmp_path: Path) -> None:
    out, words = tmp_path / "out", ("training", "traces", "--tiny", "-k", "fp32")
    done = typed(out, *words, "--budget", f"{limit_s(600):.0f}", TMPDIR=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    tests = results(out)
    assert {test["outcome"] for test in tests.values()} == {"passed", "skipped"}
    assert tests["test_gpu_training.py::test_it_trains[fp32]"]["run"]["step_ns"] > 0
    assert tests["test_gpu_training.py::test_its_report[fp32-conservation]"]["outcome"] == "passed"
    assert tests["test_gpu_training.py::test_its_device_is_a_gpu[fp32]"]["reason"] == (
        "Skipped: only a GPU can show this"
    )
    assert len(list(tmp_path.glob("gpu-acceptance-*/runs/*/profiler/*"))) == 1, "the second part takes the run"
    assert {path.name for path in (out / "traces").iterdir()} == {"fp32.json.gz", "truth.json"}


@pytest.mark.train
def test_the_reason_of_a_failed_run_is_shown(tmp_path: Path) -> None:
    work = Work(tmp_path, tmp_path)
    with pytest.raises(pytest.fail.Exception, match=re.escape("--data: /nowhere.json does not exist")):
        work.launched("broken", "-e", "1", "--data", "/nowhere.json")
    assert work.all_runs() == []
