"""--memory-snapshot: every category has the bytes that are known beforehand, at the peak and when memory runs out."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import pytest

from harness.common.run_folder.memory_snapshot import CATEGORIES
from harness.common.run_folder.run_files import MEMORY_SNAPSHOTS

torch = pytest.importorskip("torch", reason="the training scripts need PyTorch")

from torch import nn  # noqa: E402 - needs torch

from harness.observe.last_words import is_out_of_memory  # noqa: E402
from harness.observe.memory_tracker import Snapshot  # noqa: E402
from harness.observe.ranges import annotate, listeners  # noqa: E402

ROWS, IN, INNER, OUT = 32, 100, 200, 50
WEIGHTS = 4 * (IN * INNER + INNER + INNER * OUT + OUT)
STEP_COUNTS = 4 * 4  # AdamW counts the steps of each of the four parameters in a float32


@pytest.fixture(autouse=True)
def every_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The timeline is not thinned, whatever the machine's speed."""
    monkeypatch.setattr("harness.observe.memory_blocks.MOST_POINTS", 10**12)


class Model(nn.Module):
    """Two layers; `greedy`: between them it asks for more memory than any machine has."""

    def __init__(self, greedy: bool = False) -> None:
        super().__init__()
        self.first, self.relu, self.second = nn.Linear(IN, INNER), nn.ReLU(), nn.Linear(INNER, OUT)
        self.greedy = greedy

    def forward(self, batch: Any) -> Any:
        inner = self.relu(self.first(batch))
        if self.greedy:
            torch.empty(1 << 60, dtype=torch.uint8)
        return self.second(inner).sum()


def train(snapshot: Snapshot, model: nn.Module, steps: int = 3, micro_batches: int = 1) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    with snapshot:
        for step in range(steps):
            snapshot.step_begins(step)
            for _ in range(micro_batches):
                with annotate(f"DataLoad batch {step}"):
                    batch = torch.ones(ROWS, IN)
                with annotate("forward"):
                    loss = model(batch)
                with annotate("backward"):
                    loss.backward()
                del loss, batch
            with annotate("optimizer_step"):
                optimizer.step()
            with annotate("zero_grad"):
                optimizer.zero_grad()


def written(folder: Path) -> dict[str, Any]:
    return dict(json.loads(MEMORY_SNAPSHOTS.path(folder, 0).read_text(encoding="utf-8")))


def highest(document: dict[str, Any], category: str) -> int:
    return int(max(document["bytes"][category]))


def test_every_category_has_the_known_bytes_and_the_peak_names_who_asked(tmp_path: Path) -> None:
    """AdamW's step makes two tensors of the largest parameter's size beside all that the step holds."""
    train(Snapshot(tmp_path, 0, "cpu"), Model())
    found = written(tmp_path)
    assert {name: highest(found, name) for name in CATEGORIES if name != "temporary"} == {
        "weights": WEIGHTS,
        "gradients": WEIGHTS,
        "optimizer": 2 * WEIGHTS + STEP_COUNTS,
        "activations": 4 * ROWS * INNER + 4,  # what ReLU gives, which both neighbours keep; and the loss
        "buffers": 0,
        "inputs": 4 * ROWS * IN,
        "other": 0,
    }
    assert [step["step"] for step in found["steps"]] == [0, 1, 2] and found["failure"] is None
    peak = found["peak"]
    assert peak["range"] == "optimizer_step" and peak["bytes"]["temporary"] == 2 * 4 * IN * INNER
    held = {(h["category"], h["range"]): h["bytes"] for h in peak["holders"]}
    assert held["optimizer", "optimizer_step"] == 2 * WEIGHTS
    assert held["weights", "before the first step"] == WEIGHTS


def test_gradients_stay_through_an_accumulation(tmp_path: Path) -> None:
    train(Snapshot(tmp_path, 0, "cpu"), Model(), steps=1, micro_batches=2)
    found = written(tmp_path)
    at_activations = found["bytes"]["activations"].index(highest(found, "activations"))
    later = [g for g, a in zip(found["bytes"]["gradients"], found["bytes"]["activations"], strict=True) if a]
    assert found["bytes"]["gradients"][at_activations] == 0 and max(later) >= WEIGHTS


def test_what_is_computed_again_in_backward_is_an_activation(tmp_path: Path) -> None:
    from torch.utils.checkpoint import checkpoint

    class Again(Model):
        def forward(self, batch: Any) -> Any:
            return checkpoint(lambda x: self.second(self.relu(self.first(x))), batch, use_reentrant=False).sum()

    train(Snapshot(tmp_path, 0, "cpu"), Again())
    found = written(tmp_path)
    assert highest(found, "activations") >= 4 * ROWS * INNER
    assert highest(found, "gradients") == WEIGHTS


def test_its_peak_is_that_of_pytorchs_allocator(tmp_path: Path) -> None:
    """torch.profiler hears every allocation from the allocator itself; it rounds nothing on a CPU."""
    model = Model()
    snapshot = Snapshot(tmp_path, 0, "cpu")
    held = WEIGHTS
    gc.collect()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        train(snapshot, model)
    trace = tmp_path / "trace.json"
    profile.export_chrome_trace(str(trace))
    events = [e for e in json.loads(trace.read_text())["traceEvents"] if e.get("name") == "[memory]"]
    peak = now = 0
    for event in sorted(events, key=lambda e: float(e["ts"])):
        now += int(event["args"]["Bytes"])
        peak = max(peak, now)
    assert peak > 0
    seen = sum(written(tmp_path)["peak"]["bytes"].values())
    assert seen == pytest.approx(held + peak, rel=0.002)


def test_a_failed_allocation_leaves_who_held_the_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError) as caught:
        train(Snapshot(tmp_path, 0, "cpu"), Model(greedy=True))
    assert is_out_of_memory(caught.value)
    failure = written(tmp_path)["failure"]
    assert (failure["step"], failure["range"], failure["operator"]) == (0, "forward", "aten.empty.memory_format")
    assert "can't allocate memory" in failure["error"]
    expected = {"weights": WEIGHTS, "inputs": 4 * ROWS * IN, "activations": 4 * ROWS * INNER}
    assert {name: size for name, size in failure["bytes"].items() if size} == expected
    said = capsys.readouterr().err
    assert said.startswith("rank 0: no memory for aten.empty.memory_format in Model; tensors hold 0.2 MB")


def test_nothing_stays_behind(tmp_path: Path) -> None:
    from torch.nn.modules import module

    resize = torch.UntypedStorage.resize_
    train(Snapshot(tmp_path, 0, "cpu"), Model(), steps=1)
    assert torch.UntypedStorage.resize_ is resize and listeners == []
    assert not module._global_forward_hooks and not module._global_forward_pre_hooks
    assert [path.name for path in tmp_path.glob("memory/*")] == ["rank0.json"]
