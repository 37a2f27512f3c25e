"""Trains a convolutional network in one process, without torch.distributed: mixed precision with a GradScaler."""

import argparse
from pathlib import Path

import torch
from stopwatch import Stopwatch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser(description="train a small convolutional network")
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--truth", type=Path)


def build() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 8 * 8, 1024),
        nn.ReLU(),
        nn.Linear(1024, 10),
    )


def augmented(samples: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """A batch with a shift and noise."""
    images = torch.stack([image for image, _ in samples])
    shifted = torch.roll(images, shifts=(1, -1), dims=(2, 3))
    return shifted + 0.05 * torch.randn_like(images), torch.stack([label for _, label in samples])


def main() -> None:
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(23)
    data = TensorDataset(torch.randn(1024, 3, 32, 32), torch.randint(10, (1024,)))
    loader = DataLoader(data, batch_size=64, shuffle=True, drop_last=True, collate_fn=augmented)
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    # The first scales overflow, as they often do: those steps are skipped, and the scale is halved.
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    watch = Stopwatch(args.truth)
    done = 0
    while done < args.steps:
        epoch = iter(loader)
        for _ in range(min(len(loader), args.steps - done)):
            with watch.part("data"):
                images, labels = next(epoch)
            optimizer.zero_grad(set_to_none=False)
            with watch.part("forward"):
                loss = nn.functional.cross_entropy(model(images), labels, reduction="sum")
            with watch.part("backward"):
                scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            with watch.part("optimizer"):
                scaler.step(optimizer)
                scaler.update()
            watch.loss(loss.detach())
            watch.step_done()
            done += 1
    print(f"{done} steps, scale {scaler.get_scale():g}")


if __name__ == "__main__":
    main()
