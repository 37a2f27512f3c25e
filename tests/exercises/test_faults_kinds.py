"""What the single faults do, beyond taking time: to files, processes, cores, messages, batches and settings."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("accelerate", reason="the training scripts need their libraries")

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from exercises.exercise_1_DDP import preparation as ddp
from exercises.utils import models
from exercises.utils.data import IGNORED
from exercises.utils.faults import settings, slow
from exercises.utils.faults.inject import injected
from exercises.utils.faults.moments import Moments
from exercises.utils.faults.target import FaultTarget
from harness.common.errors import RequestError
from harness.common.faults import parse_fault
from harness.observe.metrics import SCHEDULER, JsonLines
from tests.exercises.launching import ROOT, wait_for
from tests.exercises.small_training import Tiny, arguments, prepared, train
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


def test_only_the_asked_rank_writes_a_checkpoint(tmp_path: Path, two_ranks: None) -> None:
    assert train(tmp_path, "checkpoint", steps=1).lines == []


def test_gc_collects_a_heap_of_the_asked_size(tmp_path: Path) -> None:
    collected: list[int] = []

    def count(phase: str, info: dict[str, int]) -> None:
        if phase == "stop" and info["generation"] == 2:
            collected.append(len(gc.get_objects()))

    gc.collect()
    before = len(gc.get_objects())
    gc.callbacks.append(count)
    try:
        seen = train(tmp_path, "gc,objects=50,every=3", steps=6)
    finally:
        gc.callbacks.remove(count)
    assert [line["step"] for line in seen.lines] == [2, 5]
    assert len(collected) >= 2
    assert all(objects > before + 90_000 for objects in collected[-2:]), "a mapping and a list for each object"
    assert len(gc.get_objects()) < before + 50_000


def children() -> list[int]:
    found = Path("/proc/self/task").glob("*/children")
    return [int(pid) for path in found for pid in path.read_text().split()]


def test_neighbours_burn_the_cores_of_their_rank_until_it_ends(tmp_path: Path) -> None:
    before = set(children())
    during: list[int] = []
    seen = train(
        tmp_path, "noisy-neighbour,procs=2", "host-stall,ms=20", steps=3,
        after_step=lambda _step: during.extend(set(children()) - before),
    )  # fmt: skip
    assert len(set(during)) == 2
    assert not set(during) & set(children())
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
    pid = int(parent.stdout.readline())
    try:
        wait_for(lambda: _cpu_ticks(pid) > 2, "the burner's work", parent)
        assert os.sched_getaffinity(pid) == {min(os.sched_getaffinity(0))}
        assert os.getpriority(os.PRIO_PROCESS, pid) == os.getpriority(os.PRIO_PROCESS, 0)
    finally:
        parent.send_signal(signal.SIGKILL)
    parent.wait(limit_s())
    try:
        wait_until(lambda: not _runs(pid), "the burner's end, whose parent was killed")
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _fields(pid: int) -> list[str]:
    """Of /proc/<pid>/stat, from the state on; empty where there is no such process."""
    path = Path(f"/proc/{pid}/stat")
    try:
        return path.read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _runs(pid: int) -> bool:
    return bool(_fields(pid)) and _fields(pid)[0] not in "ZX"


def _cpu_ticks(pid: int) -> int:
    return int(_fields(pid)[11])


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


def test_sync_waits_after_each_layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[int] = []

    def wait() -> None:
        time.sleep(0.002)  # so long takes what the fault is to count
        waits.append(1)

    monkeypatch.setattr(torch.cuda, "synchronize", wait)
    model = Tiny()
    with ExitStack() as until:
        given = target(tmp_path, model, until)
        slow.synchronise(parse_fault("sync"), given)
        for _ in range(2):
            given.moments.begin()
            model(torch.ones(4, 8))
    assert len(waits) == 2 * len(model.layers)
    lines = [json.loads(line) for line in (tmp_path / "lines.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1]
    assert all(line["ns"] >= 4_000_000 for line in lines)
    model(torch.ones(4, 8))
    assert len(waits) == 2 * len(model.layers), "no hook is left"


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
    gradients()
    assert sizes[-1] == 3, "the model computes as before"


def test_long_sequences_repeat_what_the_rank_reads(tmp_path: Path, two_ranks: None) -> None:
    for rank, length in ((1, 12), (0, 4)):
        training = prepared(arguments(tmp_path, f"long-sequences,times=3,rank={rank}"), steps=1)
        batch = {"input_ids": torch.arange(8).reshape(2, 4), "labels": torch.ones(2, 4)}
        with injected(replace(training, loader=[batch]), training.model, training.optimizer) as faulty:
            (read,) = faulty.loader
        assert {name: tuple(tokens.shape) for name, tokens in read.items()} == {
            "input_ids": (2, length),
            "labels": (2, length),
        }
        assert read["input_ids"][0, :4].tolist() == [0, 1, 2, 3]


def test_deepspeed_gets_the_bucket(two_ranks: None) -> None:
    from exercises.exercise_2_DeepSpeed import zero

    config = {"zero_optimization": {"stage": 2, "reduce_bucket_size": 200_000}, "bf16": {"enabled": True}}
    words = [
        "--run-dir",
        "r",
        "--model",
        "m",
        "--mixed-precision",
        "--slow-dataloading",
        "--fault",
        "small-buckets,kb=10",
    ]
    small = ddp.parse(words)
    filled = zero.fill_in(config, small)
    assert filled["zero_optimization"] == {"stage": 2, "reduce_bucket_size": 5120}, "of two bytes each"
    assert config["zero_optimization"] == {"stage": 2, "reduce_bucket_size": 200_000}, "what was read stays as it is"


def test_settings_without_the_fault_are_the_usual_ones() -> None:
    assert settings.bucket_bytes([], 7) == 7
    assert settings.bucket_bytes([parse_fault("small-buckets,kb=2")], None) == 2048
    assert settings.ddp_buckets([parse_fault("small-buckets,kb=512")]) == {"bucket_cap_mb": 0.5}
    assert settings.ddp_buckets([]) == {}
    assert (settings.pins_batches([], True), settings.pins_batches([], False)) == (True, False)
    assert settings.pins_batches([parse_fault("pageable")], True) is False
    assert settings.uneven_layers([], 4, 2) == {}


def test_each_other_stage_gives_layers_to_one_end_and_keeps_one() -> None:
    last, two = parse_fault("uneven-stages"), parse_fault("uneven-stages,stage=first,layers=2")
    assert settings.uneven_layers([last], 12, 4) == {"num_layers_in_last_pipeline_stage": 6}
    assert settings.uneven_layers([two], 12, 4) == {"num_layers_in_first_pipeline_stage": 9}
    with pytest.raises(
        RequestError, match="each of the 2 stages has 2 of the 4 layers and must keep one: the nearest is layers=1"
    ):
        settings.uneven_layers([two], 4, 2)
