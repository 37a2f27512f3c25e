"""Trains a tiny Llama from a configuration with transformers' Trainer, which owns the loop."""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from stopwatch import Stopwatch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
    set_seed,
)


class Sentences(Dataset[dict[str, Tensor]]):
    """Random token sequences."""

    def __init__(self, count: int, length: int, vocabulary: int) -> None:
        self.tokens = torch.randint(vocabulary, (count, length), generator=torch.Generator().manual_seed(5))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def collate(samples: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """A batch whose first tokens are no labels, as a prompt's are not."""
    batch = {name: torch.stack([sample[name] for sample in samples]) for name in samples[0]}
    batch["labels"][:, :8] = -100
    return batch


class TimedTrainer(Trainer):  # type: ignore[misc]  # transformers is not read for types
    """Times the model's forward and keeps each loss."""

    watch: Stopwatch

    def compute_loss(self, model: Any, inputs: dict[str, Tensor], **options: Any) -> Any:
        with self.watch.part("forward"):
            loss = super().compute_loss(model, inputs, **options)
        self.watch.loss(loss.detach())
        return loss


class Steps(TrainerCallback):  # type: ignore[misc]  # transformers is not read for types
    """Times the optimizer, and tells where a step ends."""

    def __init__(self, watch: Stopwatch) -> None:
        self.watch = watch

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any
    ) -> None:
        self.optimizer = self.watch.part("optimizer")
        self.optimizer.__enter__()

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any
    ) -> None:
        self.optimizer.__exit__(None, None, None)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any) -> None:
        self.watch.step_done()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--truth", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    set_seed(11)
    config = LlamaConfig(
        vocab_size=1000,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=args.steps,
            per_device_train_batch_size=6,
            learning_rate=3e-4,
            logging_steps=10,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            ddp_backend="gloo" if "RANK" in os.environ else None,
        )
        trainer = TimedTrainer(
            model=LlamaForCausalLM(config),
            args=arguments,
            train_dataset=Sentences(4096, 48, 1000),
            data_collator=collate,
        )
        trainer.watch = Stopwatch(args.truth, int(os.environ.get("RANK", "0")), unknown=("data", "backward"))
        trainer.add_callback(Steps(trainer.watch))
        trainer.train()


if __name__ == "__main__":
    main()
