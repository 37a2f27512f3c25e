"""The tests' own Slurm is a cluster: two nodes that differ and reach each other, and Slurm's own refusals."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.slurm.slurm_cluster import SCRIPT, Slurm, wait_until

pytestmark = pytest.mark.slurm


def test_a_job_runs_on_two_nodes_that_know_each_other(slurm: Slurm, tmp_path: Path) -> None:
    command = "srun bash -c 'echo $SLURM_NODEID $(hostname) $(getent hosts node2 | cut -d\" \" -f1)'"
    job = slurm.sbatch("-N2", "--ntasks-per-node=1", "--output", tmp_path / "out", "--wrap", command)
    assert slurm.wait(job) == "COMPLETED"
    nodes = sorted(line.split() for line in (tmp_path / "out").read_text().splitlines())
    assert [node[:2] for node in nodes] == [["0", "node1"], ["1", "node2"]]
    assert nodes[0][2] == nodes[1][2]
    assert not nodes[0][2].startswith("127.")


def test_loopback_of_one_node_is_not_the_others(slurm: Slurm, tmp_path: Path) -> None:
    code, script = tmp_path / "meet.py", tmp_path / "job.sh"
    code.write_text(
        "import os, socket, time\n"
        "if os.environ['SLURM_NODEID'] == '0':\n"
        "    server = socket.create_server(('127.0.0.1', 29999)); server.settimeout(2); server.accept()\n"
        "time.sleep(1); socket.create_connection(('127.0.0.1', 29999), 2)\n"
    )
    script.write_text(f"#!/bin/bash\nsrun python3 {code}\n")
    job = slurm.sbatch("-N2", "--ntasks-per-node=1", "--output", tmp_path / "out", script)
    assert slurm.wait(job) == "FAILED"
    assert "ConnectionRefusedError" in (tmp_path / "out").read_text()


def test_exit_codes_and_cancelling_are_slurms(slurm: Slurm, tmp_path: Path) -> None:
    failing = slurm.sbatch("--output", tmp_path / "a", "--wrap", "exit 7")
    endless = slurm.sbatch("--output", tmp_path / "b", "--wrap", "sleep 300")
    assert slurm.wait(failing) == "FAILED"
    assert slurm.job(failing)["ExitCode"] == "7:0"
    slurm.wait_running(endless)
    slurm.run("scancel", endless)
    assert slurm.wait(endless) == "CANCELLED"


def test_gpus_are_pretended_so_that_requests_and_environment_are_real(slurm: Slurm, tmp_path: Path) -> None:
    job = slurm.sbatch("--gres=gpu:2", "--output", tmp_path / "out", "--wrap", "echo $CUDA_VISIBLE_DEVICES")
    assert slurm.wait(job) == "COMPLETED"
    assert (tmp_path / "out").read_text() == "0,1\n"
    refused = slurm.run("sbatch", "--gres=gpu:5", "--wrap", "true", check=False)
    assert refused.returncode == 1
    assert "Requested node configuration is not available" in refused.stderr


def test_without_accounting_any_account_passes_and_sacct_knows_nothing(slurm: Slurm, tmp_path: Path) -> None:
    job = slurm.sbatch("--account", "nobody", "--output", tmp_path / "out", "--wrap", "true")
    assert slurm.wait(job) == "COMPLETED"
    assert "accounting storage is disabled" in slurm.run("sacct", "-j", job, check=False).stderr


def test_with_accounting_a_wrong_account_is_refused(slurm_accounting: Slurm, tmp_path: Path) -> None:
    refused = slurm_accounting.run("sbatch", "--account", "nobody", "--wrap", "true", check=False)
    assert refused.returncode == 1
    assert "Invalid account or account/partition combination specified" in refused.stderr
    job = slurm_accounting.sbatch("--account", "demo", "--output", tmp_path / "out", "--wrap", "true")
    assert slurm_accounting.wait(job) == "COMPLETED"
    words = ("sacct", "-X", "-n", "-P", "-j", job, "-o", "State")
    wait_until(lambda: slurm_accounting.run(*words).stdout.strip() == "COMPLETED", "sacct, which lags behind")


def test_a_slow_link_is_slow(slurm: Slurm, tmp_path: Path) -> None:
    """4 MB at 40 Mbit/s take 0.8 s; without the limit a few milliseconds. The first 0.13 MB are not limited."""
    script = tmp_path / "job.sh"
    code = tmp_path / "send.py"
    code.write_text(
        "import os, socket, time\n"
        "if os.environ['SLURM_NODEID'] == '0':\n"
        "    link, _ = socket.create_server(('', 29998)).accept()\n"
        "    began, size = time.monotonic(), 0\n"
        "    while chunk := link.recv(65536): size += len(chunk)\n"
        "    print(size, size * 8e-6 / (time.monotonic() - began))\n"
        "else:\n"
        "    for _ in range(100):\n"
        "        try: link = socket.create_connection(('node1', 29998)); break\n"
        "        except OSError: time.sleep(0.05)\n"
        "    link.sendall(bytes(4_000_000)); link.close()\n"
    )
    script.write_text(f"#!/bin/bash\nsrun python3 {code}\n")
    slurm.set_rate("40mbit")
    try:
        job = slurm.sbatch("-N2", "--ntasks-per-node=1", "--output", tmp_path / "out", script)
        assert slurm.wait(job) == "COMPLETED"
    finally:
        slurm.set_rate("none")
    size, megabits_per_second = (tmp_path / "out").read_text().split()
    assert size == "4000000"
    assert float(megabits_per_second) < 60


def test_a_wrong_argument_of_the_script_prints_its_usage(tmp_path: Path) -> None:
    for words in ([], ["begin"], ["start"], ["start", str(tmp_path / "c"), "--nodes", "two"]):
        assert subprocess.run([SCRIPT, *words], capture_output=True, check=False).returncode in {1, 2}
    assert not (tmp_path / "c").exists()
