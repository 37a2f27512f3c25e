"""Trains a regression network with a DeepSpeed engine: ZeRO-1, two groups of parameters, two micro-batches per step."""

import argparse
import os
import warnings
from pathlib import Path

import deepspeed  # type: ignore[import-untyped]
import torch
import torch.distributed as dist
from stopwatch import Stopwatch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

MICRO_BATCH, ACCUMULATION = 64, 2
CONFIG = {
    "train_micro_batch_size_per_gpu": MICRO_BATCH,
    "gradient_accumulation_steps": ACCUMULATION,
    "gradient_clipping": 1.0,
    "zero_optimization": {"stage": 1},
    "zero_allow_untested_optimizer": True,
    "steps_per_print": 1_000_000,
}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(512, 1024), nn.Linear(1024, 1024), nn.Linear(1024, 32)])
        self.norm = nn.LayerNorm(1024)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        for layer in self.layers[:2]:
            x = self.norm(torch.tanh(layer(x)))
        return nn.functional.mse_loss(self.layers[2](x), target)


def parameter_groups(model: nn.Module) -> list[dict[str, object]]:
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim == 1]
    return [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=0, help="the deepspeed launcher gives it")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--truth", type=Path)
    args = parser.parse_args()
    warnings.filterwarnings("ignore", category=FutureWarning)
    torch.set_num_threads(1)
    torch.manual_seed(17)
    # Without a GPU, DeepSpeed would first compile a shared-memory extension, which takes a minute.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_backend="gloo")
    model = Net()
    optimizer = torch.optim.AdamW(parameter_groups(model), lr=1e-3)
    data = TensorDataset(
        torch.randn(args.steps * ACCUMULATION * MICRO_BATCH * dist.get_world_size(), 512),
        torch.randn(1, 32).expand(args.steps * ACCUMULATION * MICRO_BATCH * dist.get_world_size(), 32),
    )
    engine, optimizer, loader, _ = deepspeed.initialize(
        model=model, optimizer=optimizer, training_data=data, config=CONFIG
    )
    watch = Stopwatch(args.truth, int(os.environ.get("RANK", "0")))
    batches = iter(loader)
    for _ in range(args.steps * ACCUMULATION):
        with watch.part("data"):
            x, target = next(batches)
        with watch.part("forward"):
            loss = engine(x, target)
        with watch.part("backward"):
            engine.backward(loss)
        boundary = engine.is_gradient_accumulation_boundary()
        with watch.part("optimizer"):
            engine.step()
        watch.loss(loss.detach())
        if boundary:
            watch.step_done()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
