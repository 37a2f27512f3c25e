"""What the harness passes to a real nsys without a GPU, that nsys accepts: it starts the program and records it."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from harness.experiment.nsys_sets import load_options, profile_words
from harness.launch.profilers.nsys import Nsys, NsysWords, prepare
from harness.traces import open_trace
from tests.real_nsys import EACH_NSYS, recorded
from tests.waiting import limit_s

# On newer kernels nsys 2022.4 does not end where it records context switches.
NO_SAMPLES = ("--sample=none", "--cpuctxsw=none")
WHOLE = ("--no-capture-range", "--no-capture-range-end", "--no-nvtx-capture")
PYTHON = ("--python-sampling=true", "--python-sampling-frequency=100")
# nsys 2023.4 that samples Python aborts a program that ends before its sampler has begun.
ALIVE = "import time; time.sleep(0.5); raise SystemExit(7)"
METRICS = "no GPU metrics here (NVIDIA GPUs not found, feature is not available): left out, all else is recorded"


def with_path(patch: pytest.MonkeyPatch, nsys_folder: Path) -> tuple[int, ...]:
    """Lets PATH find this nsys first; its version."""
    patch.setenv("PATH", f"{nsys_folder}{os.pathsep}{os.environ['PATH']}")
    argv = [str(nsys_folder / "nsys"), "--version"]
    said = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=limit_s()).stdout
    return tuple(map(int, re.findall(r"\d+", said)[:2]))


def asked(options: str, *changes: str, has_gpu: bool = False) -> tuple[Nsys, NsysWords]:
    return prepare(profile_words(load_options(options), changes, has_gpu=has_gpu))


def exit_status(words: list[str], report: Path, *program: str, is_whole: Callable[[Path], object] = bool) -> int:
    """That of Python with these words, recorded into `report`."""
    done = recorded([*words, f"--output={report.with_suffix('')}", sys.executable, *program], report, is_whole)
    assert "usage: nsys" not in done.stdout
    return done.returncode


@EACH_NSYS
def test_where_no_gpu_may_be_sampled_every_option_set_starts_the_program(
    nsys_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = with_path(monkeypatch, nsys_folder)
    changes = (*WHOLE, *NO_SAMPLES, *PYTHON, "--nic-metrics=true", "--cuda-graph-trace=node")
    nsys, (words, warnings) = asked("megatron", *changes, has_gpu=True)
    if not nsys.no_metrics:
        pytest.skip("this nsys can sample a GPU here")
    assert "--cuda-graph-trace=node" in words, "2023 writes its values into the option's name"
    report = tmp_path / "report.nsys-rep"
    assert exit_status(words, report, "-c", ALIVE) == 7, "the program's own"
    assert report.stat().st_size > 10_000
    unknown = [] if version >= (2023, 1) else ["python-sampling", "python-sampling-frequency"]
    assert warnings == [METRICS, *(f"this nsys (2022.4.2) has no --{name}: left out" for name in unknown)]


@EACH_NSYS
def test_python_functions_are_ranges_where_nsys_can_trace_them(
    nsys_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = with_path(monkeypatch, nsys_folder)
    (tmp_path / "loading.py").write_text("def load():\n    return list(range(1000))\n")
    (tmp_path / "main.py").write_text("import loading\nfor _ in range(3): loading.load()\n")
    listed = tmp_path / "list.json"
    listed.write_text(json.dumps([{"domain": "mine", "module": "loading", "functions": ["load"]}]))
    _, (words, warnings) = asked("cpu", *WHOLE, *NO_SAMPLES, f"--python-functions-trace={listed}")
    report, traces_them = tmp_path / "report.nsys-rep", version >= (2023, 1)

    def ranges(report: Path) -> list[tuple[str, str]]:
        trace = open_trace(report)
        pairs = zip(trace.ranges.name, trace.ranges.domain, strict=True)
        return [(trace.names[name], trace.names[domain]) for name, domain in pairs]

    program = str(tmp_path / "main.py")
    assert exit_status(words, report, program, is_whole=lambda report: ranges(report) or not traces_them) == 0
    if traces_them:
        assert (ranges(report), warnings) == ([("loading.load", "mine")] * 3, [])
    else:
        assert (ranges(report), warnings) == ([], ["this nsys (2022.4.2) has no --python-functions-trace: left out"])


@EACH_NSYS
def test_calls_of_the_system_shorter_than_a_microsecond_are_not_recorded(
    nsys_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_path(monkeypatch, nsys_folder)
    _, (words, warnings) = asked("cpu", *WHOLE, *NO_SAMPLES)
    program = "import os, time; [os.write(1, b'') for _ in range(2000)]; time.sleep(0.1)"
    report = tmp_path / "report.nsys-rep"

    def durations_ns(report: Path) -> list[int]:
        open_trace(report)
        with closing(sqlite3.connect(next(tmp_path.glob("report*.sqlite")))) as export:
            tables = list(export.execute("SELECT 1 FROM sqlite_master WHERE name = 'OSRT_API'"))
            return [ns for (ns,) in export.execute("SELECT end - start FROM OSRT_API")] if tables else []

    assert (exit_status(words, report, "-c", program, is_whole=durations_ns), warnings) == (0, [])
    assert max(durations_ns(report)) > 1000
    assert not [ns for ns in durations_ns(report) if 0 < ns < 1000], (
        "2023.4 has them too, unless it is told what its help calls the default"
    )
