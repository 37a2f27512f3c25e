"""The doctor on a real Slurm: its commands' own words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.slurm_sh import SlurmSh

pytestmark = pytest.mark.slurm


def asked(slurm_sh: SlurmSh, site: Path, *words: str) -> tuple[int, list[dict[str, Any]]]:
    """The exit status, and the lines."""
    done = slurm_sh("doctor", "--json", "--site", site, *words)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)["lines"]


def found(lines: list[dict[str, Any]], check: str) -> str:
    """The level of a check, what it found and the remedy."""
    return "; ".join(
        f"{line['level']} {line['what']}: {line['found']} → {line['remedy']}"
        for line in lines
        if line["check"] == check
    )


def test_with_accounting_a_wrong_partition_account_and_qos_are_told_apart(slurm_sh_accounting: SlurmSh) -> None:
    site = slurm_sh_accounting.site("course", account="demo")
    code, lines = asked(slurm_sh_accounting, site, "-p", "gpuu")
    assert code == 1
    assert "problem" in found(lines, "submission") and "partition" in found(lines, "submission")
    assert "sinfo" in found(lines, "submission")
    _, lines = asked(slurm_sh_accounting, site, "--time", "30-00:00:00")
    assert "Requested time limit is invalid" in found(lines, "submission")
    _, lines = asked(slurm_sh_accounting, site, "-p", "gpu,short", "--time", "00:05:00")
    assert found(lines, "submission").startswith("ok ")
    _, lines = asked(slurm_sh_accounting, site, "-a", "nobody", "-q", "debug", "--time", "02:00:00")
    assert "Invalid account" in found(lines, "submission")
    assert "sacctmgr show associations" in found(lines, "submission")
    assert "limits a job to 00:30:00" in found(lines, "qos"), "sbatch takes such a job, which then waits for ever"
