"""Measures the accuracy of a convolutional network on a data set: no optimizer, no backward."""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from stopwatch import Stopwatch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from tqdm import tqdm  # type: ignore[import-untyped]

BATCH = 64


class Pictures(Dataset[tuple[Tensor, int]]):
    """Pictures that are decoded as they are read."""

    def __init__(self, count: int) -> None:
        self.coefficients = torch.randn(64, 3, 64, 33, 2, generator=torch.Generator().manual_seed(37))
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        picture = torch.fft.irfft2(torch.view_as_complex(self.coefficients[index % 64]))
        return picture[:, ::2, ::2], index % 10


def build_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(512, 10),
    )


@torch.inference_mode()
def evaluate(model: nn.Module, loader: DataLoader[tuple[Tensor, int]], watch: Stopwatch) -> float:
    """The accuracy over all ranks."""
    counts = torch.zeros(2)
    batches = iter(loader)
    for _ in tqdm(range(len(loader)), disable=dist.get_rank() != 0):
        with watch.part("data"):
            images, labels = next(batches)
        with watch.part("forward"):
            logits = model(images)
            loss = nn.functional.cross_entropy(logits, labels)
        counts += torch.tensor([(logits.argmax(dim=1) == labels).sum(), len(labels)])
        watch.loss(loss)
        watch.step_done()
    dist.all_reduce(counts)
    return float(counts[0] / counts[1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--truth", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(41)
    dist.init_process_group("gloo")
    pictures = Pictures(args.steps * BATCH * dist.get_world_size())
    loader = DataLoader(pictures, batch_size=BATCH, sampler=DistributedSampler(pictures, shuffle=False))
    watch = Stopwatch(args.truth, dist.get_rank(), unknown=("backward", "optimizer"))
    accuracy = evaluate(build_model().eval(), loader, watch)
    if dist.get_rank() == 0:
        print(f"accuracy {accuracy:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
