"""Faults outside of the steps, in a training that knows nothing of them: the job's time has each in its part, with the
seconds that it took, on its rank and at the line of the script."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("torch", reason="the script needs PyTorch")

from harness.common.format import duration
from harness.common.run_files import JOB_TIME, METRICS
from harness.run import Run
from harness.run.mystery import injected
from tests.launch.own_shared import process

pytestmark = pytest.mark.train

TRAINING = """
import json
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

def main():
    dist.init_process_group("gloo")  # meeting
    with open("rows.json") as file:
        rows = torch.tensor(json.load(file))  # data
    layers = [torch.nn.Linear(8, 64), torch.nn.Linear(64, 64), torch.nn.Linear(64, 1)]  # model
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for epoch in range(2):
        for batch in DataLoader(rows, batch_size=16):
            loss = model(batch).mean()  # first step
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        if dist.get_rank() == 0:
            torch.save(model.state_dict(), "checkpoint.pt")  # checkpoints
        dist.barrier()
    dist.destroy_process_group()

main()
"""


class Case(NamedTuple):
    """A fault as it is asked for, its part of the job's time, the rank that has most of it (None: any), and what the
    part may take or lack without it."""

    fault: str
    part: str
    rank: int | None = None
    usual_ns: int = 200_000_000


CASES = (
    Case("late-start,s=6,rank=1", "meeting", 1, 1_000_000_000),  # ranks do not start at the same moment
    Case("cold-cache,ms=1500", "data"),
    Case("slow-weights,ms=250", "model"),
    Case("long-compile,s=2", "first step"),
    Case("slow-checkpoint,ms=1000", "checkpoints", 0),
    Case("slow-tail,s=3,rank=1", "tail", 1),
)
IMPORT = "slow-import,s=2"
# On a busy machine the observer sees up to so late that a rank is in another part; until then its time is "other".
SEEN_LATE_NS = 500_000_000


class Trained(NamedTuple):
    """Where the run's time went, what the faults took from the rank with most of it, the report, and the records."""

    job_time: Mapping[str, Any]
    took_ns: Mapping[str, int]
    report: str
    ends: str  # of the ranks' records, for a failure


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """One training with all of them, each in another part."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "train.py").write_text(TRAINING, encoding="utf-8")
    (folder / "rows.json").write_text(json.dumps([[0.5] * 8] * 320), encoding="utf-8")
    faults = [word for text in (IMPORT, *(case.fault for case in CASES)) for word in ("--fault", text)]
    done = process(folder, "run", "-g", "2", "--no-profile", *faults, "--", "train.py")
    assert done.returncode == 0, done.stderr[-3000:]
    (run,) = (folder / "runs/own/profiler").glob("[!.]*")
    took: dict[tuple[str, int], int] = {}
    for line in injected(Run(run).path):
        took[line.fault, line.rank] = took.get((line.fault, line.rank), 0) + line.ns
    longest = {name: max(ns for (each, _), ns in took.items() if each == name) for name, _ in took}
    said = json.loads(process(folder, "report", "last", "--json").stdout)
    ends = "\n".join(
        text[-2000:] for path in [*JOB_TIME.paths(run), *METRICS.paths(run)] for text in [path.read_text()]
    )
    return Trained(said["job_time"], longest, process(folder, "report", "last", "--full").stdout, ends)


def agrees(measured_ns: int, took_ns: int, usual_ns: int = 200_000_000) -> bool:
    """Within 10 %, or within what the part takes without the fault."""
    return abs(measured_ns - took_ns) <= max(0.1 * took_ns, usual_ns)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.fault.partition(",")[0])
def test_its_part_has_its_seconds_rank_and_line(trained: Trained, case: Case) -> None:
    parts = {part["part"]: part for part in trained.job_time["parts"]}
    part, took_ns = parts[case.part], trained.took_ns[case.fault.partition(",")[0]]
    seen_late_ns = max(0, min(took_ns - part["duration_ns"], parts["other"]["duration_ns"], SEEN_LATE_NS))
    assert agrees(part["duration_ns"] + seen_late_ns, took_ns, case.usual_ns), f"{part}\n{trained.ends}"
    assert case.rank is None or part["rank"] == case.rank
    marked = [number for number, text in enumerate(TRAINING.splitlines(), 1) if text.endswith(f"# {case.part}")]
    if marked:
        assert (Path(part["where"]["file"]).name, part["where"]["line"]) == ("train.py", *marked)
    assert re.search(rf"^ *{case.part} +{re.escape(duration(part['duration_ns']))} ", trained.report, re.M)


def test_the_import_has_its_package_and_seconds(trained: Trained) -> None:
    (package,) = (each for each in trained.job_time["imports"] if each["package"] == "site_plugins")
    assert agrees(package["duration_ns"], trained.took_ns["slow-import"]), package
    assert (Path(package["where"]["file"]).name, package["where"]["line"]) == ("train.py", 3)
    assert any(
        "site_plugins" in line and duration(package["duration_ns"]) in line for line in trained.report.splitlines()
    )


def test_the_parts_add_up_to_the_jobs_time(trained: Trained) -> None:
    assert sum(part["duration_ns"] for part in trained.job_time["parts"]) == trained.job_time["elapsed_ns"]


def test_nothing_of_the_harness_is_imported_for_a_fault_that_takes_long(trained: Trained) -> None:
    assert "transformers" not in {each["package"] for each in trained.job_time["imports"]}
