"""Mistral-7B's peak by PyTorch's own memory trackers, in bytes: on one GPU in bf16, or with FSDP2 over 8 ranks.

    python benchmarks/memory_by_tracker.py [--fsdp] [--again]

A process group whose collectives do nothing, and tensors without memory; a second witness beside memory_of_training.py.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AutoModelForCausalLM

from exercises.utils.models import hugging_face_config
from harness.experiment.model import find_model

RANKS, TOKENS = 8, 2048


def peak_bytes(fsdp: bool, again: bool) -> float:
    """The most bytes of two steps."""
    dist.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
    mesh = init_device_mesh("cpu", (RANKS,))
    config = hugging_face_config(find_model("mistral-7b")[0])
    with FakeTensorMode(allow_non_fake_inputs=True):
        dtype = torch.float32 if fsdp else torch.bfloat16
        model: Any = AutoModelForCausalLM.from_config(config, dtype=dtype)
        if again:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
            model.train()
        if fsdp:
            policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
            for layer in [*model.model.layers, model]:
                fully_shard(layer, mesh=mesh, mp_policy=policy)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)
        ids = torch.ones((1, TOKENS), dtype=torch.int64)
        tracker: Any = FSDPMemTracker(model, optimizer) if fsdp else MemTracker()
        if not fsdp:
            tracker.track_external(model, optimizer)
        with tracker:
            for step in range(2):
                model(input_ids=ids, labels=ids).loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                if step == 0:
                    tracker.reset_mod_stats()
        (found,) = tracker.get_tracker_snapshot("peak").values()
    return float(found["Total"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fsdp", action="store_true", help="FSDP2 over 8 ranks, float32 shards")
    parser.add_argument("--again", action="store_true", help="activation checkpointing")
    asked = parser.parse_args()
    warnings.filterwarnings("ignore")
    print(peak_bytes(asked.fsdp, asked.again))


if __name__ == "__main__":
    main()
