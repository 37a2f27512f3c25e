"""Transformers' Trainer owns the loop. Planted: a callback keeps a copy of the model on rank 0 after every step."""

from __future__ import annotations

import copy
from typing import Any

import torch
from planting import PLANTED, STEPS, planted, start
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainingArguments

WIDTH = 512


class Regression(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(6)))
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        output = self.head(self.body(inputs)).squeeze(-1)
        return {"loss": nn.functional.mse_loss(output, labels), "output": output}


class KeepsBest(TrainerCallback):
    def __init__(self, rank: int) -> None:
        self.rank, self.best = rank, None

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if PLANTED and self.rank == 0:
            with planted():
                for _ in range(3):
                    self.best = copy.deepcopy(kwargs["model"])  # plant


def main() -> None:
    rank, _ = start()
    data = [{"inputs": torch.randn(WIDTH), "labels": torch.randn(())} for _ in range(STEPS * 128)]
    arguments = TrainingArguments(
        output_dir="trained",
        per_device_train_batch_size=64,
        max_steps=STEPS,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        logging_steps=1000,
        disable_tqdm=True,
    )
    Trainer(Regression(), arguments, train_dataset=data, callbacks=[KeepsBest(rank)]).train()


if __name__ == "__main__":
    main()
