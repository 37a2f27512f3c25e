"""What the single faults do, beyond taking time: to files, processes, cores, messages, batches and settings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("accelerate", reason="the training scripts need their libraries")

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from exercises.utils import models
from exercises.utils.data import IGNORED
from exercises.utils.faults import settings, slow
from exercises.utils.faults.inject import injected
from exercises.utils.faults.moments import Moments
from exercises.utils.faults.target import FaultTarget
from harness.common.errors import RequestError
from harness.common.faults.fault import Fault, parse_fault
from harness.observe.metrics import SCHEDULER, JsonLines
from tests.exercises.launching import ROOT
from tests.exercises.small_training import Tiny, arguments, prepared, train
from tests.faults.processes import is_alive
from tests.waiting import limit_s, wait_until


@pytest.fixture
def two_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a launcher sets it for the second of two ranks."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")


@pytest.fixture
def group(two_ranks: None) -> Iterator[None]:
    """A process group, of this process alone."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def target(folder: Path, model: Any, until: ExitStack) -> FaultTarget:
    """What an injector gets, where a training on this machine would refuse the fault."""
    lines = JsonLines(folder / "lines.jsonl")
    return FaultTarget(0, torch.device("cpu"), folder, [model], Moments(), lines, until)


def test_a_checkpoint_is_whole_is_replaced_and_is_gone_afterwards(tmp_path: Path) -> None:
    path, written = tmp_path / "checkpoint-rank0.pt", []

    def look(step: int) -> None:
        written.append([each.flatten()[0].item() for each in torch.load(path)] if path.exists() else None)

    seen = train(tmp_path, "checkpoint,every=2", steps=4, after_step=look)
    assert written[0] is None
    assert written[1] == written[2] != written[3], "of the steps 1 and 3, in which the parameters differ"
    assert [line["step"] for line in seen.lines] == [1, 3]
    assert all(0 < line["ns"] <= seen.phase("optimizer")[line["step"]] for line in seen.lines)
    assert [each.name for each in tmp_path.iterdir()] == ["faults"]


def test_neighbours_burn_the_cores_of_their_rank_until_it_ends(tmp_path: Path) -> None:
    own = psutil.Process()
    before = set(own.children())
    during: set[psutil.Process] = set()
    seen = train(
        tmp_path, "noisy-neighbour,procs=2", "host-stall,ms=20", steps=3,
        after_step=lambda _step: during.update(set(own.children()) - before),
    )  # fmt: skip
    assert len(during) == 2
    assert not during & set(own.children())
    waits = seen.of("noisy-neighbour")
    assert [line["step"] for line in waits] == ([0, 1, 2] if SCHEDULER.exists() else [])
    assert all(line["ns"] >= 0 for line in waits)


def test_a_side_process_runs_on_the_same_cores_at_the_same_priority_and_dies_with_a_killed_parent(
    tmp_path: Path,
) -> None:
    code = (
        "import os, time; from exercises.utils.faults.machine import SideProcess\n"
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "print(SideProcess('burner').pid, flush=True); time.sleep(600)"
    )
    pipe = subprocess.PIPE
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=pipe, stderr=pipe, text=True)
    assert parent.stdout is not None
    burner = psutil.Process(int(parent.stdout.readline()))
    try:
        wait_until(lambda: burner.cpu_times().user > 0.02, "the burner's work")
        assert burner.cpu_affinity() == [min(os.sched_getaffinity(0))]
        assert burner.nice() == psutil.Process().nice()
    finally:
        parent.kill()
    parent.wait(limit_s())
    wait_until(lambda: not is_alive(burner.pid), "the burner's end, whose parent was killed")


def test_pinned_together_leaves_one_core_for_every_thread_while_it_trains(tmp_path: Path) -> None:
    before = os.sched_getaffinity(0)
    during: list[set[int]] = []

    def look(step: int) -> None:
        during.extend(os.sched_getaffinity(int(path.name)) for path in Path("/proc/self/task").iterdir())

    train(tmp_path, "pinned-together", steps=1, after_step=look)
    assert during and all(cores == {min(before)} for cores in during)
    assert os.sched_getaffinity(0) == before


def test_a_slow_link_delays_every_message_by_latency_and_size(tmp_path: Path, group: None) -> None:
    usual = vars(dist.ProcessGroup)["allreduce"]
    training = prepared(arguments(tmp_path, "slow-link,ms=5,mbps=1,rank=1"), steps=2)
    with injected(training, training.model, training.optimizer) as faulty:
        for batch in faulty.loader:
            begin_ns = time.perf_counter_ns()
            dist.all_reduce(torch.ones(250))  # 1000 bytes at 1 Mbit/s: 8 ms
            dist.all_gather_single(torch.empty(1), torch.ones(1))
            took_ns = time.perf_counter_ns() - begin_ns
            assert faulty.model(batch).loss is not None
    lines = [json.loads(line) for line in (tmp_path / "faults" / "rank1.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1]
    assert all(line["ns"] >= 18_000_000 for line in lines)
    assert lines[1]["ns"] <= took_ns
    assert vars(dist.ProcessGroup)["allreduce"] is usual


def test_a_slow_link_delays_the_gradients_of_ddp_and_keeps_them_as_they_are(tmp_path: Path, group: None) -> None:
    plain, delayed = (torch.nn.parallel.DistributedDataParallel(Tiny()) for _ in range(2))
    delayed.module.load_state_dict(plain.module.state_dict())
    with ExitStack() as until:
        given = target(tmp_path, delayed, until)
        slow.slow_link(parse_fault("slow-link,ms=5,rank=all"), given)
        given.moments.begin()
        for model in (plain, delayed):
            model(torch.ones(4, 8)).loss.backward()
    (line,) = (tmp_path / "lines.jsonl").read_text().splitlines()
    assert json.loads(line)["ns"] >= 5_000_000
    for one, other in zip(plain.parameters(), delayed.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)


def test_the_delay_is_latency_plus_bytes_over_bandwidth() -> None:
    assert slow.delay_ns(parse_fault("slow-link,ms=2,mbps=100,rank=0"), 1_000_000) == 82_000_000
    assert slow.delay_ns(parse_fault("slow-link,ms=2,rank=0"), 1_000_000) == 2_000_000
    assert slow.bytes_of([torch.ones(3), [torch.ones(2, 2, dtype=torch.float64)]]) == 44


def test_tiny_kernels_compute_the_same_sample_by_sample(tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = models.build_model(models.load_model_config(ROOT / "configs/models/tiny-llama.yaml"), None, False)
    batch = {"input_ids": torch.randint(0, 1024, (3, 16)), "labels": torch.randint(0, 1024, (3, 16))}
    batch["labels"][0, :10] = IGNORED  # the samples count differently
    sizes: list[int] = []
    model.model.register_forward_hook(lambda _m, _i, output: sizes.append(len(output.last_hidden_state)))

    def gradients() -> tuple[float, list[torch.Tensor]]:
        model.zero_grad()
        loss = model(**batch).loss
        loss.backward()
        return loss.item(), [parameter.grad.clone() for parameter in model.parameters()]

    loss, usual = gradients()
    with ExitStack() as until:
        slow.split_kernels(parse_fault("tiny-kernels"), target(tmp_path, model, until))
        small_loss, small = gradients()
    assert sizes == [3, 1, 1, 1]
    assert small_loss == pytest.approx(loss, rel=1e-6)
    for one, other in zip(usual, small, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-6)


def test_long_sequences_repeat_what_the_rank_reads(tmp_path: Path, two_ranks: None) -> None:
    for rank, length in ((1, 12), (0, 4)):
        training = prepared(arguments(tmp_path, f"long-sequences,times=3,rank={rank}"), steps=1)
        batch = {"input_ids": torch.arange(8).reshape(2, 4), "labels": torch.ones(2, 4)}
        with injected(replace(training, loader=[batch]), training.model, training.optimizer) as faulty:
            (read,) = faulty.loader
        assert [tuple(tokens.shape) for tokens in read.values()] == [(2, length)] * 2
        assert read["input_ids"][0, :4].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("setting", "fault", "usual", "with_fault"),
    [
        (lambda faults: settings.bucket_bytes(faults, 7), "small-buckets,kb=2", 7, 2048),
        (settings.ddp_buckets, "small-buckets,kb=512", {}, {"bucket_cap_mb": 0.5}),
        (lambda faults: settings.pins_batches(faults, True), "pageable", True, False),
        (lambda faults: settings.uneven_layers(faults, 12, 4), "uneven-stages", {},
         {"num_layers_in_last_pipeline_stage": 6}),
        (lambda faults: settings.uneven_layers(faults, 12, 4), "uneven-stages,stage=first,layers=2", {},
         {"num_layers_in_first_pipeline_stage": 9}),
    ],
)  # fmt: skip
def test_a_fault_changes_a_setting_of_the_training(
    setting: Callable[[list[Fault]], object], fault: str, usual: object, with_fault: object
) -> None:
    assert (setting([]), setting([parse_fault(fault)])) == (usual, with_fault)


def test_each_stage_keeps_a_layer() -> None:
    sentence = "each of the 2 stages has 2 of the 4 layers and must keep one: the nearest is layers=1"
    with pytest.raises(RequestError, match=sentence):
        settings.uneven_layers([parse_fault("uneven-stages,stage=first,layers=2")], 4, 2)
