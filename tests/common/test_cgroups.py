"""Processes in real cgroups: who is frozen, and whom the kernel killed because its cgroup allows no more memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.common.system import processes
from tests.common.cgroups import V1, V2, Cgroup, cgroup
from tests.waiting import limit_s

SLEEPS = "import time; time.sleep(99)"
# At most 512 MB, should nothing limit it.
EATS = "held = [bytearray(b'x' * (8 << 20)) for _ in range(64)]"
LIMIT = 48 << 20


@pytest.fixture(params=[V1, V2])
def freezer(request: pytest.FixtureRequest) -> Iterator[Cgroup]:
    with cgroup("freezer", request.param) as made:
        yield made


@pytest.fixture(params=[V1, V2])
def memory(request: pytest.FixtureRequest) -> Iterator[Cgroup]:
    with cgroup("memory", request.param) as made:
        yield made


def started_in(group: Cgroup, text: str) -> subprocess.Popen[bytes]:
    """A program of Python that waits for a byte, is in the cgroup, and then begins."""
    waits = f"import sys; sys.stdin.read(1)\n{text}"
    program = subprocess.Popen([sys.executable, "-S", "-c", waits], stdin=subprocess.PIPE)
    group.add(program.pid)
    return program


def begin(program: subprocess.Popen[bytes]) -> None:
    assert program.stdin is not None
    program.stdin.write(b"x")
    program.stdin.close()


def test_a_process_is_frozen_with_its_cgroup_or_with_one_above(freezer: Cgroup) -> None:
    programs = [started_in(each, SLEEPS) for each in (freezer, freezer.below("inner"))]
    assert not any(processes.is_frozen(each.pid) for each in programs)
    with freezer.frozen():
        assert all(processes.is_frozen(each.pid) for each in programs)
        assert all(processes.lives(each.pid) for each in programs)
    assert not any(processes.is_frozen(each.pid) for each in programs)
    for program in programs:
        program.kill()
        program.wait(limit_s())


@pytest.mark.parametrize("where", ["its own", "one above"])
def test_the_kernel_s_count_rises_when_the_limit_kills(memory: Cgroup, where: str) -> None:
    memory.limit(LIMIT)
    program = started_in(memory if where == "its own" else memory.below("inner"), EATS)
    file, before = processes.killed_for_memory(program.pid)
    assert file is not None
    begin(program)
    assert program.wait(limit_s()) == -9
    after = processes.counted(file)
    assert (after.cgroup - before.cgroup, after.machine > before.machine) == (1, True)


def test_a_process_that_is_killed_by_somebody_does_not_count(memory: Cgroup) -> None:
    program = started_in(memory, SLEEPS)
    file, before = processes.killed_for_memory(program.pid)
    program.kill()
    program.wait(limit_s())
    assert processes.counted(file).cgroup == before.cgroup


@pytest.fixture
def pretended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of which a test writes the files."""
    monkeypatch.setattr(processes, "PROC", tmp_path / "proc")
    monkeypatch.setattr(processes, "CGROUPS", tmp_path / "cgroup")
    return tmp_path


def write(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def test_in_the_new_hierarchy_the_nearest_cgroup_that_is_accounted_for_has_the_count(pretended: Path) -> None:
    job = "system.slice/slurmstepd.scope/job_7"
    write(pretended / "proc" / "7" / "cgroup", f"0::/{job}/step_0/user/task_0\n")
    outer = write(pretended / "cgroup" / job / "memory.events", "low 0\noom 3\noom_kill 2\noom_group_kill 0\n")
    assert processes.killed_for_memory(7) == (outer, (2, 0))
    inner = write(pretended / "cgroup" / job / "step_0/user/task_0/memory.events", "oom 1\noom_kill 1\n")
    assert processes.killed_for_memory(7) == (inner, (1, 0))


def test_both_hierarchies_beside_each_other_are_looked_at(pretended: Path) -> None:
    write(pretended / "proc" / "7" / "cgroup", "6:freezer:/a\n4:cpu,memory:/b\n1:name=systemd:/\n0::/c\n")
    count = write(pretended / "cgroup" / "memory" / "b" / "memory.oom_control", "under_oom 0\noom_kill 5\n")
    state = write(pretended / "cgroup" / "freezer" / "a" / "freezer.state", "THAWED\n")
    events = write(pretended / "cgroup" / "unified" / "c" / "cgroup.events", "populated 1\nfrozen 0\n")
    assert processes.killed_for_memory(7) == (count, (5, 0))
    assert not processes.is_frozen(7)
    state.write_text("FREEZING\n")
    assert processes.is_frozen(7), "some of it is frozen already"
    state.write_text("THAWED\n")
    events.write_text("populated 1\nfrozen 1\n")
    assert processes.is_frozen(7)
