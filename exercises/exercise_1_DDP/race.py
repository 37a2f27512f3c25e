"""Trains a network to tell which of 32 machines a vibration comes from, with DDP: on CPUs by gloo, on GPUs by nccl.
It makes its data itself. `slurm.sh lesson race` says how fast it could be."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

EPOCHS, SAMPLES, BATCH = 4, 1024, 64
POINTS, MACHINES, BACKGROUNDS = 1024, 32, 8192


def write_vibrations(folder: Path, rank: int) -> None:
    own = torch.randn(MACHINES, POINTS, generator=torch.Generator().manual_seed(1234))
    noise = torch.Generator().manual_seed(rank)
    for number in range(SAMPLES):
        machine = number % MACHINES
        signal = 0.1 * own[machine] + torch.randn(POINTS, generator=noise)
        sample = {"machine": machine, "signal": [round(each, 3) for each in signal.tolist()]}
        (folder / f"vibration-{number:04}.json").write_text(json.dumps(sample))


class Vibrations(Dataset[tuple[torch.Tensor, int]]):
    def __init__(self, folder: Path) -> None:
        self.files = sorted(folder.glob("vibration-*.json"))

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        sample = json.loads(self.files[index].read_text())
        signal = torch.tensor(sample["signal"])
        return (signal - signal.mean()) / signal.std(), sample["machine"]


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.background: torch.Tensor
        self.register_buffer("background", 0.1 * torch.randn(BACKGROUNDS, POINTS))
        self.layers = nn.Sequential(
            nn.Linear(POINTS, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, MACHINES)
        )

    def forward(self, signals: torch.Tensor, step: int) -> torch.Tensor:
        noisy = signals + self.background[step * BATCH : (step + 1) * BATCH]
        return self.layers(noisy)  # type: ignore[no-any-return]


def accuracies(guessed: torch.Tensor, machines: torch.Tensor) -> list[float]:
    found = []
    for machine in range(MACHINES):
        seen = (machines == machine).sum()
        right = ((machines == machine) & (guessed == machine)).sum()
        dist.all_reduce(seen)
        dist.all_reduce(right)
        found.append(right.item() / max(seen.item(), 1))
    return found


def train(folder: Path, rank: int, device: torch.device) -> None:
    write_vibrations(folder, rank)
    torch.manual_seed(0)
    model = DistributedDataParallel(Network().to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    loader = DataLoader(Vibrations(folder), BATCH, shuffle=True, generator=torch.Generator().manual_seed(rank))
    log = (folder / "log.jsonl").open("w")
    for step, batch in enumerate(batch for _ in range(EPOCHS) for batch in loader):
        signals, machines = (each.to(device) for each in batch)
        outputs = model(signals, step)
        loss = nn.functional.cross_entropy(outputs, machines)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        found = accuracies(outputs.argmax(1), machines)
        bars = [torch.histc(getattr(w, k).cpu(), 99).tolist() for w in model.parameters() for k in ("data", "grad")]
        log.write(json.dumps({"step": step, "loss": loss.item(), "accuracies": found, "histograms": bars}) + "\n")
        if step % 16 == 0 and rank == 0:
            print(f"step {step}: loss {loss.item():.4f}, accuracy {sum(found) / MACHINES:.2f}", flush=True)
        if step % 3 == 0:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, folder / "checkpoint.pt")


if __name__ == "__main__":
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    dist.init_process_group("nccl" if on_gpu else "gloo")
    with tempfile.TemporaryDirectory() as name:
        train(Path(name), dist.get_rank(), device)
    dist.destroy_process_group()
