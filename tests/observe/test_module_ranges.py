"""Ranges of modules: their names, how they nest, and that a training does not notice them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from harness.common.errors import RequestError
from harness.common.run_folder.module_ranges import ALL, LAYERS, module_depth
from harness.observe import ranges
from harness.observe.module_ranges import ModuleRanges

UNPATCHED: Any = nn.Module.__call__


class Block(nn.Module):
    """A layer as in a transformer, with two residual branches."""

    def __init__(self, reentrant: bool | None) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(8), nn.Linear(8, 8)
        self.mlp = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
        self.reentrant = reentrant

    def compute(self, x: Tensor) -> Any:
        x = x + self.attention(self.norm(x))
        return x + self.mlp(x)

    def forward(self, x: Tensor) -> Any:
        return self.compute(x) if self.reentrant is None else checkpoint(self.compute, x, use_reentrant=self.reentrant)


class Body(nn.Module):
    def __init__(self, reentrant: bool | None) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 8)
        self.layers = nn.ModuleList(Block(reentrant) for _ in range(2))
        self.norm = nn.LayerNorm(8)

    def forward(self, tokens: Tensor) -> Any:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


class Net(nn.Module):
    def __init__(self, reentrant: bool | None = None) -> None:
        super().__init__()
        self.body, self.head = Body(reentrant), nn.Linear(8, 10)

    def forward(self, tokens: Tensor) -> dict[str, Tensor]:
        logits = self.head(self.body(tokens))
        return {"loss": nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())}


TOKENS = torch.arange(10).reshape(2, 5)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What nsys would be told, in order: names, indented by the ranges around them. Every range ends."""
    lines: list[str] = []
    open_: list[str] = []

    def push(name: str) -> None:
        lines.append("  " * len(open_) + name)
        open_.append(name)

    monkeypatch.setattr(ranges, "nvtx_functions", lambda: (push, open_.pop))
    yield lines
    assert open_ == []
    assert nn.Module.__call__ is UNPATCHED


def losses(model: Any, steps: int = 2) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    found = []
    for _ in range(steps):
        loss = model(TOKENS)["loss"]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


def marked(model: Callable[[], Any], depth: str = LAYERS) -> list[float]:
    marks = ModuleRanges(depth, for_nsys=True)
    try:
        torch.manual_seed(0)
        return losses(model())
    finally:
        marks.close()


def unmarked(model: Callable[[], Any]) -> list[float]:
    torch.manual_seed(0)
    return losses(model())


STEP = """
Net
  body
    body.embedding
    body.layers.0
      body.layers.0.norm
      body.layers.0.attention
      body.layers.0.mlp
    body.layers.1
      body.layers.1.norm
      body.layers.1.attention
      body.layers.1.mlp
    body.norm
  head
Net (backward)
  head (backward)
  body (backward)
    body.norm (backward)
    body.layers.1 (backward)
      body.layers.1.mlp (backward)
      body.layers.1.attention (backward)
      body.layers.1.norm (backward)
    body.layers.0 (backward)
      body.layers.0.mlp (backward)
      body.layers.0.attention (backward)
      body.layers.0.norm (backward)
    body.embedding (backward)
""".strip().split("\n")


SHALLOW = ["Net", "  body", "  head", "Net (backward)", "  head (backward)", "  body (backward)"]


def compiled() -> Any:
    torch.compiler.reset()
    return torch.compile(Net(), backend="eager")


@pytest.mark.parametrize(
    ("made", "depth", "lines"),
    [(Net, LAYERS, STEP), (Net, "1", SHALLOW), (compiled, LAYERS, ["Net", "Net (backward)"])],
    ids=["layers", "a number of modules", "compiled as a whole"],
)
def test_the_parts_are_marked_forward_and_backward_and_the_loss_is_the_same_bit_for_bit(
    told: list[str], made: Callable[[], Any], depth: str, lines: list[str]
) -> None:
    assert marked(made, depth) == unmarked(made)
    assert told == 2 * lines


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_checkpointing_runs_again_is_inside_of_the_backward_pass(told: list[str], reentrant: bool) -> None:
    made = functools.partial(Net, reentrant)
    assert marked(made) == unmarked(made)
    again = [line.strip() for line in told if line.endswith("(recomputed)")]
    parts = [f"body.layers.{n}.{part} (recomputed)" for n in (1, 0) for part in ("norm", "attention", "mlp")]
    assert again == 2 * parts
    at = {line.strip(): i for i, line in enumerate(told)}
    layer, previous = at["body.layers.1 (backward)"], at["body.layers.0 (backward)"]
    assert all(layer < at[name] < previous for name in parts[:3])


def test_the_depth_is_layers_all_or_a_number(told: list[str]) -> None:
    marked(Net, ALL)
    assert "        body.layers.0.mlp.2" in told
    assert module_depth("3") == "3"
    with pytest.raises(RequestError, match="got '0', takes layers, all, or a whole number ≥ 1"):
        module_depth("0")


def test_names_are_those_without_wrappers(told: list[str], tmp_path: Any) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        marked(lambda: nn.parallel.DistributedDataParallel(Net()))
    finally:
        dist.destroy_process_group()
    assert sorted(line.strip() for line in told) == sorted(line.strip() for line in 2 * STEP)


def test_a_second_model_has_names_of_its_own(told: list[str]) -> None:
    marks = ModuleRanges("1", for_nsys=True)
    for _ in range(2):
        Net()(TOKENS)
    marks.close()
    assert [line.strip() for line in told] == ["Net", "body", "head", "Net2", "Net2.body", "Net2.head"]


def test_an_error_of_the_model_ends_its_ranges_and_is_the_models_own(told: list[str]) -> None:
    marks = ModuleRanges(LAYERS, for_nsys=True)
    with pytest.raises(IndexError):
        Net()(TOKENS + 7)
    marks.close()
    assert [line.strip() for line in told] == ["Net", "body", "body.embedding"]


def test_nothing_is_marked_while_nobody_records(told: list[str]) -> None:
    marks = ModuleRanges(LAYERS, for_nsys=False)
    losses(Net())
    marks.close()
    assert told == []


def test_an_error_of_the_marking_ends_the_marking_and_not_the_training(
    told: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ModuleRanges, "_learn", lambda *_: 1 / 0)
    assert marked(Net) == unmarked(Net)
    assert capsys.readouterr().err.count("modules are not marked from here on, because ZeroDivisionError") == 1
    assert told == []
