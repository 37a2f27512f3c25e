"""The two networks."""

from __future__ import annotations

from torch import Tensor, nn

LATENT, WIDTH, PIXELS = 64, 640, 784


class Generator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(LATENT, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)
        self.last = nn.Linear(WIDTH, PIXELS)

    def forward(self, noise: Tensor) -> Tensor:
        hidden = self.first(noise).relu()
        hidden = self.second(hidden).relu()
        return self.last(hidden).tanh()  # type: ignore[no-any-return]


class Discriminator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(PIXELS, WIDTH), nn.LeakyReLU(0.2), nn.Linear(WIDTH, WIDTH), nn.LeakyReLU(0.2), nn.Linear(WIDTH, 1)
        )

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images).squeeze(1)  # type: ignore[no-any-return]
