"""Memory of a GPU: a planted leak and its line, a snapshot beside PyTorch's own count, and trainings out of memory."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.machine import has_gpu
from tests.gpu.work import LAUNCHER, Work, needs

pytestmark = pytest.mark.gpu
KEPT_BYTES = 4 * 256 * 4096
TRAINING = """
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 4096), torch.nn.Linear(4096, 1)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
kept = []
{begin}
for step in range(80):
    hidden = model[0](torch.rand(256, 64, device=device))
    loss = model[1](hidden).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    {inside}
{end}
"""
LEAKS = "kept.append(hidden.detach())"
SNAPSHOT = """
import json, sys
torch.cuda.memory._dump_snapshot(sys.argv[1])
stats = torch.cuda.memory_stats()
print(json.dumps([stats["requested_bytes.all.peak"], stats["allocated_bytes.all.current"]]))
"""
LITTLE = "torch.cuda.set_per_process_memory_fraction(400e6 / torch.cuda.mem_get_info()[1])"


def script(work: Work, name: str, begin: str = "", inside: str = LEAKS, end: str = "") -> Path:
    needs("torch", *LAUNCHER)
    path = work.folder / f"{name}.py"
    path.write_text(TRAINING.format(begin=begin, inside=inside, end=end), encoding="utf-8")
    return path


def trained(work: Work, path: Path, *flags: str) -> dict[str, Any]:
    """The job, as `run --json` tells it."""
    words = ["run", *flags, "--site", "local", "-g", "1", "--json", "--", str(path)]
    ended = work.run([sys.executable, "-I", "-m", "harness", *words], 120 if has_gpu() else 480)
    job: dict[str, Any] = json.loads([line for line in ended.stdout.splitlines() if line.startswith("{")][-1])
    return job


def test_the_line_of_a_leak_and_its_bytes_a_step(work: Work, record_property: Any) -> None:
    path = script(work, "leak")
    job = trained(work, path, "--memory")
    summary = json.loads((Path(job["path"]) / "summary.json").read_text(encoding="utf-8"))
    growth = next(each for each in summary["memory_growth"] if each["of"] == ("device" if has_gpu() else "host"))
    record_property("growth", growth)
    (keeper,) = growth["keepers"]
    assert keeper["where"]["line"] == path.read_text(encoding="utf-8").splitlines().index(f"    {LEAKS}") + 1
    assert keeper["bytes_per_step"] == pytest.approx(KEPT_BYTES, rel=0.05)
    if has_gpu():  # the host's has glibc's holes
        assert growth["per_step"] == pytest.approx(KEPT_BYTES, rel=0.05)


@pytest.mark.usefixtures("gpu")
def test_a_snapshot_has_the_numbers_of_the_allocator(work: Work, record_property: Any) -> None:
    path, snapshot = (
        script(work, "snapshot", "torch.cuda.memory._record_memory_history()", end=SNAPSHOT),
        work.folder / "s.pickle",
    )
    said = work.succeeds([sys.executable, path, snapshot], 60)
    peak, allocated = json.loads(said.splitlines()[-1])
    (device,) = json.loads(work.harness(["report", snapshot, "--json"]))["devices"]
    record_property(
        "snapshot", {name: device[name] for name in ("peak_bytes", "allocated_bytes", "contradicting_blocks")}
    )
    record_property("text", work.harness(["report", snapshot]))
    assert (device["peak_bytes"], device["allocated_bytes"], device["contradicting_blocks"]) == (peak, allocated, 0)
    assert [line["line"] for line in device["growing"]] == [
        path.read_text().splitlines().index("    hidden = model[0](torch.rand(256, 64, device=device))") + 1
    ]


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("name", "inside", "verdict"),
    [
        ("grows", "kept.append(torch.ones(4 << 20, device=device))", "what its tensors hold grew by 16.8 MB a step"),
        ("peak", "hidden = torch.ones(200 << 20, device=device) if step == 20 else None", ": a peak that needed "),
    ],
)
def test_a_training_out_of_memory_says_what_used_it_up(
    work: Work, record_property: Any, name: str, inside: str, verdict: str
) -> None:
    job = trained(work, script(work, name, LITTLE, inside))
    said = " ".join(work.harness(["status", job["path"]]).split())
    record_property("said", said)
    assert job["state"] == "failed" and verdict in said
