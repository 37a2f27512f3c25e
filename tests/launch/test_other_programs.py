"""What a launch on this machine says of the programs that compute there already."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from harness.common.programs import usable_cores
from harness.launch.exercises.base import DeviceKind
from harness.launch.other_programs import OtherPrograms
from tests.launch.own_shared import job_of, own, process
from tests.waiting import limit_s, wait_until

# Without Enter it goes on after a day.
FOR_EVER = """
import sys
from harness.cli.main import main
from harness.launch import other_programs
other_programs.PATIENCE_S = 86400.0
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def busy() -> Iterator[None]:
    """Four other programs compute, with the least priority: they use what cores the other tests leave."""
    argv = ["nice", "-n", "19", sys.executable, "-S", "-c", "while True: pass"]
    others = [subprocess.Popen(argv) for _ in range(4)]
    wait_until(lambda: all(psutil.Process(other.pid).cpu_times().user > 0 for other in others), "the others to compute")
    yield
    for other in others:
        other.kill()
        other.wait(timeout=limit_s())


def test_on_a_busy_machine_a_launch_warns_first_and_a_dry_run_does_not(tmp_path: Path, busy: None) -> None:
    launched = ["-g", str(usable_cores()), "--", "true"]
    said = process(tmp_path, "run", *launched).stderr
    used = re.search(r"^warning: other programs use (\d+) % of your cores: the numbers will be doubtful$", said, re.M)
    assert used and 0 < int(used[1]) <= 100, said
    assert said.index(used[0]) < said.index("started local-")
    assert "goes on in" not in said, "nobody is at a terminal"
    assert "other programs" not in process(tmp_path, "run", "--dry-run", *launched).stderr
    strict = process(tmp_path, "run", "--strict", *launched)
    assert (strict.returncode, "--strict: other programs use" in strict.stderr) == (2, True)


def test_on_a_terminal_it_goes_on_at_enter(tmp_path: Path, busy: None) -> None:
    terminal, inside = pty.openpty()
    argv = [sys.executable, "-c", FOR_EVER, "run", "-g", str(usable_cores()), "--", "true"]
    environment = {**os.environ, "HARNESS_SITE": "local", "HARNESS_RUNS": str(tmp_path / "runs")}
    started = subprocess.Popen(
        argv, cwd=tmp_path, env=environment, stdin=inside, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    assert started.stderr is not None
    for line in started.stderr:
        if line.startswith("goes on in "):
            break
    os.write(terminal, b"\n")
    assert any(line.startswith("started local-") for line in started.stderr)
    started.communicate(timeout=limit_s())
    for descriptor in (terminal, inside):
        os.close(descriptor)


@pytest.mark.parametrize(
    ("busy_ticks", "job", "said"),
    [
        (60, (2, "cpu"), "other programs use 60 % of your cores"),
        (60, (2, "cuda"), ""),
        (10, (2, "cpu"), ""),
        (30, (1, "cpu"), ""),  # one rank of two cores still has its own
    ],
)
def test_what_other_programs_use_is_that_of_my_cores_without_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, busy_ticks: int, job: tuple[int, DeviceKind], said: str
) -> None:
    stat = tmp_path / "stat"
    monkeypatch.setattr("harness.common.processes.PROC", tmp_path)
    monkeypatch.setattr("harness.launch.other_programs.LEAST_S", 0)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 2})
    clock = os.times()
    monkeypatch.setattr("os.times", lambda: clock)
    core = "{user} 0 5 {idle} 0 0 0 0 0 0"
    stat.write_text("cpu 1 2 3\n" + "".join(f"cpu{n} {core.format(user=7, idle=9)}\n" for n in range(3)) + "ctxt 1\n")
    others = OtherPrograms()
    of_core = [busy_ticks, 100, busy_ticks]  # core 1 is not one of mine
    stat.write_text("".join(f"cpu{n} {core.format(user=7 + of_core[n], idle=109 - of_core[n])}\n" for n in range(3)))
    asked = replace(job_of(own("train.py", gpus_per_node=job[0])), device=job[1])
    assert "".join(others.warnings(asked))[: len(said) or None] == said
