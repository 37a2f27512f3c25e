"""Augmentation by generators that are never finished."""

import torch
import torch.nn.functional as F
from torch import nn


def crops(images, count=8):
    padded = F.pad(images, (4, 4, 4, 4), mode="reflect")
    for shift in range(count):
        yield padded[:, :, shift : shift + 32, shift : shift + 32]


class Augmentation:
    def __init__(self):
        self.streams = []

    def __call__(self, images):
        stream = crops(images)
        self.streams.append(stream)  # keeps
        return next(stream)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    augment = Augmentation()
    model = nn.Sequential(nn.Conv2d(3, 24, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten())
    model.append(nn.Linear(384, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(140):
        images = torch.rand(64, 3, 32, 32)
        loss = F.cross_entropy(model(augment(images)), torch.arange(64) % 10)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 35 == 0:
            print(step, round(loss.item(), 4))


if __name__ == "__main__":
    main()
