"""Git histories of a small training, for `bench_bisect.py`: a base, then commits that cost nothing, and one that does.

A history is the same for the same seed and number, down to its hashes, so runs that were made of it are found again.
"""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path
from typing import NamedTuple

COMMITS = 16
UNITS = 60  # of work in a step: products of matrices on one core, each about as long as the others
SMALLEST, LARGEST = 0.05, 0.30  # share of the step by which the guilty commit makes it longer
_DATE = "2026-01-01T00:00:00+00:00"

TRAIN = '''"""Trains a small network on one core of the CPU."""

import argparse

import torch
from torch import nn

import batches
import metrics


def main() -> None:
    parser = argparse.ArgumentParser(description="train a small network")
    parser.add_argument("--steps", type=int, default=40)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(192, 192), nn.ReLU(), nn.Linear(192, 192))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    samples = torch.randn(192, 192)
    for step in range(args.steps):
        optimizer.zero_grad()
        batch = batches.prepared(samples)
        loss = (model(batch) - samples).square().mean()
        loss.backward()
        optimizer.step()
        metrics.measure(step, loss.detach(), samples)
    print(f"{args.steps} steps, loss {metrics.last():.4f}")


if __name__ == "__main__":
    main()
'''
BATCHES = '''"""Prepares a batch."""

import torch

ROUNDS = {rounds}


def prepared(samples: torch.Tensor) -> torch.Tensor:
    """The samples, whitened step by step."""
    mixed = samples
    for _ in range(ROUNDS):
        mixed = torch.tanh(mixed @ samples / 14)
    return samples + 0.01 * mixed
'''
METRICS = '''"""Measures what a step did."""

import torch

_LOSSES: list[float] = []


def measure(step: int, loss: torch.Tensor, samples: torch.Tensor) -> None:
    """Keep the loss."""
    _LOSSES.append(float(loss))


def last() -> float:
    return _LOSSES[-1]
'''
_HELPER = """

def {name}() -> str:
    return "{name}"


def last"""
_INNOCENT = (
    ("Explain the {name}", "batches.py", "    mixed = samples\n", "    mixed = samples  # {name}: begins as it is\n"),
    ("Describe the {name} of the training", "train.py", "the CPU.", "the CPU. See {name}.md."),
    ("Print the {name} at the end", "train.py", "    print(f", '    print("{name}")\n    print(f'),
    ("Add a helper for the {name}", "metrics.py", "\n\ndef last", _HELPER),
    ("Halve and double the {name}", "batches.py", "return samples + 0.01 *", "return 1.0 * samples + 0.01 *"),
    ("Write down the {name}", "README.md", "", "{name}\n"),
)  # fmt: skip
_WHO = {"NAME": "A student", "EMAIL": "student@example.org", "DATE": _DATE}


class History(NamedTuple):
    """A repository, the commits in order, the base first; the guilty one, and the share of the step that it adds."""

    folder: Path
    commits: list[str]
    guilty: str | None
    share: float


def made(folder: Path, seed: int, number: int, is_guilty: bool) -> History:
    """The history of this number; made if it is not there."""
    chance = random.Random(f"{seed} {number} {is_guilty}")
    place = chance.randint(1, COMMITS) if is_guilty else 0
    share = chance.uniform(SMALLEST, LARGEST) if is_guilty else 0.0
    in_metrics = chance.random() < 0.5
    changes = [chance.choice(_INNOCENT) for _ in range(COMMITS)]
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / ".git").is_dir():
        _git(folder, "init", "--quiet", "--initial-branch=main")
        _write_base(folder)
        for at, change in enumerate(changes, 1):
            title = _slow(folder, share, in_metrics) if at == place else _innocent(folder, change, at)
            _commit(folder, title)
    commits = _git(folder, "rev-list", "--reverse", "main").split()
    return History(folder, commits, commits[place] if place else None, share)


def _write_base(folder: Path) -> None:
    for name, text in (("train.py", TRAIN), ("batches.py", BATCHES.format(rounds=UNITS)), ("metrics.py", METRICS)):
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "README.md").write_text("A small training.\n", encoding="utf-8")
    _commit(folder, "Train a small network")


def _innocent(folder: Path, change: tuple[str, str, str, str], at: int) -> str:
    title, file, old, new = change
    name = f"part_{at}"
    path = folder / file
    text = path.read_text(encoding="utf-8")
    if old and old in text:
        text = text.replace(old, new.format(name=name), 1)
    else:
        text += f"# {name}\n" if file.endswith(".py") else f"{name}\n"
    path.write_text(text, encoding="utf-8")
    return title.format(name=name)


def _slow(folder: Path, share: float, in_metrics: bool) -> str:
    """As many further products as the share asks for, where a batch is prepared or where the step is measured."""
    more = max(1, round(share * UNITS))
    if not in_metrics:
        path = folder / "batches.py"
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace(f"ROUNDS = {UNITS}", f"ROUNDS = {UNITS + more}"), encoding="utf-8")
        return "Whiten the batch more thoroughly"
    path = folder / "metrics.py"
    lines = [
        "    spread = samples",
        f"    for _ in range({more}):",
        "        spread = torch.tanh(spread @ samples / 14)",
    ]
    text = path.read_text(encoding="utf-8").replace("    _LOSSES.append", "\n".join([*lines, "    _LOSSES.append"]), 1)
    path.write_text(text, encoding="utf-8")
    return "Follow the spread of the samples"


def _commit(folder: Path, title: str) -> None:
    _git(folder, "add", "--all")
    _git(folder, "commit", "--quiet", "--allow-empty", "-m", title)


def _git(folder: Path, *arguments: str) -> str:
    who = {f"GIT_{whose}_{what}": value for whose in ("AUTHOR", "COMMITTER") for what, value in _WHO.items()}
    done = subprocess.run(
        ["git", *arguments], cwd=folder, env=os.environ | who, capture_output=True, text=True, check=True
    )
    return done.stdout
