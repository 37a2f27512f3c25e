"""What the harness passes to a real nsys without a GPU, that nsys accepts: it starts the program and records it."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from harness.experiment.nsys_sets import load_options, profile_words
from harness.launch.profilers.nsys import Nsys, NsysWords, prepare
from harness.traces import open_trace
from tests.real_nsys import EACH_NSYS, kept, recorded
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


def exit_status(words: list[str], output: Path, *program: str) -> int:
    """That of Python with these words, recorded. These programs never end with 1: then it is nsys that failed."""
    argv = [*words, f"--output={output}", sys.executable, *program]

    def status() -> int:
        for part in output.parent.glob(f"{output.name}.*"):  # of a recording that was lost
            part.unlink()
        done = recorded(argv)
        print(done.stdout)
        assert "usage: nsys" not in done.stdout
        return done.returncode

    return kept(status, lambda code: code != 1)


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
    assert exit_status(words, tmp_path / "report", "-c", ALIVE) == 7, "the program's own"
    assert (tmp_path / "report.nsys-rep").stat().st_size > 10_000
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
    assert exit_status(words, tmp_path / "report", str(tmp_path / "main.py")) == 0
    trace = open_trace(tmp_path / "report.nsys-rep")
    ranges = [
        (trace.names[name], trace.names[domain])
        for name, domain in zip(trace.ranges.name, trace.ranges.domain, strict=True)
    ]
    if version >= (2023, 1):
        assert (ranges, warnings) == ([("loading.load", "mine")] * 3, [])
    else:
        assert (ranges, warnings) == ([], ["this nsys (2022.4.2) has no --python-functions-trace: left out"])


@EACH_NSYS
def test_calls_of_the_system_shorter_than_a_microsecond_are_not_recorded(
    nsys_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_path(monkeypatch, nsys_folder)
    _, (words, warnings) = asked("cpu", *WHOLE, *NO_SAMPLES)
    program = "import os, time; [os.write(1, b'') for _ in range(2000)]; time.sleep(0.1)"
    assert (exit_status(words, tmp_path / "report", "-c", program), warnings) == (0, [])
    open_trace(tmp_path / "report.nsys-rep")
    with sqlite3.connect(next(tmp_path.glob("report*.sqlite"))) as export:
        durations = [ns for (ns,) in export.execute("SELECT end - start FROM OSRT_API")]
    export.close()
    assert max(durations) > 1000
    assert not [ns for ns in durations if 0 < ns < 1000], (
        "2023.4 has them too, unless it is told what its help calls the default"
    )
