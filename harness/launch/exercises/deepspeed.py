"""The programs of exercise 2: accelerate with DeepSpeed, which reads a configuration file of the run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from harness.common.run_folder.run_files import DS_CONFIG
from harness.experiment.deepspeed import DeepSpeed
from harness.launch.argv import RUN_DIR, join
from harness.launch.exercises.base import CommandPlace, ExercisePlan, LaunchTarget, script_path
from harness.launch.exercises.training import TrainingLaunch, accelerated_plan

# How much is communicated at once, in parameters (not bytes), by DeepSpeed's names; of the workshop. Without overlap
# only the overlap differs, so that the pair shows its effect alone.
USUAL = {
    "reduce_bucket_size": 100_000_000,
    "allgather_bucket_size": 100_000_000,
    "stage3_prefetch_bucket_size": 100_000_000,
    "stage3_param_persistence_threshold": 1_000_000,
    "stage3_max_live_parameters": 1_000_000_000,
    "stage3_max_reuse_distance": 1_000_000_000,
}
HEAVY = USUAL | {
    "reduce_bucket_size": 500_000_000,
    "allgather_bucket_size": 500_000_000,
    "stage3_prefetch_bucket_size": 50_000_000,
}
# A model of a million parameters would fit into one usual bucket: smaller, so that it takes several.
TINY = {
    "reduce_bucket_size": 200_000,
    "allgather_bucket_size": 200_000,
    "stage3_prefetch_bucket_size": 150_000,
    "stage3_param_persistence_threshold": 0,
    "stage3_max_live_parameters": 150_000,
    "stage3_max_reuse_distance": 150_000,
}
TINY_HEAVY = TINY | {
    "reduce_bucket_size": 1_000_000,
    "allgather_bucket_size": 1_000_000,
    "stage3_prefetch_bucket_size": 75_000,
}


def deepspeed_config(experiment: DeepSpeed, *, tiny: bool = False, auto_batch: bool = False) -> dict[str, Any]:
    """The configuration for what was asked.

    tiny: thresholds for a model of about a million parameters, so that it is gathered and reduced in several messages
    like a large one. auto_batch: the training script fills the batch in from its own arguments.
    """
    usual, heavy = (TINY, TINY_HEAVY) if tiny else (USUAL, HEAVY)
    other_stage = "allgather_" if experiment.zero_stage == 3 else "stage3_"
    buckets = heavy if experiment.heavy_comm else usual
    by_nodes = experiment.zero_stage == 3 and experiment.copy_ranks > 1
    recomputes = {"partition_activations": False, "cpu_checkpointing": False}
    return {
        "train_micro_batch_size_per_gpu": "auto" if auto_batch else experiment.micro_batch_size or 1,
        "gradient_accumulation_steps": "auto" if auto_batch else experiment.gradient_accumulation_steps,
        "gradient_clipping": 1.0,
        "zero_allow_untested_optimizer": True,  # the script brings PyTorch's AdamW
        "steps_per_print": 1_000_000_000,  # the script writes its own metrics
        "wall_clock_breakdown": False,  # its timers would synchronise the device in every step
        "bf16": {"enabled": experiment.in_bf16},
        **({"activation_checkpointing": recomputes} if experiment.activation_checkpointing else {}),
        "zero_optimization": {
            "stage": experiment.zero_stage,
            "overlap_comm": experiment.overlap_comm,
            "contiguous_gradients": True,
            "reduce_scatter": True,
            **{name: size for name, size in buckets.items() if not name.startswith(other_stage)},
            **({"zero_hpz_partition_size": experiment.hpz_partition} if by_nodes else {}),
        },
    }


def as_json(config: Mapping[str, Any]) -> str:
    return json.dumps(config, indent=2) + "\n"


class DeepSpeedLaunch(TrainingLaunch[DeepSpeed]):
    """accelerate starts the exercise's script with DeepSpeed's plugin."""

    def defaults(self, experiment: DeepSpeed, target: LaunchTarget) -> dict[str, Any]:
        usual = super().defaults(experiment, target)
        if experiment.zero_stage == 3:
            usual["hpz_partition"] = target.gpus_per_node
        return usual

    def plan(self, experiment: DeepSpeed, place: CommandPlace) -> ExercisePlan:
        config = deepspeed_config(experiment, tiny=place.model is not None and place.model.tiny)
        files, option = {DS_CONFIG.name: as_json(config)}, ("--deepspeed-config", join(RUN_DIR, f"/{DS_CONFIG.name}"))
        return accelerated_plan(
            experiment, place, "deepspeed", script_path(experiment, "train.py"), *option, files=files
        )


LAUNCH = DeepSpeedLaunch()
