"""How each part of a rank's memory was computed, in words: its formula and its source. Computes nothing."""

from __future__ import annotations

from harness.study.plan.memory import FRAMEWORK_SOURCE
from harness.study.plan.workload import Workload

STAGES = ("none", "zero1", "zero2", "zero3")
ZERO = "Rajbhandari et al., ZeRO, 2020, section 3"
KORTHIKANTI = "the method of Korthikanti et al., 2022"

Formula = tuple[str, str]


def memory_formulas(w: Workload) -> dict[str, Formula]:
    """(formula, source) of each part, by the names of `Parts`."""
    batch = f"micro-batch {w.micro_batch} × {w.seq_length} tokens"
    library = "megatron-core" if w.sharding is None else "transformers"
    again = ", computed again in backward" if w.checkpointing else ""
    return {
        **(_megatron(w) if w.sharding is None else _replica(w)),
        "activations": (batch + again, f"{KORTHIKANTI}, for the layers of {library}"),
        "buffers": _buffers(w),
        "framework": ("", FRAMEWORK_SOURCE[w.device]),
    }


def _megatron(w: Workload) -> dict[str, Formula]:
    ranks = w.layout.dp * w.layout.cp
    return {
        "weights": (f"{_width(w)}·P", "P: this rank's parameters, by TP and PP"),
        "gradients": ("4·P", "summed in float32"),
        "optimizer": (
            f"{12 if w.bf16 else 8}·P/{ranks}",
            "over DP × CP ranks; Megatron-LM, dist_optimizer.md",
        ),
    }


def _replica(w: Workload) -> dict[str, Formula]:
    if w.sharding == "fsdp":
        return _fsdp(w)
    stage = STAGES.index(w.sharding or "none")
    weights, gradients, optimizer = (f"/{w.ranks}" if stage >= least else "" for least in (3, 2, 1))
    copies = stage == 3 and w.hpz > 1
    copy = f" + {_width(w)}·N/{w.hpz}" if copies else ""
    width, n = 12 if stage or w.bf16 else 8, _trained(w)
    master = " and float32 weights" if width == 12 else ""
    return {
        "weights": (
            f"{_width(w)}·N{weights}{copy}",
            f"N = {w.parameters:,}" + (", and hpZ's copy" if copies else "") + _kept(w),
        ),
        "gradients": (f"{_width(w)}·{n}{gradients}", ZERO if stage else "float32, as the weights"),
        "optimizer": (
            f"{width}·{n}{optimizer}",
            f"AdamW's two moments{master}" + (f"; {ZERO}" if stage else ""),
        ),
    }


def _fsdp(w: Workload) -> dict[str, Formula]:
    shards = w.hpz if w.hpz > 1 else w.ranks
    return {
        "weights": (f"4·N/{shards}", f"N = {w.parameters:,}; float32, FSDP2"),
        "gradients": (f"4·{_trained(w)}/{shards}", "float32, as the weights"),
        "optimizer": (f"8·{_trained(w)}/{shards}", "AdamW's two moments"),
    }


def _trained(w: Workload) -> str:
    return "N" if w.trained is None else f"{w.trained:,}"


def _kept(w: Workload) -> str:
    return "; float32: fp8 is of the products alone" if w.precision == "fp8" else ""


def _width(w: Workload) -> int:
    return 2 if w.bf16 else 4


def _buffers(w: Workload) -> Formula:
    if w.sharding is None:
        return "temporaries of AdamW", "PyTorch's code"
    if w.sharding == "fsdp":
        return (
            f"({2 * _width(w)} + 4)·U",
            "U: parameters of the largest unit, gathered twice, and its gradients",
        )
    if w.buckets is None:
        return (f"4·{_trained(w)}" if w.ranks > 1 else "0"), "DDP's buckets hold a copy of the gradients"
    reduce = f"{_width(w)}·{w.buckets.reduce:.3g}"
    if w.sharding == "zero3":
        live = f"{_width(w)}·min(N, {w.buckets.live:.3g})"
        return f"{live} + {reduce}", "gathered layers and the reduction buffer; ds_config.json"
    twice = "2·" if w.buckets.overlap else ""
    return f"{twice}{reduce}", "reduction buffers, or copies of gradients in the step; ds_config.json"


def in_round_numbers(w: Workload) -> str:
    """The state as the workshop's slides count it."""
    billions = round(w.model.parameters() / 1e9) or 1
    parts = (2 * billions, 2 * billions, 12 * billions)
    return (
        f"in round numbers, {billions} billion parameters: {parts[0]} + {parts[1]} + {parts[2]} = {sum(parts)} GB of "
        f"weights, gradients and optimizer states; {sum(parts) / w.ranks:.4g} GB per rank, if all are sharded over "
        f"{w.ranks}"
    )
