"""The tests' own Slurm is a cluster: two nodes that differ and reach each other, and Slurm's own refusals."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.slurm.slurm_cluster import SCRIPT, Slurm
from tests.waiting import limit_s, wait_until

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
        "import os, pathlib, socket, sys, time\n"
        "up, said = (pathlib.Path(sys.argv[1], name) for name in ('up', 'said'))\n"
        "def wait_for(file):\n"
        "    while not file.exists(): time.sleep(0.05)  # each looks for the other's file\n"
        "if os.environ['SLURM_NODEID'] == '0':\n"
        "    server = socket.create_server(('127.0.0.1', 29999)); up.touch(); wait_for(said)\n"
        "else:\n"
        "    wait_for(up)\n"
        "    try: socket.create_connection(('127.0.0.1', 29999)); found = 'reached'\n"
        "    except ConnectionRefusedError: found = 'refused'\n"
        "    said.write_text(found)\n"
    )
    script.write_text(f"#!/bin/bash\n#SBATCH --time=10\nsrun python3 {code} {tmp_path}\n")
    job = slurm.sbatch("-N2", "--ntasks-per-node=1", "--output", tmp_path / "out", script)
    assert slurm.wait(job) == "COMPLETED", slurm.about(job)
    assert (tmp_path / "said").read_text() == "refused"


def test_exit_codes_and_cancelling_are_slurms(slurm: Slurm, tmp_path: Path) -> None:
    failing = slurm.sbatch("--output", tmp_path / "a", "--wrap", "exit 7")
    endless = slurm.sbatch("--output", tmp_path / "b", "--wrap", "sleep 3600")
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
    wait_until(
        lambda: slurm_accounting.run(*words).stdout.strip() == "COMPLETED",
        "sacct, which lags behind",
        lambda: slurm_accounting.run(*words).stdout,
    )


def cables(slurm: Slurm) -> list[str]:
    """What the kernel says of the link to each node: its limit, and how much it has sent."""
    bridge = (slurm.root / "run" / "bridge").read_text().strip()
    return [slurm.run("tc", "-s", "qdisc", "show", "dev", f"{bridge}-{node}").stdout for node in (1, 2)]


def test_a_slow_link_is_limited_and_what_a_job_sends_goes_over_it(slurm: Slurm, tmp_path: Path) -> None:
    script, code = tmp_path / "job.sh", tmp_path / "send.py"
    code.write_text(
        "import os, socket, time\n"
        "if os.environ['SLURM_NODEID'] == '0':\n"
        "    link, _ = socket.create_server(('', 29998)).accept()\n"
        "    size = 0\n"
        "    while chunk := link.recv(65536): size += len(chunk)\n"
        "    print(size)\n"
        "else:\n"
        "    while True:\n"
        "        try: link = socket.create_connection(('node1', 29998)); break\n"
        "        except OSError: time.sleep(0.05)  # until the other listens\n"
        "    link.sendall(bytes(1_000_000)); link.close()\n"
    )
    script.write_text(f"#!/bin/bash\n#SBATCH --time=10\nsrun python3 {code}\n")
    slurm.set_rate("40mbit")
    try:
        job = slurm.sbatch("-N2", "--ntasks-per-node=1", "--output", tmp_path / "out", script)
        assert slurm.wait(job) == "COMPLETED", slurm.about(job)
        limited = cables(slurm)
    finally:
        slurm.set_rate("none")
    assert (tmp_path / "out").read_text() == "1000000\n"
    assert all("qdisc tbf" in cable and "rate 40Mbit" in cable for cable in limited), limited
    assert int(limited[0].partition("Sent ")[2].split()[0]) > 1_000_000, "to the first node"
    assert not any("tbf" in cable for cable in cables(slurm))


def test_a_wrong_argument_of_the_script_prints_its_usage(tmp_path: Path) -> None:
    for words in ([], ["begin"], ["start"], ["start", str(tmp_path / "c"), "--nodes", "two"]):
        assert subprocess.run([SCRIPT, *words], capture_output=True, check=False, timeout=limit_s()).returncode in {
            1,
            2,
        }
    assert not (tmp_path / "c").exists()
