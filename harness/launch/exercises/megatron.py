"""The programs of exercise 3: torchrun with our loop on megatron-core, or with Megatron-LM's own script. Knows how a
model and a batch are split over ranks, and no scheduler."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal

from harness.common.errors import RequestError
from harness.common.faults.fault import layers_at_the_end, parse_fault
from harness.common.model.megatron_layout import model_misfits, usual_global_batch
from harness.common.paths import README_OF_IMAGES
from harness.experiment.exercises import Megatron
from harness.experiment.model import Model
from harness.launch.argv import Word, from_site
from harness.launch.before.lookup import why_missing
from harness.launch.exercises.base import CommandPlace, ExercisePlan, LaunchTarget, script_path, torchrun
from harness.launch.exercises.training import TrainingLaunch, around_each_rank, training_argv, training_plan
from harness.site.site import Site

PRETRAIN_GPT = "/opt/megatron-lm/pretrain_gpt.py"  # where the NeMo container keeps it

Option = str | int | float | bool | list[int] | None
_FIXED: dict[str, Option] = {
    "--use-mcore-models": True,
    "--transformer-impl": "transformer_engine",
    # The architecture that Llama and Mistral share.
    "--normalization": "RMSNorm",
    "--position-embedding-type": "rope",
    "--swiglu": True,
    "--disable-bias-linear": True,
    "--attention-dropout": "0.0",
    "--hidden-dropout": "0.0",
    "--init-method-std": "0.02",
    # The workshop's data parallelism.
    "--use-distributed-optimizer": True,
    "--overlap-grad-reduce": True,
    "--overlap-param-gather": True,
    "--lr": "3.0e-4",
    "--min-lr": "3.0e-5",
    "--lr-decay-style": "cosine",
    "--weight-decay": "0.1",
    "--adam-beta2": "0.95",
    "--clip-grad": "1.0",
    "--split": "100,0,0",
    "--eval-iters": "0",
    "--log-interval": "1",
    "--log-throughput": True,
    "--no-create-attention-mask-in-dataloader": True,  # attention is causal by its kernel; a mask would be for nothing
}


def pretrain_gpt_argv(experiment: Megatron, model: Model, *, profile: bool, mock_data: bool) -> list[str]:
    """The script and its arguments, for torchrun.

    experiment: resolved: processes per node, tensor-parallel size, batch sizes and sequence length are set.
    profile: call cudaProfilerStart and Stop around the window, for the nsys that waits for them.
    mock_data: train on Megatron's generated data; else the caller adds `--data-path PREFIX`.
    """
    argv = [PRETRAIN_GPT]
    for flag, value in (_sizes(experiment, model) | _FIXED | _choices(experiment, model, profile, mock_data)).items():
        if value is True:
            argv.append(flag)
        elif value is not None and value is not False:
            argv += [flag, *map(str, value if isinstance(value, list) else [value])]
    return argv


def _sizes(experiment: Megatron, model: Model) -> dict[str, Option]:
    """Of the model, of its parts and of a batch. None and False: the flag is left out."""
    tp = experiment.tp or 1
    return {
        "--num-layers": model.num_hidden_layers,
        "--hidden-size": model.hidden_size,
        "--ffn-hidden-size": model.intermediate_size,
        "--num-attention-heads": model.num_attention_heads,
        "--num-query-groups": model.num_key_value_heads,
        "--kv-channels": model.head_dim,
        "--norm-epsilon": model.rms_norm_eps,
        "--rotary-base": int(model.rope_theta),
        "--seq-length": experiment.seq_length,
        "--max-position-embeddings": experiment.seq_length,
        # The null tokenizer adds an end-of-document token to this size. The data holds ids, not text.
        "--vocab-size": model.vocab_size - 1,
        "--make-vocab-size-divisible-by": 1,
        "--group-query-attention": True,
        "--tokenizer-type": "NullTokenizer",
        "--untie-embeddings-and-output-weights": not model.tie_word_embeddings,
        "--tensor-model-parallel-size": tp,
        "--pipeline-model-parallel-size": experiment.pp,
        "--context-parallel-size": experiment.cp,
        "--num-virtual-stages-per-pipeline-rank": experiment.vpp if experiment.vpp > 1 else None,
        "--sequence-parallel": tp > 1,
        "--micro-batch-size": experiment.micro_batch_size,
        "--global-batch-size": experiment.global_batch_size,
        "--train-iters": experiment.steps or experiment.window.end,
        "--seed": experiment.seed,
    }


def _choices(experiment: Megatron, model: Model, profile: bool, mock_data: bool) -> dict[str, Option]:
    found: dict[str, Option] = {"--bf16": experiment.in_bf16}
    if experiment.activation_checkpointing:
        found |= {"--recompute-granularity": "full", "--recompute-method": "uniform", "--recompute-num-layers": 1}
    if profile:  # every rank: nsys watches a node, and each node has some of them
        window, ranks = experiment.window, list(range(experiment.world_size or 1))
        found |= {"--profile": True, "--profile-step-start": window.start, "--profile-step-end": window.end}
        found["--profile-ranks"] = ranks
    return found | {"--mock-data": mock_data}


class MegatronLaunch(TrainingLaunch[Megatron]):
    """torchrun starts the exercise's script, or Megatron-LM's in the NeMo container."""

    takes_weights = False

    def plan(self, experiment: Megatron, place: CommandPlace) -> ExercisePlan:
        prefix: list[Word] = ["--data-path", place.megatron_data] if place.megatron_data else []
        if experiment.uses_megatron_lm and place.model is not None:
            observed = place.profiler == "nsys"
            pretrain = pretrain_gpt_argv(experiment, place.model, profile=observed, mock_data=not prefix)
            script: list[Word] = [*pretrain]
        else:
            script = [script_path(experiment, "train.py"), *training_argv(experiment, place)]
        argv = [*torchrun(experiment, place), *around_each_rank(experiment, place), *script, *prefix]
        plan = training_plan(experiment, place, argv, {})
        # Kernels start in the order they were launched, so that communication overlaps; Megatron-LM insists on it.
        order: dict[str, Word] = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"} if place.device == "cuda" else {}
        nemo = place.site.container.nemo_image if place.site.container and experiment.uses_megatron_lm else None
        return replace(plan, environment=order, image=nemo, nsys_options="megatron")

    def cpu_ranks(self, experiment: Megatron, usual: int) -> int:
        """CPU processes can share a core, so the miniature of `--tp 4` runs on a laptop with two."""
        needed = -(-experiment.model_ranks // experiment.nodes)
        return max(usual, needed) if max(usual, needed) % needed == 0 else needed

    def defaults(self, experiment: Megatron, target: LaunchTarget) -> dict[str, Any]:
        """The largest tensor-parallel size that a node allows, and a usual global batch in whole micro-batches."""
        usual: dict[str, Any] = {}
        gpus, on_gpu, micro = target.gpus_per_node, target.device == "cuda", experiment.micro_batch_size or 1
        if target.model is not None:
            bf16 = on_gpu if experiment.mixed_precision is None else experiment.in_bf16
            size = getattr(target.model.defaults, target.model.defaults.micro_batch(bf16, pretrains=True))
            usual["seq_length"] = target.model.defaults.pretrain_seq_length
            usual["micro_batch_size"], micro = size, experiment.micro_batch_size or size
        world, others = experiment.nodes * gpus, experiment.pp * experiment.cp
        tp = experiment.tp or next((t for t in range(gpus, 0, -1) if world % (t * others) == 0), 1)
        whole = usual_global_batch(micro, world // (tp * others), on_cpu=not on_gpu)
        # In fp32 an A100 is 16 times slower; a CPU without bf16 units is 7 times slower in bf16.
        return usual | {"mixed_precision": on_gpu, "tp": tp, "global_batch_size": whole}

    def misfits(self, experiment: Megatron, resolved: Megatron | None, target: LaunchTarget) -> Iterator[str]:
        yield from super().misfits(experiment, resolved, target)
        if target.checkpoint is not None and not experiment.random_weights:
            yield (
                f"--model {target.checkpoint} is a checkpoint, and exercise 3 trains from random weights only: add "
                "--random-weights to use only its sizes, or give a model of the harness or a model file"
            )
        if experiment.data is not None and experiment.data_path is not None:
            yield "--data and --data-path both name the training data: drop one"
        if resolved is not None and target.model is not None:
            layout, batch = resolved.layout, resolved.batch
            yield from model_misfits(layout, batch, target.model, pads_vocabulary=resolved.uses_megatron_lm)
            yield from _stages_without_layers(resolved, target.model.num_hidden_layers)
        if experiment.uses_megatron_lm:
            yield from _megatron_lm_rules(experiment, target)

    def warnings(self, experiment: Megatron, site: Site) -> Iterator[str]:
        yield from super().warnings(experiment, site)
        if experiment.tp and experiment.gpus_per_node and experiment.tp > experiment.gpus_per_node:
            yield (
                f"--tp {experiment.tp} is more than the {experiment.gpus_per_node} GPUs of a node: the messages "
                f"of tensor "
                "parallelism will cross the slow network; use pipeline stages (--pp) across nodes"
            )

    def profiler(self, experiment: Megatron) -> Literal["nsys"] | None:
        return "nsys" if experiment.uses_megatron_lm else None

    def data(self, experiment: Megatron, site: Site) -> Word | None:
        own = self.megatron_data(experiment, site) is not None or experiment.uses_megatron_lm
        return None if own else super().data(experiment, site)

    def megatron_data(self, experiment: Megatron, site: Site) -> Word | None:
        if experiment.data_path is not None or experiment.data is not None:
            return experiment.data_path
        return from_site(site.megatron_data) if site.megatron_data else None

    def missing(self, experiment: Megatron, site: Site, environ: Mapping[str, str]) -> Iterator[str]:
        yield from super().missing(experiment, site, environ)
        prefix = self.megatron_data(experiment, site)
        why = why_missing(prefix, environ, "prefix") if prefix is not None else ""
        if why:
            source = "--data-path" if experiment.data_path else f"site {site.name}: its megatron_data"
            yield (
                f"{source}: {why} as PREFIX.bin and PREFIX.idx: give yours with --data-path, or --data FILE to have "
                "one built"
            )


def _stages_without_layers(experiment: Megatron, layers: int) -> Iterator[str]:
    for fault in map(parse_fault, experiment.faults):
        if fault.name == "uneven-stages" and layers % experiment.pp == 0:
            try:
                layers_at_the_end(fault, layers, experiment.pp)
            except RequestError as error:
                yield str(error)


def _megatron_lm_rules(experiment: Megatron, target: LaunchTarget) -> Iterator[str]:
    name, site = "--engine megatron-lm", target.site
    if target.device == "cpu":
        yield f"{name} trains on GPUs only: use --engine megatron-core"
        return
    if site.container is None or site.container.nemo_image is None:
        yield (
            f"{name} needs NeMo's container, and site {site.name} names none (container.nemo_image): build it "
            f"({README_OF_IMAGES}) and name it in a site file"
        )
    if experiment.profiler == "torch":
        yield f"{name} is recorded by nsys only: drop --profiler torch, or use --no-profile"
    if experiment.data is not None:
        yield f"{name} reads a .bin/.idx prefix, not --data: use --data-path"


LAUNCH = MegatronLaunch()
