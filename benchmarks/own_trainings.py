"""The trainings of tests/own/scripts: how each is started, and where its code runs in each step."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[1] / "tests/own/scripts"
# Environment of a steady training: else the C library gives memory back to the kernel in some steps and not in others,
# and the page faults move a step by a third.
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": "2000000000", "MALLOC_TRIM_THRESHOLD_": "4000000000"}
STEP_ENDS = "step_done"  # the call by which a training's own stopwatch ends a step
LOOP = "the loop"  # in place of a function's name: the loop of steps
_MODULE = (sys.executable, "-m")


@dataclass(frozen=True)
class Place:
    """Code that runs in each step. function: as `Class.method`, or `function/the loop`. times: how often per step."""

    file: str
    function: str
    times: int = 1


@dataclass(frozen=True)
class Training:
    """One training. words: the script as a launcher takes it. package: what it needs beside PyTorch."""

    name: str
    words: tuple[str, ...]
    places: tuple[Place, ...]
    launcher: str = "torchrun"
    ranks: int = 2
    environment: tuple[tuple[str, str], ...] = ()
    package: str | None = None

    def with_ranks(self, ranks: int) -> Training:
        """The same with another number of ranks."""
        return replace(self, ranks=ranks)

    def command(self, options: Sequence[str], port: int) -> list[str]:
        """How its user starts it, with this Python's launchers."""
        count = str(self.ranks)
        launchers = {
            "python": [sys.executable],
            "torchrun": [*_MODULE, "torch.distributed.run", "--nproc-per-node", count, "--master-port", str(port)],
            "accelerate": [
                *(*_MODULE, "accelerate.commands.accelerate_cli", "launch", "--multi_gpu"),
                *("--num_processes", count, "--main_process_port", str(port)),
            ],
            "deepspeed": [
                *(*_MODULE, "deepspeed.launcher.runner", "--num_accelerators", count),
                *("--master_port", str(port)),
            ],
        }  # fmt: skip
        return [*launchers[self.launcher], *self.words, *options]


_ALL = (
    Training(
        "plain_ddp",
        ("plain_ddp.py",),
        (Place("plain_ddp.py", f"train/{LOOP}"), Place("plain_ddp.py", "Classifier.forward")),
    ),
    Training(
        "fsdp2",
        ("fsdp2.py",),
        (
            Place("fsdp2.py", f"Trainer.fit/{LOOP}"),
            Place("fsdp2.py", "Trainer.training_step"),
            Place("fsdp2.py", "Decoder.forward"),
        ),
    ),
    Training(
        "accelerate_loop",
        ("accelerate_loop.py",),
        (Place("accelerate_loop.py", f"main/{LOOP}", 2), Place("accelerate_loop.py", "TextClassifier.forward", 2)),
        launcher="accelerate",
        package="accelerate",
        environment=(("ACCELERATE_USE_CPU", "true"),),
    ),
    Training(
        "transformers_trainer",
        ("transformers_trainer.py",),
        (
            Place("transformers_trainer.py", "TimedTrainer.compute_loss"),
            Place("transformers_trainer.py", "Steps.on_step_end"),
            Place("transformers_trainer.py", "collate"),
        ),
        package="transformers",
    ),
    Training(
        "lightning_ddp",
        ("lightning_ddp.py",),
        (
            Place("lightning_ddp.py", "AutoEncoder.training_step"),
            Place("lightning_ddp.py", "AutoEncoder.optimizer_step"),
            Place("lightning_ddp.py", "AutoEncoder.on_train_batch_end"),
        ),
        package="lightning",
    ),
    Training(
        "deepspeed_engine",
        ("deepspeed_engine.py",),
        (Place("deepspeed_engine.py", f"main/{LOOP}", 2), Place("deepspeed_engine.py", "Net.forward", 2)),
        environment=(("DS_ACCELERATOR", "cpu"),),
        package="deepspeed",
    ),
    Training(
        "one_process",
        ("one_process.py",),
        (Place("one_process.py", f"main/{LOOP}"), Place("one_process.py", "augmented")),
        launcher="python",
        ranks=1,
    ),
)
TRAININGS = {training.name: training for training in _ALL}


def body_of(tree: ast.Module, place: Place) -> list[ast.stmt]:
    """The statements of a place. Raises LookupError: the file has no such code."""
    path, _, loop = place.function.partition("/")
    body: list[ast.stmt] = tree.body
    for name in path.split("."):
        body = next(
            statement.body
            for statement in body
            if isinstance(statement, ast.FunctionDef | ast.ClassDef) and statement.name == name
        )
    return _loop_of(body) if loop else body


def _loop_of(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    """The innermost loop whose own statements end a step."""
    loops = [node for statement in body for node in ast.walk(statement) if isinstance(node, ast.For | ast.While)]
    ending = [loop for loop in loops if any(_ends_step(statement) for statement in loop.body)]
    if not ending:
        ending = loops[-1:]  # a function that it calls ends the step
    if not ending:
        raise LookupError("no loop of steps")
    return ending[-1].body


def _ends_step(statement: ast.stmt) -> bool:
    return any(
        isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == STEP_ENDS
        for node in ast.walk(statement)
    )


def statements(body: Sequence[ast.stmt]) -> Iterator[tuple[ast.stmt, bool]]:
    """Each statement of a body that always runs, also inside of `with`; and whether it is its block's last."""
    for number, statement in enumerate(body):
        if not _is_text(statement):
            yield statement, number == len(body) - 1
        if isinstance(statement, ast.With):
            yield from statements(statement.body)


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
