"""Trains an autoencoder with Lightning, which runs forward and backward in the optimizer's closure."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.strategies import DDPStrategy
from stopwatch import Stopwatch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


class AutoEncoder(L.LightningModule):  # type: ignore[misc]  # lightning is not read for types
    def __init__(self, truth: Path | None, width: int = 1024) -> None:
        super().__init__()
        self.truth = truth
        self.encoder = nn.Sequential(nn.Linear(width, 768), nn.ReLU(), nn.Linear(768, 64))
        self.decoder = nn.Sequential(nn.Linear(64, 768), nn.ReLU(), nn.Linear(768, width))

    def on_fit_start(self) -> None:
        self.watch = Stopwatch(self.truth, self.global_rank, unknown=("data",))

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        with self.watch.part("forward"):
            (x,) = batch
            code = self.encoder(x)
            loss = nn.functional.mse_loss(self.decoder(code), x)
            self.log("train_loss", loss, prog_bar=True)
        self.watch.loss(loss.detach())
        return loss

    def on_before_backward(self, loss: Tensor) -> None:
        self.backward_part = self.watch.part("backward")
        self.backward_part.__enter__()

    def on_after_backward(self) -> None:
        self.backward_part.__exit__(None, None, None)

    def optimizer_step(self, epoch: int, index: int, optimizer: Any, closure: Callable[[], Any] | None = None) -> None:
        with self.watch.part("optimizer"):
            super().optimizer_step(epoch, index, optimizer, closure)

    def on_train_batch_end(self, outputs: Any, batch: Any, index: int) -> None:
        self.watch.step_done()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--truth", type=Path)
    parser.add_argument("--devices", type=int, default=int(os.environ.get("WORLD_SIZE", "1")))
    args = parser.parse_args()
    torch.set_num_threads(1)
    L.seed_everything(13)
    data = TensorDataset(torch.randn(8192, 1024))
    trainer = L.Trainer(
        accelerator="cpu",
        devices=args.devices,
        strategy=DDPStrategy(process_group_backend="gloo") if args.devices > 1 else "auto",
        max_steps=args.steps,
        max_epochs=-1,
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    trainer.fit(AutoEncoder(args.truth), DataLoader(data, batch_size=128, shuffle=True))


if __name__ == "__main__":
    main()
