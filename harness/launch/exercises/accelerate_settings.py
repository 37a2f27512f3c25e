"""accelerate's settings of a run: ours, or the user's own file that `accelerate launch` would read, with the run's
processes and addresses over it. Knows no exercise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from harness.common.errors import RequestError
from harness.common.paths import CONFIGS
from harness.common.run_folder.run_files import ACCELERATE_SETTINGS
from harness.experiment.base import Experiment
from harness.experiment.yaml_file import read_yaml

ACCELERATE = CONFIGS / "accelerate"
# Settings by which accelerate wraps a model: the user's hold. Of all other types only the number of processes counts.
_WRAPS = ("FSDP", "DEEPSPEED", "MEGATRON_LM")
_DEVICES = ("CPU", "GPU", "NPU", "XPU", "MLU", "HPU", "SDAA", "MUSA", "NEURON")
_PLAIN = ("NO", *(f"MULTI_{device}" for device in _DEVICES))
# What the launch says itself.
_OF_LAUNCH = ("num_machines", "num_processes", "gpu_ids", "distributed_type", "main_process_ip", "mpirun_config",
              "compute_environment", "use_cpu", "machine_rank", "main_process_port", "rdzv_backend", "same_network",
              "tpu_env", "tpu_use_cluster", "tpu_use_sudo")  # fmt: skip
_HERE = "LOCAL_MACHINE"
# DeepSpeed's way to log in to other nodes, where the batch system has started a launcher on each.
_LOG_IN = ("deepspeed_hostfile", "deepspeed_inclusion_filter", "deepspeed_exclusion_filter")


def users_file(environ: Mapping[str, str]) -> Path | None:
    """The file that `accelerate launch` reads if none is named; None: there is none."""
    cache = Path(environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    path = Path(environ.get("HF_HOME") or cache).expanduser() / "accelerate" / "default_config.yaml"
    return path.absolute() if path.is_file() else None


def accelerate_files(experiment: Experiment, base: str, users: str | None = None) -> dict[str, str]:
    """The settings of `base`.yaml with the run's numbers; users: the user's own file, whose settings hold where they do
    not say how many processes there are and where they meet. Raises RequestError: accelerate cannot use the file."""
    settings = dict(read_yaml(ACCELERATE / f"{base}.yaml", "accelerate file")) | {
        "num_machines": experiment.nodes,
        "num_processes": experiment.world_size,
        "mixed_precision": "bf16" if experiment.in_bf16 else "no",
    }
    if users is not None:
        settings = _under(settings, _read(users))
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return {ACCELERATE_SETTINGS.name: yaml.dump(settings, Dumper=dumper, sort_keys=False)}


def notes(users: str) -> Iterator[str]:
    """That the user's file is used. Raises RequestError: accelerate cannot use the file."""
    _read(users)
    yield f"accelerate's settings are those of {users}; the run says how many processes there are and where they meet"


def _read(path: str) -> dict[str, Any]:
    found = read_yaml(Path(path), "accelerate's settings")
    wrong = f"accelerate's settings {path}:"
    if not isinstance(found, dict) or "distributed_type" not in found:
        raise RequestError(f"{wrong} the file sets no distributed_type, which `accelerate config` does")
    place, kind = found.get("compute_environment", _HERE), found["distributed_type"]
    if place != _HERE or kind not in (*_PLAIN, *_WRAPS):
        what = f"compute_environment {place}" if place != _HERE else f"distributed_type {kind}"
        other = f"name another file with --accelerate-config, as {ACCELERATE / 'ddp.yaml'}"
        raise RequestError(f"{wrong} {what} cannot run here: {other}")
    return found


def _under(ours: Mapping[str, Any], users: Mapping[str, Any]) -> dict[str, Any]:
    made = {name: text for name, text in ours.items() if name != "mixed_precision"}
    made |= {name: text for name, text in users.items() if name not in _OF_LAUNCH}
    if users["distributed_type"] in _WRAPS:
        made["distributed_type"] = users["distributed_type"]
    if made["distributed_type"] == "DEEPSPEED":
        own = {name: text for name, text in (made.get("deepspeed_config") or {}).items() if name not in _LOG_IN}
        made["deepspeed_config"] = own | {"deepspeed_multinode_launcher": "standard"}
    return made
