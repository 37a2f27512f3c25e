"""What a data-parallel step sends is compared with what its model needs: one reduction of its gradients per step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from harness.analysis.job.summarise import summarise_job
from harness.analysis.process.kinds import load_rules
from harness.analysis.summary import RankTraining, Summary, Window
from harness.explain.messages import advice_of, excess, largest, named, why_not_split, why_single
from harness.traces.trace import HostKind
from tests.analysis.measuring import measure_trace
from tests.synthetic.columns import MAIN, Made

RULES = load_rules()
MB, MS = 1 << 20, 1_000_000
GRADIENTS = (("all_reduce", 25 * MB), ("all_reduce", 3 * MB))
Messages = Sequence[tuple[str, int]]  # kind, bytes; -1: not recorded


class Step:
    """Writes a rank's step: passes with work and messages, of 2 ms each, all of them exposed."""

    def __init__(self, made: Made, begin: int) -> None:
        self.made, self.now = made, begin

    def part(self, name: str, messages: Messages = (), group: str = "0") -> Step:
        begin = self.now
        self.made.event(self.now, self.now + 10 * MS, launch_ns=self.now)
        self.now += 10 * MS
        for kind, size in messages:
            self.made.collective(self.now, self.now + 2 * MS, kind, size=size, group=group, members=2)
            self.now += 2 * MS
        if name:
            self.made.range(begin, self.now, name)
        return self


def job(write: Callable[[Step], object], parameters: int | None = None, ranks: int = 2) -> Summary:
    """The first of two ranks, or both, with five steps."""
    parts = []
    for rank in range(ranks):
        made = Made(rank=rank, world_size=2, path=f"rank{rank}.json", host="node", clock="unix", backend="nccl")
        now = 0
        for number in range(5):
            step = Step(made, now)
            write(step)
            made.step(now, step.now, number)
            now = step.now
        parts += measure_trace(made.trace(), Window.STEPS, RULES)
    training = [RankTraining(rank=rank, parameters=parameters) for rank in range(ranks)]
    return summarise_job(parts).model_copy(update={"training": training})


def plain(step: Step) -> Step:
    return step.part("forward").part("backward", GRADIENTS).part("Optimizer.step#AdamW.step")


def test_a_rows_bytes_passes_and_exposed_time_are_those_of_a_step() -> None:
    found = job(lambda step: plain(step).part("", [("all_reduce", 16 * MB)]))
    rows = {(row.rank, row.phase, row.bytes): row for row in found.traffic}
    assert len(rows) == 6
    row = rows[1, "backward", 25 * MB]
    assert (row.kind, row.group, row.group_size) == ("all_reduce", "0", 2)
    assert (row.count_per_step, row.pass_count_per_step, row.used_pass_count_per_step) == (1, 1, 1)
    assert (row.step_duration_ns, row.step_exposed_ns) == (2 * MS, 2 * MS)
    assert rows[0, "other", 16 * MB].used_pass_count_per_step == 0


def test_one_reduction_of_the_gradients_per_step_is_what_a_model_needs() -> None:
    assert excess(job(plain)) is None
    assert excess(job(plain, parameters=7 * MB)) is None


def test_gradients_that_are_reduced_in_every_micro_batch() -> None:
    def write(step: Step) -> None:
        for _ in range(4):
            step.part("forward").part("backward", GRADIENTS)

    found = excess(job(write))
    assert found is not None
    assert found.what == (
        "Gradients are reduced in every micro-batch: 4 times per step, 29.4 MB each time (all-reduce, 2 ranks, "
        "7.34 GB/s)."
    )
    assert found.avoidable_ns == pytest.approx(3 * 2 * 2 * MS)
    assert "no_sync" in found.advice


def test_micro_batches_that_are_not_reduced_and_layers_with_a_range_each_are_no_excess() -> None:
    def accumulated(step: Step) -> None:
        for number in range(4):
            step.part("forward").part("backward", GRADIENTS if number == 3 else ())

    def sharded(step: Step) -> None:
        for name, kind in (("pre_forward (layer)", "all_gather"), ("layer.backward", "reduce_scatter")):
            for _ in range(4):
                step.part(name, [(kind, 5 * MB)])

    assert excess(job(accumulated)) is None
    assert excess(job(sharded)) is None


def test_tensor_parallelism_reduces_activations_in_every_micro_batch_because_it_must() -> None:
    def write(step: Step) -> None:
        for _ in range(4):
            step.part("forward", [("all_reduce", 2 * MB)], "tp").part("backward", [("all_reduce", 2 * MB)], "tp")

    assert excess(job(write)) is None


@pytest.mark.parametrize("parameters", [None, 7 * MB])
def test_a_further_reduction_beside_the_gradients(parameters: int | None) -> None:
    found = excess(job(lambda step: plain(step).part("", [("all_reduce", 16 * MB)]), parameters))
    assert found is not None
    assert found.what == (
        "An additional all-reduce of 16.8 MB per step comes beside the gradients' 29.4 MB, exposed for 2.00 ms (2 "
        "ranks, 8.39 GB/s)."
    )


def test_a_further_reduction_in_backward_is_known_by_the_models_size() -> None:
    def write(step: Step) -> None:
        step.part("forward").part("backward", (*GRADIENTS, ("all_reduce", 16 * MB)))

    assert excess(job(write)) is None  # a bucket like the others, as far as is known
    found = excess(job(write, parameters=7 * MB))
    assert found is not None and "all-reduce of 16.8 MB per step comes beside the gradients' 29.4 MB" in found.what


def test_a_reduction_without_a_recorded_size_is_told_with_what_records_it() -> None:
    found = excess(job(lambda step: plain(step).part("", [("all_reduce", -1)])))
    assert found is not None and "its size was not recorded: record_shapes=True" in found.what


@pytest.mark.parametrize(
    ("size", "said", "each"), [(4, "of 4 B", "2.00 ms each"), (-1, "(their size was not recorded)", "rate not known")]
)
def test_many_small_reductions_one_after_the_other(size: int, said: str, each: str) -> None:
    found = excess(job(lambda step: plain(step).part("", [("all_reduce", size)] * 40)))
    assert found is not None
    assert found.what == (f"40 all-reduces {said} are sent in each step, exposed for 80.0 ms (2 ranks, {each}).")
    assert found.avoidable_ns == pytest.approx(39 * 2 * MS)


@pytest.mark.parametrize(("phase", "also"), [("forward", ""), ("backward", ", also when it is recomputed")])
def test_buffers_that_ddp_broadcasts(phase: str, also: str) -> None:
    def write(step: Step) -> None:
        step.part("forward", [("broadcast", 16 * MB)])
        step.part("backward", (*GRADIENTS, ("broadcast", 16 * MB)) if phase == "backward" else GRADIENTS)

    found = excess(job(write))
    assert found is not None
    assert found.what.startswith(f"DDP broadcasts the model's buffers in each forward pass{also}, ")


def test_waiting_for_a_late_rank_is_no_excess_of_the_collective_in_which_it_is_waited_for() -> None:
    found = job(lambda step: plain(step).part("", [("all_reduce", 2 * MB)]))
    late = [
        row.model_copy(update={"step_exposed_ns": 1000 if row.rank else row.step_exposed_ns}) for row in found.traffic
    ]
    assert excess(found) is not None
    assert excess(found.model_copy(update={"traffic": late})) is None


def test_of_one_rank_alone_it_is_said_what_would_split_waiting_from_transfer() -> None:
    assert why_not_split(job(plain)) is None
    assert why_not_split(job(lambda step: step.part("forward"), ranks=1)) is None
    assert why_not_split(job(plain, ranks=1)) == (
        "Only rank 0 of 2 was read, so its communication cannot be split into waiting for other ranks and transfer: "
        "the trace of any other rank of the group shows it."
    )


def test_on_a_gpu_the_thread_of_autograd_shows_the_backward_pass() -> None:
    made, autograd = Made(), 77
    for step in range(3):
        begin = 100 * step
        for at, thread in ((5, MAIN), (15, MAIN), (30, autograd), (50, autograd), (80, MAIN)):
            made.call(begin + at, begin + at + 2, "cudaLaunchKernel", thread=thread)
            made.event(begin + at + 2, begin + at + 9, launch_ns=begin + at, launch_thread=thread)
        made.range(begin + 78, begin + 95, "Optimizer.step#SGD.step")
        made.step(begin, begin + 100, step)
    made.host(30, 60, "autograd::engine::evaluate_function: MmBackward0", HostKind.OPERATOR, thread=autograd)
    (part,) = measure_trace(made.trace(), Window.STEPS, RULES)
    assert {phase: count for phase, (count, *_) in part.phases.items()} == {"forward": 6, "backward": 6, "optimizer": 3}


def one_large(kind: str, size: int, late_ns: int = 0, steps: int = 5) -> Summary:
    """A collective of 100 ms in the range Head of each step, beside small all-reduces; rank 1 enters it late."""
    parts = []
    for rank in range(2):
        made = Made(rank=rank, world_size=2, path=f"rank{rank}.json", host="node", clock="unix", backend="nccl")
        for number in range(steps):
            begin = number * 200 * MS
            made.event(begin, begin + 40 * MS, launch_ns=begin)
            made.collective(begin + 40 * MS, begin + 42 * MS, "all_reduce", size=4 * MB, members=2)
            enter = begin + 50 * MS + rank * late_ns
            made.range(begin + 45 * MS, begin + 49 * MS, "Head")
            made.collective(enter, begin + 150 * MS, kind, size=size, members=2, launch_ns=begin + 46 * MS)
            made.range(begin, begin + 160 * MS, "forward")
            made.step(begin, begin + 160 * MS, number)
        parts += measure_trace(made.trace(), Window.STEPS, RULES)
    return summarise_job(parts)


def test_one_large_message_is_told_with_its_kind_size_group_place_and_rate() -> None:
    s = one_large("all_gather", 250 * MB)
    found = largest(s)
    assert found is not None and found.is_single
    assert (found.row.range, found.row.phase, found.row.count_per_step) == ("Head", "forward", 1)
    assert found.row.exposed_ns == found.row.transfer_ns == 5 * 100 * MS
    assert found.share == pytest.approx(100 / 102)
    assert named(s) == (
        "Most of the exposed communication is one all-gather of 262 MB among 2 ranks inside Head per step, exposed for "
        "100 ms at 2.62 GB/s (bus bandwidth 1.31 GB/s)."
    )
    assert why_single(s) == ("The ranks enter it within 0 ns of each other, so its time is transfer and not waiting.")
    assert "keep the output sharded" in advice_of(s) and "fewer, larger" not in advice_of(s)


def test_of_one_message_whose_last_rank_is_late_the_waiting_is_told() -> None:
    s = one_large("all_gather", 250 * MB, late_ns=80 * MS)
    found = largest(s)
    assert found is not None and found.row.exposed_ns == 5 * 20 * MS  # what the last rank has
    assert found.waiting == pytest.approx(80 / 120)
    assert why_single(s) == "The last rank, most often rank 1, enters it 80.0 ms after the first one on average."
    assert advice_of(s) == "find the work of rank 1 before this all-gather"


def test_of_messages_without_a_size_the_long_one_is_apart_and_what_records_it_is_told() -> None:
    s = one_large("all_reduce", -1)
    found = largest(s)
    assert found is not None and found.row.bytes is None and found.row.range == "Head"
    assert "torch.profiler records it with record_shapes=True" in named(s)


def test_many_messages_of_one_kind_are_no_single_one() -> None:
    s = job(lambda step: step.part("forward", [("all_gather", 4 * MB)] * 12))
    assert named(s) == (
        "Most of the exposed communication is 12 all-gathers of 4.19 MB among 2 ranks in forward per step, exposed for "
        "24.0 ms at 2.1 GB/s (bus bandwidth 1.05 GB/s)."
    )
    assert advice_of(s).startswith("send fewer bytes, or give them more work to hide behind")
    assert advice_of(job(lambda step: step.part("forward", [("all_gather", MB // 2)] * 12))) == ""


@pytest.mark.parametrize(
    ("kind", "size", "said"),
    [
        ("all_reduce", 1 << 10, "do it in fewer steps"),
        ("broadcast", 4 * MB, "once before the steps"),
        ("all_to_all", 4 * MB, "async_op=True"),
    ],
)
def test_the_advice_fits_the_message(kind: str, size: int, said: str) -> None:
    assert said in advice_of(one_large(kind, size))
