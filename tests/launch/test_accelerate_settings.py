"""A training that accelerate starts has the settings of the user's own `accelerate config`; an exercise has ours."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import yaml

from harness.launch.exercises.accelerate_settings import users_file
from harness.run import Run
from tests.launch.own_shared import Typed, job_of, own

PLAIN = {"distributed_type": "MULTI_CPU", "use_cpu": True, "num_processes": 2, "mixed_precision": "bf16"}
SHARDED = {
    "compute_environment": "LOCAL_MACHINE", "distributed_type": "FSDP", "num_processes": 8, "gpu_ids": "0,1",
    "num_machines": 2, "machine_rank": 1, "main_process_ip": "10.0.0.1", "rdzv_backend": "c10d", "debug": True,
    "fsdp_config": {"fsdp_version": 2}, "dynamo_config": {"dynamo_backend": "INDUCTOR"},
}  # fmt: skip
# One write: what two ranks print is not mixed.
TELLS = "import os\nos.write(1, '{ACCELERATE_MIXED_PRECISION} {WORLD_SIZE}\\n'.format_map(os.environ).encode())\n"


def written(folder: Path, settings: object) -> Path:
    path = folder / "accelerate" / "default_config.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(settings if isinstance(settings, str) else yaml.safe_dump(settings))
    return path


def test_the_file_is_the_one_that_accelerate_reads(tmp_path: Path) -> None:
    assert users_file({"HF_HOME": str(tmp_path)}) is None
    path = written(tmp_path / "huggingface", PLAIN)
    assert users_file({"HF_HOME": str(path.parents[1])}) == path
    assert users_file({"XDG_CACHE_HOME": str(tmp_path)}) == path
    assert users_file({"XDG_CACHE_HOME": str(tmp_path), "HF_HOME": "/nowhere"}) is None
    config_args = pytest.importorskip("accelerate.commands.config.config_args", reason="it is not installed")
    assert config_args.default_config_file.endswith("/accelerate/default_config.yaml")


OURS = {"num_processes": 2, "num_machines": 1, "rdzv_backend": "static", "same_network": True, "gpu_ids": "all"}
OWN_DEEPSPEED = {"zero_stage": 2, "deepspeed_hostfile": "/job/hostfile", "deepspeed_multinode_launcher": "pdsh"}
OF_SHARDED = {name: SHARDED[name] for name in ("distributed_type", "fsdp_config", "dynamo_config", "debug")}
NOWHERE = {"zero_stage": 2, "deepspeed_multinode_launcher": "standard"}  # it logs in to no other node


@pytest.mark.parametrize(
    ("users", "made"),
    [
        (SHARDED, OURS | OF_SHARDED),
        (PLAIN, OURS | {"distributed_type": "MULTI_GPU", "use_cpu": False, "mixed_precision": "bf16"}),
        ({"distributed_type": "DEEPSPEED", "deepspeed_config": OWN_DEEPSPEED}, {"deepspeed_config": NOWHERE}),
        (None, OURS | {"distributed_type": "MULTI_GPU", "mixed_precision": "no"}),
    ],
)
def test_the_users_settings_hold_under_the_runs_processes_and_addresses(
    tmp_path: Path, users: dict[str, object] | None, made: dict[str, object]
) -> None:
    named = None if users is None else str(written(tmp_path, users))
    asked = own("train.py", launcher="accelerate", accelerate_config=named, nodes=1, gpus_per_node=2)
    found = yaml.safe_load(job_of(asked).files["accelerate.yaml"])
    assert found | made == found
    assert ("mixed_precision" in found) == ("mixed_precision" in made), "else accelerate's own default"


@pytest.fixture
def typed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Typed:
    (tmp_path / "train.py").write_text(TELLS)
    return Typed(tmp_path, capsys)


def test_the_launch_names_the_file_that_it_uses(typed: Typed, tmp_path: Path) -> None:
    path = written(tmp_path / "hf", SHARDED)
    places = {"HF_HOME": str(tmp_path / "hf"), "HARNESS_RUNS": str(tmp_path / "runs")}
    words = ("run", "-g", "1", "--python", sys.executable, "--launcher", "accelerate")
    done = typed(*words, "--dry-run", "--", "train.py", **places)
    (line,) = [line for line in done.stderr.splitlines() if "accelerate's settings" in line]
    assert (
        line
        == f"accelerate's settings are those of {path}; the run says how many processes there are and where they meet"
    )
    for other in (("run", "-g", "1", "--dry-run", "--", "train.py"), ("-e", "1", "-g", "1", "--dry-run")):
        assert "accelerate's settings" not in typed(*other, **places).stderr
    told = json.loads(typed("-e", "1", "-g", "1", "--dry-run", "--json", **places).stdout)
    assert yaml.safe_load(told["files"]["accelerate.yaml"])["distributed_type"] == "MULTI_GPU"


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"compute_environment": "AMAZON_SAGEMAKER", "distributed_type": "NO"}, "compute_environment AMAZON_SAGEMAKER"),
        ({"distributed_type": "XLA"}, "distributed_type XLA cannot run here: name another file with"),
        ({"mixed_precision": "bf16"}, "the file sets no distributed_type"),
        ("a: [", "is not valid YAML"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_used_is_refused(typed: Typed, tmp_path: Path, settings: object, says: str) -> None:
    path = written(tmp_path, settings)
    done = typed("run", "-g", "1", "--launcher", "accelerate", "--accelerate-config", str(path), "--", "train.py")
    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if str(path) in line]
    assert line.startswith(f"slurm.sh: accelerate's settings {path}: ") and says in line
    assert "runs" not in typed.files()


@pytest.mark.train
def test_a_real_launch_trains_as_accelerate_launch_would(typed: Typed, tmp_path: Path) -> None:
    written(tmp_path / "hf", PLAIN)
    words = ("run", "-g", "2", "--no-profile", "--launcher", "accelerate", "--", "train.py")
    done = typed(
        *words, HF_HOME=str(tmp_path / "hf"), HARNESS_RUNS=str(tmp_path / "runs"), ACCELERATE_MIXED_PRECISION="fp16"
    )
    assert done.returncode == 0, done.stderr
    assert "from your shell: " in done.stderr and "ACCELERATE_MIXED_PRECISION=fp16" in done.stderr
    (path,) = (tmp_path / "runs").rglob("run.json")
    run = Run(path.parent)
    assert run.out.read_text().splitlines() == ["bf16 2", "bf16 2"]
    assert getattr(run.record.experiment, "accelerate_config", "").endswith("hf/accelerate/default_config.yaml")
