"""An experiment fitted to a place: what only the site, the machine or the model knows is filled in, then judged again.

Pure. Every rule that needs to know where the experiment runs, or what it trains, is here; the rules between flags
alone are the experiment's own.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from harness.common.errors import RequestError
from harness.experiment.exercises import Experiment, Megatron, Training
from harness.experiment.model import Model
from harness.experiment.parse import validate
from harness.launch.backends.registry import backend_of
from harness.site.site import Site

Device = Literal["cuda", "cpu"]

CPU_GLOBAL_BATCH = 8  # micro-batches per iteration
GPU_GLOBAL_BATCH = 128  # samples per iteration, as in the workshop
USUAL_GPUS_PER_NODE = 4
USUAL_CPU_RANKS = 4


class Machine(NamedTuple):
    """What the machine that resolves a job has; only a local job depends on it."""

    gpus: int
    cores: int
    has_nsys: bool
    python: str  # the interpreter the launcher runs in
    runs_dir: str  # the folder that holds the exercises' logs and profiler folders


def uses_megatron_lm(experiment: Experiment) -> bool:
    """Whether Megatron-LM's own script trains, of the NeMo container, instead of ours."""
    return isinstance(experiment, Megatron) and experiment.engine == "megatron-lm"


def fit(
    experiment: Experiment, site: Site, machine: Machine, device: Device, model: Model | None
) -> Experiment:
    """The experiment with everything that only the site, the machine or the model knows filled in.

    Raises:
        RequestError: it does not fit; one line per reason.
    """
    if backend_of(site).RUNS_HERE and device == "cuda" and not machine.gpus:
        raise RequestError(
            f"site {site.name} says device: cuda, and this machine shows no NVIDIA GPU "
            "(CUDA_VISIBLE_DEVICES can hide it): say device: auto or cpu, or choose another site"
        )
    gpus = (
        experiment.gpus_per_node
        or site.defaults.get("gpus_per_node")
        or _gpus_per_node(experiment, site, machine, device)
    )
    given = experiment.model_dump() | {"gpus_per_node": gpus}
    if isinstance(experiment, Training) and model is not None:
        given |= _training_defaults(experiment, model)
    if given.get("zero_stage") == 3 and given.get("hpz_partition") is None:
        given["hpz_partition"] = gpus
    if isinstance(experiment, Megatron):
        # In fp32 an A100 is 16 times slower; a CPU without bf16 units is 7 times slower in bf16.
        if experiment.mixed_precision is None:
            given["mixed_precision"] = device == "cuda"
        given |= _megatron_defaults(experiment, int(gpus), given["micro_batch_size"] or 1, device)
    fitted, errors = validate(type(experiment), given)
    if isinstance(experiment, Megatron) and experiment.data is not None and experiment.data_path is not None:
        errors.append("--data and --data-path both name what to train on: drop one")
    if isinstance(fitted, Megatron) and model is not None:
        errors += _megatron_model_rules(fitted, model)
    errors += _megatron_lm_rules(experiment, site, device)
    errors += _too_many_gpus(experiment.nodes, int(gpus), site, machine, device)
    if errors or fitted is None:
        raise RequestError("\n".join(errors))
    return fitted


def _gpus_per_node(experiment: Experiment, site: Site, machine: Machine, device: Device) -> int:
    if not backend_of(site).RUNS_HERE:
        return site.gpus.per_node or USUAL_GPUS_PER_NODE
    if device == "cuda":
        return machine.gpus
    usual = max(1, min(machine.cores, USUAL_CPU_RANKS))
    return _ranks_for(experiment, usual) if isinstance(experiment, Megatron) else usual


def _ranks_for(experiment: Megatron, usual: int) -> int:
    """CPU processes can share a core, so the miniature of `--tp 4` runs on a laptop with two."""
    needed = -(-(experiment.tp or 1) * experiment.pp * experiment.cp // experiment.nodes)
    return max(usual, needed) if max(usual, needed) % needed == 0 else needed


def _training_defaults(experiment: Training, model: Model) -> dict[str, Any]:
    pretraining = isinstance(experiment, Megatron)
    length = model.defaults.pretrain_seq_length if pretraining else model.defaults.seq_length
    return {
        "seq_length": experiment.seq_length or length,
        "micro_batch_size": experiment.micro_batch_size or model.defaults.micro_batch_size,
    }


def _megatron_defaults(experiment: Megatron, gpus: int, micro_batch: int, device: Device) -> dict[str, Any]:
    """As much tensor parallelism as a node leaves room for, and a usual global batch in whole micro-batches."""
    world, others = experiment.nodes * gpus, experiment.pp * experiment.cp
    tp = experiment.tp or next((t for t in range(gpus, 0, -1) if world % (t * others) == 0), 1)
    batch = micro_batch * max(1, world // (tp * others))
    usual = CPU_GLOBAL_BATCH * batch if device == "cpu" else -(-GPU_GLOBAL_BATCH // batch) * batch
    return {"tp": tp, "global_batch_size": experiment.global_batch_size or usual}


def _megatron_model_rules(asked: Megatron, model: Model) -> list[str]:
    tp, stages = asked.tp or 1, asked.pp * asked.vpp
    pieces = (2 if asked.cp > 1 else 1) * asked.cp * tp
    microbatches = _microbatches(asked, tp)
    heads = model.num_key_value_heads
    rules = [
        (
            model.num_hidden_layers % stages,
            f"--pp {asked.pp} × --vpp {asked.vpp} = {stages} does not divide the {model.num_hidden_layers} layers of "
            f"{model.name}",
        ),
        (
            model.num_attention_heads % tp,
            f"--tp {tp} does not divide the {model.num_attention_heads} attention heads of {model.name}",
        ),
        (
            heads % tp and tp % heads,
            f"--tp {tp} neither divides the {heads} key-value heads of {model.name} nor is a multiple of them",
        ),
        (
            asked.ep > 1 and model.num_local_experts % asked.ep,
            f"--ep {asked.ep} does not divide the {model.num_local_experts} experts of {model.name}",
        ),
        (
            (asked.seq_length or 0) % pieces,
            f"--seq-length {asked.seq_length} is not a multiple of {pieces} (--cp {asked.cp}, --tp {tp})",
        ),
        (
            asked.vpp > 1 and microbatches % asked.pp,
            f"--vpp {asked.vpp} needs a multiple of --pp {asked.pp} micro-batches per iteration and has "
            f"{microbatches}: change --global-batch-size",
        ),
    ]
    return [sentence for broken, sentence in rules if broken]


def _megatron_lm_rules(experiment: Experiment, site: Site, device: Device) -> list[str]:
    if not isinstance(experiment, Megatron) or not uses_megatron_lm(experiment):
        return []
    name = "--engine megatron-lm"
    if device == "cpu":
        return [f"{name} trains on GPUs only: use --engine megatron-core"]
    rules = [
        (
            site.container is None or site.container.nemo_image is None,
            f"{name} needs NeMo's container, and site {site.name} names none (container.nemo_image): build it "
            "(containers/README.md) and name it in a site file",
        ),
        (
            experiment.profiler == "torch",
            f"{name} is recorded by nsys only: drop --profiler torch, or use --no-profile",
        ),
        (
            experiment.data is not None,
            f"{name} reads a .bin/.idx prefix, not --data: use --data-path",
        ),
    ]
    return [sentence for broken, sentence in rules if broken]


def _microbatches(asked: Megatron, tp: int) -> int:
    """Micro-batches per iteration and data-parallel rank."""
    data_parallel = (asked.world_size or 1) // (tp * asked.pp * asked.cp)
    return (asked.global_batch_size or 1) // ((asked.micro_batch_size or 1) * max(1, data_parallel))


def _too_many_gpus(nodes: int, gpus: int, site: Site, machine: Machine, device: Device) -> list[str]:
    here = backend_of(site).RUNS_HERE
    if here and device == "cuda" and nodes * gpus > machine.gpus:
        return [
            f"-n {nodes} × -g {gpus} needs {nodes * gpus} GPUs and this machine has {machine.gpus}: "
            f"the nearest is -n 1 -g {machine.gpus}"
        ]
    limit = site.gpus.per_node
    if not here and limit is not None and gpus > limit:
        return [f"-g/--gpus-per-node: got {gpus}, a node of {site.name} has {limit}: use -g {limit}"]
    return []
