"""Lightning owns the loop. Planted: a callback averages the weights, parameter by parameter, on rank 0."""

from __future__ import annotations

from typing import Any

import lightning
import torch
from planting import PLANTED, STEPS, planted
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

WIDTH, LAYERS = 128, 60


class Net(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        blocks = (nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.ReLU()) for _ in range(LAYERS))
        self.body = nn.Sequential(*blocks, nn.Linear(WIDTH, 1))

    def training_step(self, batch: list[Tensor], _index: int) -> Tensor:
        samples, targets = batch
        return nn.functional.mse_loss(self.body(samples), targets)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-4)


class Averages(lightning.Callback):
    def __init__(self) -> None:
        self.mean: dict[str, Tensor] = {}

    @torch.no_grad()
    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        if PLANTED and trainer.global_rank == 0:
            with planted():
                for name, weight in pl_module.named_parameters():  # plant
                    mean = self.mean.setdefault(name, weight.clone())  # plant
                    mean.mul_(0.99).add_(0.01 * weight)  # plant


def main() -> None:
    torch.set_num_threads(1)
    data = TensorDataset(torch.randn(STEPS * 128, WIDTH), torch.randn(STEPS * 128, 1))
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_steps=STEPS,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        callbacks=[Averages()],
    )
    trainer.fit(Net(), DataLoader(data, batch_size=64))


if __name__ == "__main__":
    main()
