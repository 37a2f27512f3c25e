"""Trains a text classifier with accelerate: gradients accumulated over two micro-batches, a learning-rate scheduler."""

import argparse
from pathlib import Path

import torch
from accelerate import Accelerator  # type: ignore[import-untyped]
from accelerate.utils import set_seed  # type: ignore[import-untyped]
from stopwatch import Stopwatch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LinearLR
from torch.utils.data import DataLoader, TensorDataset

ACCUMULATION = 2


class TextClassifier(nn.Module):
    def __init__(self, vocabulary: int = 4000, width: int = 128) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.classifier = nn.Linear(width, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.encoder(self.embedding(tokens))
        pooled = hidden.mean(dim=1)
        return self.classifier(pooled)  # type: ignore[no-any-return]


def noisy(samples: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """A batch in which some words are replaced, as a data augmentation does."""
    tokens = torch.stack([tokens for tokens, _ in samples])
    labels = torch.stack([label for _, label in samples])
    for row in tokens:
        row[torch.arange(0, len(row), 7)] = int(row.sum()) % 4000
        torch.argsort(torch.cos(torch.arange(4000.0) + row[0]))
    return tokens, labels


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--truth", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)

    accelerator = Accelerator(gradient_accumulation_steps=ACCUMULATION, cpu=True)
    set_seed(3)
    count = args.steps * ACCUMULATION * 8 * accelerator.num_processes
    data = TensorDataset(torch.randint(4000, (count, 64)), torch.randint(4, (count,)))
    loader = DataLoader(data, batch_size=8, shuffle=True, collate_fn=noisy)
    model = TextClassifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.01)
    scheduler = LinearLR(optimizer, total_iters=args.steps)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    loss_function = nn.CrossEntropyLoss()
    watch = Stopwatch(args.truth, accelerator.process_index)

    batches = iter(loader)
    for _ in range(len(loader)):
        with watch.part("data"):
            tokens, labels = next(batches)
        with accelerator.accumulate(model):
            with watch.part("forward"):
                logits = model(tokens)
                loss = loss_function(logits, labels)
            with watch.part("backward"):
                accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            with watch.part("optimizer"):
                optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        watch.loss(loss.detach())
        if accelerator.sync_gradients:
            watch.step_done()
    accelerator.print("done")
    accelerator.end_training()


if __name__ == "__main__":
    main()
