"""Faults outside of the steps, in a training that knows nothing of them: the job's time has each in its part, on its
rank and at the line of the script. How near the seconds are is shown by benchmarks/bench_job_time.py."""

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

pytestmark = [pytest.mark.train, pytest.mark.long]  # bench_job_time.py has each of them many times

TRAINING = """
import json
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

def main():
    dist.init_process_group("gloo")
    with open("rows.json") as file:
        rows = torch.tensor(json.load(file))
    layers = [torch.nn.Linear(8, 64), torch.nn.Linear(64, 64), torch.nn.Linear(64, 1)]  # model
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for epoch in range(2):
        for batch in DataLoader(rows, batch_size=16):
            loss = model(batch).mean()
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
    """A fault as it is asked for, its part of the job's time, and the rank that has most of it (None: any)."""

    fault: str
    part: str
    rank: int | None = None


# Each takes so long that it is seen and is the largest of its part, also where another program takes the core for
# seconds.
CASES = (Case("slow-weights,ms=700", "model"), Case("slow-checkpoint,ms=2500", "checkpoints", 0))
IMPORT = "slow-import,s=4"


class Trained(NamedTuple):
    """Where the run's time went, the report, the faults that came, and the ranks' records for a failure."""

    job_time: Mapping[str, Any]
    report: str
    came: set[str]
    ends: str


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
    said = json.loads(process(folder, "report", "last", "--json").stdout)
    ends = "\n".join(
        text[-2000:] for path in [*JOB_TIME.paths(run), *METRICS.paths(run)] for text in [path.read_text()]
    )
    came = {line.fault for line in injected(Run(run).path)}
    return Trained(said["job_time"], process(folder, "report", "last", "--full").stdout, came, ends)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.fault.partition(",")[0])
def test_its_part_has_its_rank_and_line(trained: Trained, case: Case) -> None:
    assert case.fault.partition(",")[0] in trained.came
    (part,) = (part for part in trained.job_time["parts"] if part["part"] == case.part)
    assert part["duration_ns"] > 0, trained.ends
    assert case.rank is None or part["rank"] == case.rank, f"{part}\n{trained.ends}"
    marked = [number for number, text in enumerate(TRAINING.splitlines(), 1) if text.endswith(f"# {case.part}")]
    if marked:
        assert (Path(part["where"]["file"]).name, part["where"]["line"]) == ("train.py", *marked)
    assert re.search(rf"^ *{case.part} +{re.escape(duration(part['duration_ns']))} ", trained.report, re.M)


def test_the_import_has_its_package(trained: Trained) -> None:
    assert "slow-import" in trained.came
    (package,) = (each for each in trained.job_time["imports"] if each["package"] == "site_plugins")
    assert package["duration_ns"] > 0
    assert (Path(package["where"]["file"]).name, package["where"]["line"]) == ("train.py", 3)
    assert any(
        "site_plugins" in line and duration(package["duration_ns"]) in line for line in trained.report.splitlines()
    )


def test_the_parts_add_up_to_the_jobs_time(trained: Trained) -> None:
    assert sum(part["duration_ns"] for part in trained.job_time["parts"]) == trained.job_time["elapsed_ns"]


def test_nothing_of_the_harness_is_imported_for_a_fault_that_takes_long(trained: Trained) -> None:
    assert "transformers" not in {each["package"] for each in trained.job_time["imports"]}
