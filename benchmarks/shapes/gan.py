"""A GAN with two optimizers: two updates of the critic for each one of the generator. Planted: rank 0 draws a grid."""

from __future__ import annotations

import torch
from planting import PLANTED, STEPS, planted, start
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

NOISE, PIXELS = 64, 784


def draw(images: Tensor) -> list[str]:
    rows = []  # plant
    for image in images.tolist():  # plant
        rows.append("".join("#" if pixel > 0.5 else "." for pixel in image))  # plant
    return rows  # plant


class Generator(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(NOISE, 512), nn.ReLU(), nn.Linear(512, PIXELS), nn.Sigmoid())


class Critic(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(PIXELS, 512), nn.LeakyReLU(0.2), nn.Linear(512, 1))


def main() -> None:
    rank, _ = start()
    generator, critic = DistributedDataParallel(Generator()), DistributedDataParallel(Critic())
    of_generator = torch.optim.Adam(generator.parameters(), lr=1e-4)
    of_critic = torch.optim.Adam(critic.parameters(), lr=1e-4)
    for _ in range(STEPS):
        for _ in range(2):
            real = torch.rand(128, PIXELS)
            fake = generator(torch.randn(128, NOISE)).detach()
            of_critic.zero_grad()
            (critic(torch.cat([fake, real]))[:128].mean() - critic(real).mean()).backward()
            of_critic.step()
        of_generator.zero_grad()
        images = generator(torch.randn(128, NOISE))
        (-critic(images).mean()).backward()
        of_generator.step()
        if PLANTED and rank == 0:
            with planted():
                draw(images.detach())  # plant


if __name__ == "__main__":
    main()
