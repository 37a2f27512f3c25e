"""What a launch takes from its shell is named, and kept in run.json without secrets; `status` shows how nodes ended."""

from __future__ import annotations

import json
from pathlib import Path

from harness.experiment.exercises import DDP
from harness.launch.before.from_shell import shell_variables
from harness.launch.job import Machine, resolve
from harness.run import Run
from harness.run.record import NodeStatus
from harness.site.site import load_site
from tests.launch.launch_shared import Harness, a_run

SHELL = {
    "NCCL_P2P_LEVEL": "LOC", "NCCL_IB_DISABLE": "1", "UCX_TLS": "rc,cuda", "OMPI_MCA_btl": "^openib", "I_MPI_X": "ofi",
    "FI_PROVIDER_PATH": "/opt/efa", "HIP_VISIBLE_DEVICES": "0", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    "PET_MAX_RESTARTS": "0", "FSDP_VERSION": "2", "TORCHELASTIC_LOG_LEVEL": "x",
    "RCCL_MSCCL_ENABLE": "0", "DS_ACCELERATOR_X": "y", "MPICH_GPU_SUPPORT_ENABLED": "1", "OMP_PROC_BIND": "true",
}  # fmt: skip
NOT_NAMED = {
    "CUDA_VISIBLE_DEVICES": "1", "OMP_NUM_THREADS": "64", "NCCL_SOCKET_IFNAME": "ib9", "HOME": "/", "X_NCCL_X": "1",
    "CUDA_HOME": "/usr/local/cuda", "CUDA_VERSION": "12.4", "MPI_ROOT": "/opt/mpi", "NCCL_LIB": "/opt/nccl/lib",
    "DS_API_KEY": "abc", "DEEPSPEED_TOKEN": "123456789", "TORCH_X": "hf_abcdefghijk", "UCX_X": "https://me:pw@host/x",
}  # fmt: skip


def test_the_variables_that_change_a_training_are_told_from_all_others(machine: Machine) -> None:
    site = load_site("local").model_copy(update={"env": {"NCCL_SOCKET_IFNAME": "ib0"}})
    job = resolve(DDP(nodes=1, gpus_per_node=1), site, machine)
    assert shell_variables(SHELL | NOT_NAMED, job) == SHELL
    assert list(shell_variables(SHELL, job)) == sorted(SHELL)
    assert shell_variables({}, job) == {}


def test_a_launch_names_them_in_one_line(harness: Harness) -> None:
    done = harness(
        "-e", "1", "-g", "1", "--dry-run", NCCL_P2P_LEVEL="LOC", NCCL_IB_DISABLE="1\n\x1b[2J", DS_API_KEY="secret"
    )
    (line,) = [line for line in done.stderr.splitlines() if "from your shell" in line]
    assert line.startswith("from your shell: ")
    assert {"NCCL_IB_DISABLE=1 [2J", "NCCL_P2P_LEVEL=LOC"} <= set(line.removeprefix("from your shell: ").split(", "))
    assert "secret" not in done.stderr and "NCCL_P2P_LEVEL" not in done.stdout


def test_a_run_keeps_them(harness: Harness, tmp_path: Path) -> None:
    done = harness("run", "--", "true", NCCL_P2P_LEVEL="LOC", OMP_PROC_BIND="true", UCX_TLS="rc", DS_API_KEY="secret")
    assert "NCCL_P2P_LEVEL=LOC, " in done.stderr
    (path,) = tmp_path.rglob("run.json")
    kept = Run(path.parent).record.inherited
    assert {"NCCL_P2P_LEVEL": "LOC", "OMP_PROC_BIND": "true", "UCX_TLS": "rc"}.items() <= kept.items()
    assert "DS_API_KEY" not in path.read_text()


def written(run: Run, *nodes: NodeStatus) -> Run:
    (run.path / "node-status").mkdir()
    for node in nodes:
        run.write_node(node)
    return run


def node(number: int, exit_code: int | None, *words: str) -> NodeStatus:
    ended = None if exit_code is None else 2_500_000_001
    told = {"node": number, "host": f"n{number}", "exit": exit_code, "started_ns": 1, "ended_ns": ended}
    return NodeStatus.model_validate(told | {"commands": [list(words)]})


def test_status_tells_how_each_node_ended(harness: Harness, tmp_path: Path) -> None:
    run = written(a_run(tmp_path / "runs", "local-1", nodes=2), node(0, 0, "train", "0"), node(1, None, "train", "1"))
    lines = harness("status", "local-1").stdout.splitlines()
    assert lines[1:] == ["  node 0 (n0): exit 0, 2.5 s", "  node 1 (n1): runs", f"  {run.path}"]
    nodes = json.loads(harness("status", "local-1", "--json").stdout)["nodes"]
    assert [each["exit"] for each in nodes] == [0, None]
    assert nodes[1]["commands"] == [["train", "1"]]


def test_a_node_that_never_told_its_end_is_said_so(harness: Harness, tmp_path: Path) -> None:
    run = written(a_run(tmp_path / "runs", "local-1"), node(0, None, "train"))
    (run.path / "status.json").write_text('{"state": "timeout"}')
    assert "  node 0 (n0): has not told its end\n" in harness("status", "local-1").stdout
