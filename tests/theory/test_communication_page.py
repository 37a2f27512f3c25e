"""docs/communication.md: its pictures, its multiples of α/β, and the broadcast that it counted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from method_table import RANKS, methods

from harness.common.model.alpha_beta import bus_factor
from harness.theory.ring_or_tree import hop_of_ring
from tests.waiting import limit_s

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/communication.md").read_text(encoding="utf-8")


def test_the_table_has_a_section_for_each_of_its_methods() -> None:
    titles = "".join(line for line in PAGE.splitlines() if line.startswith("### "))
    assert [row.name for row in methods() if row.name not in titles] == []


def test_what_the_page_says_of_the_links_load() -> None:
    load = {row.name: sum(t.message_bytes * bus_factor(t.kind, RANKS) for t in row.sent) for row in methods()}
    assert load["ZeRO-1"] == load["ZeRO-2"] == pytest.approx(load["ZeRO-3"])
    assert 1.5 * load["DDP"] == pytest.approx(2 * load["ZeRO-2"]), "DDP reduces float32, and DeepSpeed bf16"


def test_the_multiples_of_alpha_over_beta() -> None:
    border = {ranks: hop_of_ring(1.0, 1.0, ranks).tree_up_to_bytes(ranks) or 0.0 for ranks in (2, 3, 4, 8, 16, 32, 64)}
    assert border[2] == border[3] == 0
    said = " | ".join(f"{size:.0f} · α/β" for ranks, size in border.items() if ranks > 3)
    assert f"| never | {said} |" in PAGE


COUNTED = """
import json, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.profiler import ProfilerActivity, profile
dist.init_process_group("gloo")
def broadcasts(work):
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        made = work()
    return made, sum(event.name == "gloo:broadcast" for event in recorded.events())
def model():
    return torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))
ddp, built = broadcasts(lambda: DDP(model()))
unsynchronised = broadcasts(lambda: DDP(model(), init_sync=False))[1]
steps = [broadcasts(lambda: ddp(torch.randn(4, 64)).sum().backward())[1] for _ in range(4)]
if dist.get_rank() == 0:
    print(json.dumps([built, unsynchronised, steps]))
dist.destroy_process_group()
"""


@pytest.mark.long  # changes with PyTorch's version only
@pytest.mark.train
def test_ddp_broadcasts_the_weights_when_it_is_built_and_never_in_a_later_step(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="DDP is PyTorch's")
    script = tmp_path / "counted.py"
    script.write_text(COUNTED)
    argv = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=limit_s(120))
    built, unsynchronised, steps = json.loads(next(x for x in done.stdout.splitlines() if x.startswith("[")))
    assert (built, unsynchronised, steps) == (2, 0, [0, 2, 0, 0]), (
        "init_sync=False: the broadcasts are those of weights"
    )
