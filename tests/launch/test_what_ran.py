"""What a launch takes from its shell is named, and kept in run.json without secrets; `status` shows how nodes ended."""

from __future__ import annotations

import json
import os
import re
import resource
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from harness.experiment.exercises import DDP
from harness.launch.before.from_shell import shell_variables
from harness.launch.job import Machine, resolve
from harness.run import Run
from harness.run.record import NodeStatus
from harness.site.site import load_site
from tests.launch.launch_shared import ROOT, Harness, a_run, site_file
from tests.launch.stand_ins import executable
from tests.waiting import limit_s

SHELL = {
    "NCCL_P2P_LEVEL": "LOC", "NCCL_IB_DISABLE": "1", "UCX_TLS": "rc,cuda", "OMPI_MCA_btl": "^openib", "I_MPI_X": "ofi",
    "FI_PROVIDER_PATH": "/opt/efa", "HIP_VISIBLE_DEVICES": "0", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    "PET_MAX_RESTARTS": "0", "FSDP_VERSION": "2", "TORCHELASTIC_LOG_LEVEL": "x",
    "KMP_AFFINITY": "compact", "GOMP_CPU_AFFINITY": "0-3", "MKL_NUM_THREADS": "1", "NVIDIA_TF32_OVERRIDE": "0",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "NVTE_FUSED_ATTN": "0", "HSA_ENABLE_SDMA": "0", "GPU_MAX_HW_QUEUES": "2",
    "MALLOC_ARENA_MAX": "1", "LD_PRELOAD": "/x.so", "TRITON_CACHE_X": "y", "IBV_FORK_SAFE": "1", "PYTHONHASHSEED": "0",
    "RCCL_MSCCL_ENABLE": "0", "DS_ACCELERATOR_X": "y", "MPICH_GPU_SUPPORT_ENABLED": "1", "OMP_PROC_BIND": "true",
}  # fmt: skip
NOT_NAMED = {
    "TF_CLI_CONFIG_FILE": "/x", "PYTHON_SHA256": "1", "LD_LIBRARY_PATH": "/x", "MKLROOT": "/x", "GPU_TYPE": "a100",
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
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("from your shell: ")]
    assert {"NCCL_IB_DISABLE=1 [2J", "NCCL_P2P_LEVEL=LOC"} <= set(line.removeprefix("from your shell: ").split(", "))
    assert "secret" not in done.stderr and "NCCL_P2P_LEVEL" not in done.stdout


def test_what_the_job_replaces_is_named_too(harness: Harness) -> None:
    done = harness("-e", "1", "-g", "1", "--dry-run", OMP_NUM_THREADS="64", GLOO_SOCKET_IFNAME="ib0", PYTHONPATH="/x")
    assert "export PYTHONPATH=" in done.stdout and "OMP_NUM_THREADS=64" not in done.stdout
    replaced = "GLOO_SOCKET_IFNAME=ib0, OMP_NUM_THREADS=64"
    assert f"from your shell, not used because the job sets its own: {replaced}\n" in done.stderr


def test_a_users_own_training_takes_the_shells_threads_umask_and_limits(harness: Harness, tmp_path: Path) -> None:
    before, (soft, hard) = os.umask(0o077), resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        done = harness("run", "--", "sh", "-c", "echo $(umask) $(ulimit -n) $OMP_NUM_THREADS", OMP_NUM_THREADS="3")
    finally:
        os.umask(before)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("from your shell: ")]
    assert {"OMP_NUM_THREADS=3", "umask=0077", "ulimit -n=256"} <= set(
        line.removeprefix("from your shell: ").split(", ")
    )
    assert "0077 256 3" in done.stdout
    (path,) = tmp_path.rglob("run.json")
    record = Run(path.parent).record
    assert record.inherited["OMP_NUM_THREADS"] == "3"
    assert (record.limits["umask"], record.limits["ulimit -n"]) == ("0077", "256")


def test_a_loop_over_a_list_launches_all_of_it(tmp_path: Path) -> None:
    """What trains has no input, as in a job of Slurm: a loop's list is not for the first run that reads."""
    run = f'{shlex.quote(sys.executable)} -m harness run --site local -- sh -c "echo $rate: $(cat)"'
    loop = f"while read -r rate; do {run.replace('$(', chr(92) + '$(')}; done"
    environ = os.environ | {"PYTHONPATH": str(ROOT), "HARNESS_RUNS": str(tmp_path / "runs")}
    done = subprocess.run(
        ["bash", "-c", loop], input="0.1\n0.01\n", cwd=tmp_path, env=environ, capture_output=True, text=True,
        check=True, timeout=limit_s(),
    )  # fmt: skip
    assert [line for line in done.stdout.splitlines() if re.match(r"0\.\d+: *$", line)] == ["0.1:", "0.01:"], done


@pytest.mark.parametrize("has_torch", [True, False])
def test_an_active_environment_replaces_the_sites_container_only_if_it_can_train(
    harness: Harness, tmp_path: Path, has_torch: bool
) -> None:
    folder = tmp_path / "conda"
    told = {"version": [3, 12, 0], "packages": {}, "modules": ["torch"] if has_torch else []}
    python = executable(folder / "bin" / "python", f"#!/bin/sh\necho '{json.dumps(told)}'\n")
    image = {"command": "apptainer", "image": "/shared/training.sif"}
    site = site_file(tmp_path, device="cpu", gpus={"per_node": 1, "request": "none"}, container=image)
    words = ("run", "--site", site, "--dry-run", "--", str(ROOT / "tests/own/scripts/plain_ddp.py"))
    done = harness(*words, CONDA_PREFIX=str(folder), VIRTUAL_ENV="")
    name = load_site(site).name
    if has_torch:
        said = f"{python} of your shell trains, not the container of site {name}: deactivate it to use that"
    else:
        said = f"the container of site {name} trains: {python} of your shell has no PyTorch"
    assert said in done.stderr.splitlines()
    assert (f"{python} " in done.stdout, "CONTAINER=(" in done.stdout) == (has_torch, not has_torch)


def test_packages_in_a_users_home_do_not_hide_the_images(harness: Harness, tmp_path: Path) -> None:
    (tmp_path / ".local/lib/python3.12/site-packages/torch").mkdir(parents=True)
    image = {"command": "apptainer", "image": "/shared/training.sif"}
    said = "~/.local is not seen in the container: "
    for env, is_set in (({}, True), ({"PYTHONNOUSERSITE": ""}, False)):
        site = site_file(tmp_path, container=image, env=env)
        done = harness(
            "run", "--site", site, "--dry-run", "--", "true", HOME=str(tmp_path), VIRTUAL_ENV="", CONDA_PREFIX=""
        )
        assert ("PYTHONNOUSERSITE=1" in done.stdout, said in done.stderr) == (is_set, is_set)
        assert "PYTHONNOUSERSITE=" in harness("-e", "1", "--site", site, "--dry-run").stdout


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


def test_the_status_for_scripts_tells_how_each_node_ended(harness: Harness, tmp_path: Path) -> None:
    written(a_run(tmp_path / "runs", "local-1", nodes=2), node(0, 0, "train", "0"), node(1, None, "train", "1"))
    nodes = json.loads(harness("status", "local-1", "--json").stdout)["nodes"]
    assert [each["exit"] for each in nodes] == [0, None]
    assert nodes[1]["commands"] == [["train", "1"]]
