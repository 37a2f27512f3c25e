"""Are the plan's bytes and FLOPs right? Each estimate beside what the real objects allocate, and beside peers'.

    python benchmarks/bench_memory.py [--only tiny|real|peers|flops|tracker]

`tiny` and `real` build a rank's training as the exercises do (memory_of_training.py): tiny models with real memory,
Mistral-7B with storages that have no memory. `tracker` compares the formulas with PyTorch's own memory trackers on
FSDP2 and on one GPU. `peers` prints accelerate's and DeepSpeed's estimators on the same cases. About 15 minutes of one
core. Prints the tables of docs/theory.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from harness.cli.launch.launch import request_of
from harness.cli.parser import declared, read_line
from harness.experiment.model import find_model
from harness.launch.submit import prepare
from harness.plan.memory import Workload, of_stage, peak_memory, workload_of
from harness.theory.flops import flops_per_token
from harness.theory.peak import Peak, of_transformers

ROOT = Path(__file__).parents[1]
TINY = "--model tiny-mistral --micro-batch-size 2 --seq-length 256"
REAL = "--model mistral-7b --random-weights --micro-batch-size 1 --seq-length 2048"
MIXED, AGAIN = "--mixed-precision", "--mixed-precision --activation-checkpointing"
CASES = {
    TINY: [
        *(f"-e 1 -g 4 {more}" for more in ("", MIXED, AGAIN, "--gradient-accumulation-steps 2")),
        *(f"-e 2 -g 4 --ds-stage1 {more}" for more in ("", MIXED)),
        *(f"-e 2 -g 4 --ds-stage2 {more}" for more in ("", MIXED, AGAIN, f"--ds-no-overlap {MIXED}")),
        *(f"-e 2 -g 4 {more}" for more in ("", MIXED, AGAIN, f"--ds-hpz-partition 2 {MIXED}")),
        *(f"-e 3 -g 4 {more}" for more in ("--tp 1", f"--tp 2 {MIXED}", f"--tp 4 {AGAIN}", "--tp 1 --cp 2")),
        *(f"-e 3 -g 4 {more}" for more in ("--tp 2 --pp 2", "--tp 1 --pp 4", "--tp 1 --pp 2 --vpp 2")),
    ],
    REAL: [
        *(f"-e 1 -g 4 {more}" for more in ("", MIXED, AGAIN)),
        *(f"-e 2 -g 8 --ds-stage2 {more}" for more in ("", MIXED, AGAIN)),
        *(f"-e 2 -g 8 {more}" for more in ("", MIXED, AGAIN, f"--ds-hpz-partition 4 {MIXED}")),
        *(f"-e 3 -g 8 --global-batch-size 8 {more} {MIXED}" for more in ("--tp 8", "--tp 4", "--tp 4 --pp 2")),
        *(f"-e 3 -g 8 --global-batch-size 8 {more}" for more in (f"--tp 2 --pp 4 {AGAIN}", f"--tp 4 --cp 2 {MIXED}")),
    ],
}  # fmt: skip
PEERS = ["-e 1 -g 4", "-e 2 -g 4 --ds-stage2 --mixed-precision", "-e 2 -g 4 --mixed-precision --ds-hpz-partition 1",
         "-e 2 -g 16 --mixed-precision --ds-hpz-partition 1"]  # fmt: skip


class Row(NamedTuple):
    """One case: what was estimated and what was allocated, in bytes."""

    case: str
    estimated: Peak
    measured: dict[str, Any]

    def errors(self) -> dict[str, float]:
        """Estimate over measurement: of each part of the state, and of the peak."""
        owned = self.measured["owned"]
        step = self.estimated.step
        weights = owned["weights"] + owned.get("secondary", 0)
        return {
            "weights": step.weights / weights,
            "gradients": step.gradients / owned["gradients"],
            "optimizer": step.optimizer / owned["optimizer"],
            "peak": self.estimated.highest.total / self.peak,
        }

    @property
    def peak(self) -> int:
        return int(max(self.measured["peaks"].values()))


def workload(words: str) -> Workload:
    """The training that the words of a launch on this machine give."""
    line = read_line([*words.split(), "--site", "local"], declared())
    experiment, choice = request_of(line)
    found = workload_of(prepare(experiment, choice.site).job)
    assert found is not None, words
    return found


def estimate(words: str, rank: int) -> Peak:
    """The peak of a rank, without what the process needs itself, which is not allocated as tensors."""
    w = workload(words)
    if w.sharding is not None:
        return peak_memory(w, framework=0.0)
    return of_stage(w, rank * w.layout.pp // w.ranks, w.checkpointing, 0.0)


def measure(words: str, rank: int, fake: bool) -> dict[str, Any]:
    """What a rank of that training allocates."""
    argv = [sys.executable, str(ROOT / "benchmarks/memory_of_training.py"), "--rank", str(rank)]
    argv += [*["--fake"] * fake, "--", *words.split()]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode:
        raise SystemExit(f"{words}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def rows(model: str) -> Iterator[Row]:
    """Every case of a model, on the first rank and, of a pipeline, on the last one too."""
    for case in CASES[model]:
        words = f"{case} {model}"
        w = workload(words)
        for rank in dict.fromkeys([0, w.ranks - 1] if w.layout.pp > 1 else [0]):
            place = f", rank {rank}" if w.layout.pp > 1 else ""
            yield Row(f"`{' '.join(case.split())}`{place}", estimate(words, rank), measure(words, rank, model == REAL))


def table_of(model: str) -> None:
    """One line per case: the peak, and each estimate over what was allocated."""
    unit, size = ("MB", 1e6) if model == TINY else ("GB", 1e9)
    heads = ("peak, estimated", "allocated", "ratio", "weights", "gradients", "optimizer")
    print(f"| {model.partition(' --random')[0]} | {' | '.join(heads)} |")
    print("|---|---|---|---|---|---|---|")
    worst = 0.0
    for row in rows(model):
        errors = row.errors()
        worst = max(worst, abs(errors["peak"] - 1))
        parts = " | ".join(f"{errors[name]:.3f}" for name in ("weights", "gradients", "optimizer"))
        print(
            f"| {row.case} | {row.estimated.highest.total / size:.2f} {unit} | {row.peak / size:.2f} {unit} "
            f"| {errors['peak']:.3f} | {parts} |",
            flush=True,
        )
    print(f"\nThe largest error of a peak: {worst:.1%}\n")


def peers() -> None:
    """Weights, gradients and optimizer of Mistral-7B by our formulas and by the estimators of two libraries."""
    from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs  # type: ignore[import-untyped]
    from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs  # type: ignore[import-untyped]

    model = find_model("mistral-7b")[0]
    parameters, largest = model.parameters(), model.vocab_size * model.hidden_size
    print("| Mistral-7B, GB per GPU | ours: state | ours: in the step | accelerate | DeepSpeed |")
    print("|---|---|---|---|---|")
    for case in PEERS:
        w = workload(f"{case} {REAL}")
        peak = peak_memory(w, framework=0.0)
        state = peak.step.total - peak.step.buffers
        theirs = "–"
        if w.sharding == "zero2":
            theirs = _gb(estimate_zero2_model_states_mem_needs(parameters, w.ranks, 1, cpu_offload=False)[1])
        elif w.sharding == "zero3":
            args = (parameters, largest, w.ranks, 1)
            options = {"cpu_offload": False, "cpu_offload_params": False}
            theirs = _gb(estimate_zero3_model_states_mem_needs(*args, **options)[1])
        print(f"| `{case}` | {_gb(state)} | {_gb(peak.step.total)} | {_accelerate(w)} | {theirs} |")
    print()


def _accelerate(w: Workload) -> str:
    """What `accelerate estimate-memory` prints for a model of this size: it knows one device."""
    from accelerate.commands.estimate import estimate_training_usage

    dtype = "bfloat16" if w.bf16 else "float32"
    usage = estimate_training_usage(4 * w.model.parameters(), dtype)
    return _gb(max(usage.values()))


def _gb(size: float) -> str:
    return f"{size / 1e9:.1f}"


def flops() -> None:
    """PyTorch's FLOP counter over the real layers, on tensors without memory."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils.flop_counter import FlopCounterMode
    from transformers import AutoModelForCausalLM

    from exercises.utils.models import hugging_face_config

    print("| model, tokens | counted | 6 · weights + 12·L·h·S | ratio | counted / 6N |")
    print("|---|---|---|---|---|")
    for name, tokens in (("llama-3.2-1b", 2048), ("mistral-7b", 4096), ("llama-3.1-8b", 2048), ("tiny-mistral", 128)):
        model = find_model(name)[0]
        config = hugging_face_config(model)
        config._attn_implementation = "eager"  # the counter does not see the CPU's fused attention
        with FakeTensorMode(allow_non_fake_inputs=True):
            network = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
            ids = torch.ones((1, tokens), dtype=torch.int64)
            with FlopCounterMode(display=False) as counter:
                network(input_ids=ids, labels=ids).loss.backward()
        ours = flops_per_token(model, tokens)
        counted = counter.get_total_flops() / tokens
        print(
            f"| {name}, {tokens} | {counted * tokens / 1e12:.4g} TFLOP | {ours.total * tokens / 1e12:.4g} TFLOP "
            f"| {ours.total / counted:.6f} | {counted / ours.rule:.3f} |",
            flush=True,
        )
    print()


def tracker() -> None:
    """PyTorch's MemTracker on Mistral-7B, in bf16 on one GPU, and its FSDPMemTracker on FSDP2 over 8 ranks."""
    print("| Mistral-7B, 1 × 2048 tokens | peak, estimated | MemTracker | ratio |\n|---|---|---|---|")
    for name, fsdp, again in (
        ("bf16, one GPU", False, False),
        ("FSDP2 over 8", True, False),
        ("FSDP2 over 8, recomputing", True, True),
    ):
        ours, measured = _of_fsdp(again) if fsdp else _of_one_gpu(), _tracked(fsdp, again)
        print(f"| {name} | {ours / 1e9:.1f} GB | {measured / 1e9:.1f} GB | {ours / measured:.3f} |", flush=True)
    print()


def _of_one_gpu() -> float:
    """All in bf16: AdamW's moments have the type of the parameters."""
    model = find_model("mistral-7b")[0]
    return (2 + 4) * model.parameters() + of_transformers(model, 2048, arithmetic="bf16").peak(False)


def _of_fsdp(again: bool) -> float:
    """FSDP2: float32 shards of weights, gradients and moments; embedding and output layer stay gathered in bf16."""
    model = find_model("mistral-7b")[0]
    parameters, shard = model.parameters(), model.parameters() / 8
    outside = 2 * model.vocab_size * model.hidden_size + model.hidden_size
    layer = (parameters - outside) / model.num_hidden_layers
    turn = (4 + 8) * shard + 2 * (outside + 2 * layer) + of_transformers(model, 2048, arithmetic="bf16").peak(again)
    # At the end of the backward pass, gradients of those two are there in bf16, and in float32 for their reduction.
    return max(turn, (4 + 4 + 8) * shard + (2 + 2 + 4) * outside)


def _tracked(fsdp: bool, again: bool) -> float:
    argv = [sys.executable, str(ROOT / "benchmarks/memory_by_tracker.py"), *["--fsdp"] * fsdp, *["--again"] * again]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    return float(done.stdout.strip().splitlines()[-1])


PARTS = {
    "tiny": lambda: table_of(TINY),
    "real": lambda: table_of(REAL),
    "tracker": tracker,
    "peers": peers,
    "flops": flops,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS)
    only = parser.parse_args().only
    for name, part in PARTS.items():
        if only in (None, name):
            part()


if __name__ == "__main__":
    main()
