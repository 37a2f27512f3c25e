"""Trains the networks: `torchrun -m two_optimizers.train`."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from stopwatch import Stopwatch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from two_optimizers.models import LATENT, PIXELS, Discriminator, Generator

BATCH = 64


@dataclass
class Player:
    """One of the two networks with its optimizer."""

    model: nn.Module
    optimizer: torch.optim.Optimizer


def player(model: nn.Module) -> Player:
    wrapped = DistributedDataParallel(model)
    return Player(wrapped, torch.optim.Adam(wrapped.parameters(), lr=2e-4, betas=(0.5, 0.999)))


def label_loss(logits: Tensor, real: bool) -> Tensor:
    return binary_cross_entropy_with_logits(logits, torch.full_like(logits, float(real)))


def cleaned(samples: list[tuple[Tensor]]) -> tuple[Tensor]:
    """A batch without the outliers of each image."""
    images = torch.stack([image for (image,) in samples])
    limits = images.sort(dim=1).values[:, PIXELS * 95 // 100]
    return (images.minimum(limits[:, None]),)


def update_discriminator(
    discriminator: Player, generator: Player, images: Tensor, noise: Tensor, watch: Stopwatch
) -> None:
    discriminator.optimizer.zero_grad()
    with watch.part("forward"):
        fake = generator.model(noise).detach()
        logits = discriminator.model(torch.cat([images, fake]))
        loss = label_loss(logits[: len(images)], True) + label_loss(logits[len(images) :], False)
    with watch.part("backward"):
        loss.backward()  # type: ignore[no-untyped-call]
    with watch.part("optimizer"):
        discriminator.optimizer.step()
    watch.loss(loss.detach())


def update_generator(discriminator: Player, generator: Player, noise: Tensor, watch: Stopwatch) -> None:
    generator.optimizer.zero_grad()
    with watch.part("forward"):
        fake = generator.model(noise)
        loss = label_loss(discriminator.model(fake), True)
    with watch.part("backward"):
        loss.backward()  # type: ignore[no-untyped-call]
    with watch.part("optimizer"):
        generator.optimizer.step()
    watch.loss(loss.detach())


def train(steps: int, watch: Stopwatch) -> None:
    discriminator, generator = player(Discriminator()), player(Generator())
    data = TensorDataset(torch.rand(steps * BATCH * dist.get_world_size(), PIXELS))
    loader = DataLoader(data, batch_size=BATCH, sampler=DistributedSampler(data), collate_fn=cleaned)
    batches = iter(loader)
    for _ in range(steps):
        with watch.part("data"):
            (images,) = next(batches)
        noise = torch.randn(2, BATCH, LATENT)
        update_discriminator(discriminator, generator, images, noise[0], watch)
        update_generator(discriminator, generator, noise[1], watch)
        watch.step_done()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--truth", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(29 + dist.get_rank())
    train(args.steps, Stopwatch(args.truth, dist.get_rank()))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
