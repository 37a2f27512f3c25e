"""Hangs and deaths over the two nodes of a real Slurm: who is named, at which line, and that nothing is left."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest
from hang_kinds import HANGS, line_of, lines_of

from tests.slurm.slurm_sh import REPOSITORY, SlurmSh, Submitted, submitted
from tests.waiting import limit_s, wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.train]

SCRIPT = REPOSITORY / "tests" / "own" / "scripts" / "hangs.py"
IN_CI = ("fifo",)  # the others are long: other causes, which tests/own has without Slurm


def launched(slurm_sh: SlurmSh, kind: str, tag: str, *, per_node: int = 1) -> Submitted:
    """A run over both nodes in which the second node's first rank does it in step 30, to its end."""
    site = slurm_sh.site("hangs", env={"GLOO_SOCKET_IFNAME": "eth0"}, gpus={"per_node": per_node, "request": "none"})
    words = (
        *("run", "-n", "2", "-g", str(per_node), "--site", str(site)),
        *("--wait", "--json", "--no-profile", "--on-hang", "stop"),
    )
    asked = ("--kind", kind, "--rank", str(per_node), "--step", "30", "--tag", tag)
    argv = ["bash", f"{REPOSITORY}/slurm.sh", *words, "--", str(SCRIPT), *asked]
    done = slurm_sh.slurm.run(*argv, check=False, seconds=300, env=slurm_sh.env, cwd=SCRIPT.parent)
    assert done.returncode == 1, done.stderr
    return submitted(done.stdout)


def wait_for_the_end_of_all(tag: str) -> None:
    """Returns when none of the training's processes lives."""
    wait_until(lambda: not _processes(tag), "the end of the training's processes", lambda: _processes(tag))


def _processes(tag: str) -> str:
    return subprocess.run(
        ["pgrep", "-fa", f"tag {tag}"], capture_output=True, text=True, check=False, timeout=limit_s()
    ).stdout


@pytest.mark.parametrize("per_node", [1, pytest.param(2, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind in IN_CI else pytest.mark.long) for kind in HANGS]
)
def test_a_hang_is_named_and_ended(slurm_sh: SlurmSh, kind: str, per_node: int) -> None:
    tag = f"slurm-{kind}-{time.time_ns()}"
    run = launched(slurm_sh, kind, tag, per_node=per_node)
    assert run.read("status.json")["state"] == "stuck"
    found = run.read("live/stuck.json")
    assert found["kind"] == HANGS[kind]
    assert per_node in found["ranks"]
    lines = lines_of(SCRIPT, kind)
    assert any(f"hangs.py:{line}" in found["sentence"] for line in lines), found["sentence"]
    if found["ranks"] == [per_node]:  # else both may be wrong, and the place is that of the other one
        assert (Path(found["place"][0]).name, found["place"][1] in lines) == ("hangs.py", True)
    wait_for_the_end_of_all(tag)


@pytest.mark.long  # as a hang on two nodes, which is named here, and a failure on one in tests/own
def test_the_rank_that_failed_first_is_named_with_its_line(slurm_sh: SlurmSh) -> None:
    run = launched(slurm_sh, "raise", f"slurm-raise-{time.time_ns()}")
    why = run.read("status.json")["why"]
    line = line_of(SCRIPT, "raise")
    assert why.startswith(f"rank 1 failed first, in step 30: ValueError: the loss is strange (hangs.py:{line})")
