"""What a data-parallel step sends is compared with what its model needs: one reduction of its gradients per step."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from harness.analysis.summary import Summary
from harness.explain.messages import advice_of, excess, largest, named, why_not_split, why_single
from harness.traces.trace import HostKind
from tests.analysis.measuring import a_rank, part_of, summary_of
from tests.synthetic.columns import MAIN, Made

MB, MS = 1 << 20, 1_000_000
GRADIENTS = (("all_reduce", 25 * MB), ("all_reduce", 3 * MB))
Messages = Sequence[tuple[str, int]]  # kind, bytes; -1: not recorded
Pass = tuple[str, Messages]  # its name, and what is sent after its work
Passes = Sequence[Pass]
FORWARD: Pass = ("forward", ())
BACKWARD: Pass = ("backward", ())
REDUCED: Pass = ("backward", GRADIENTS)
PLAIN: Passes = [FORWARD, REDUCED, ("Optimizer.step#AdamW.step", ())]


def job(passes: Passes, ranks: int = 2, group: str = "0") -> Summary:
    """The first of two ranks, or both, with five steps of these passes: work of 10 ms, then messages of 2 ms each,
    which are all exposed."""
    every = [a_rank(rank, backend="nccl") for rank in range(ranks)]
    for made in every:
        now = 0
        for number in range(5):
            start = now
            for name, messages in passes:
                begin, now = now, now + 10 * MS
                made.event(begin, now, launch_ns=begin)
                for kind, size in messages:
                    made.collective(now, now + 2 * MS, kind, size=size, group=group, members=2)
                    now += 2 * MS
                if name:
                    made.range(begin, now, name)
            made.step(start, now, number)
    return summary_of(*every)


def test_a_rows_bytes_passes_and_exposed_time_are_those_of_a_step() -> None:
    found = job(beside(("all_reduce", 16 * MB)))
    rows = {(row.rank, row.phase, row.bytes): row for row in found.traffic}
    assert len(rows) == 6
    row = rows[1, "backward", 25 * MB]
    assert (row.kind, row.group, row.group_size) == ("all_reduce", "0", 2)
    assert (row.count_per_step, row.pass_count_per_step, row.used_pass_count_per_step) == (1, 1, 1)
    assert (row.step_duration_ns, row.step_exposed_ns) == (2 * MS, 2 * MS)
    assert rows[0, "other", 16 * MB].used_pass_count_per_step == 0


EACH_TIME: Passes = [FORWARD, REDUCED] * 4
BUFFERS: Messages = [("broadcast", 16 * MB)]  # of the model, by DDP


def beside(*messages: tuple[str, int]) -> Passes:
    """A plain step with further messages outside of its passes."""
    return [*PLAIN, ("", messages)]


FURTHER = (
    "An additional all-reduce of 16.8 MB per step comes beside the gradients' 29.4 MB, exposed for 2.00 ms (2 ranks, "
    "8.39 GB/s)."
)
SMALL = "40 all-reduces {} are sent in each step, exposed for 80.0 ms (2 ranks, {})."
EXCESS: list[tuple[Passes, str, str | None, float | None]] = [
    (PLAIN, "0", None, None),  # one reduction of the gradients per step is what a model needs
    ([FORWARD, BACKWARD] * 3 + [FORWARD, REDUCED], "0", None, None),  # of four micro-batches the last one's are reduced
    # layers with a range each
    ([("pre_forward (layer)", [("all_gather", 5 * MB)])] * 4 + [("layer.backward", [("reduce_scatter", 5 * MB)])] * 4,
     "0", None, None),
    # tensor parallelism reduces activations in every micro-batch because it must
    ([("forward", [("all_reduce", 2 * MB)]), ("backward", [("all_reduce", 2 * MB)])] * 4, "tp", None, None),
    # a bucket like the others, as far as is known
    ([FORWARD, ("backward", (*GRADIENTS, ("all_reduce", 16 * MB)))], "0", None, None),
    (EACH_TIME, "0",
     "Gradients are reduced in every micro-batch: 4 times per step, 29.4 MB each time (all-reduce, 2 ranks, "
     "7.34 GB/s).", 3 * 2 * 2 * MS),
    (beside(("all_reduce", 16 * MB)), "0", FURTHER, None),
    (beside(("all_reduce", -1)), "0", "its size was not recorded: record_shapes=True", None),
    (beside(*[("all_reduce", 4)] * 40), "0", SMALL.format("of 4 B", "2.00 ms each"), 39 * 2 * MS),
    (beside(*[("all_reduce", -1)] * 40), "0", SMALL.format("(their size was not recorded)", "rate not known"),
     39 * 2 * MS),
    ([("forward", BUFFERS), REDUCED], "0", "DDP broadcasts the model's buffers in each forward pass, ", None),
    ([("forward", BUFFERS), ("backward", (*GRADIENTS, *BUFFERS))], "0",
     "DDP broadcasts the model's buffers in each forward pass, also when it is recomputed, ", None),
]  # fmt: skip


@pytest.mark.parametrize(("passes", "group", "said", "avoidable_ns"), EXCESS)
def test_what_is_sent_beyond_what_a_model_needs_is_told_with_its_cost(
    passes: Passes, group: str, said: str | None, avoidable_ns: float | None
) -> None:
    found = excess(job(passes, group=group))
    assert (found is None) is (said is None)
    assert found is None or said is None or said in found.what
    assert avoidable_ns is None or (found is not None and found.avoidable_ns == pytest.approx(avoidable_ns))
    assert passes is not EACH_TIME or (found is not None and "no_sync" in found.advice)


def test_waiting_for_a_late_rank_is_no_excess_of_the_collective_in_which_it_is_waited_for() -> None:
    found = job(beside(("all_reduce", 2 * MB)))
    late = [
        row.model_copy(update={"step_exposed_ns": 1000 if row.rank else row.step_exposed_ns}) for row in found.traffic
    ]
    assert excess(found) is not None
    assert excess(found.model_copy(update={"traffic": late})) is None


def test_of_one_rank_alone_it_is_said_what_would_split_waiting_from_transfer() -> None:
    assert why_not_split(job(PLAIN)) is None
    assert why_not_split(job([FORWARD], ranks=1)) is None
    assert why_not_split(job(PLAIN, ranks=1)) == (
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
    phases = part_of(made).phases
    assert {phase: count for phase, (count, *_) in phases.items()} == {"forward": 6, "backward": 6, "optimizer": 3}


def one_large(kind: str, size: int, late_ns: int = 0, steps: int = 5) -> Summary:
    """A collective of 100 ms in the range Head of each step, beside small all-reduces; rank 1 enters it late."""
    ranks = [a_rank(rank, backend="nccl") for rank in range(2)]
    for rank, made in enumerate(ranks):
        for number in range(steps):
            begin = number * 200 * MS
            made.event(begin, begin + 40 * MS, launch_ns=begin)
            made.collective(begin + 40 * MS, begin + 42 * MS, "all_reduce", size=4 * MB, members=2)
            enter = begin + 50 * MS + rank * late_ns
            made.range(begin + 45 * MS, begin + 49 * MS, "Head")
            made.collective(enter, begin + 150 * MS, kind, size=size, members=2, launch_ns=begin + 46 * MS)
            made.range(begin, begin + 160 * MS, "forward")
            made.step(begin, begin + 160 * MS, number)
    return summary_of(*ranks)


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
    s = job([("forward", [("all_gather", 4 * MB)] * 12)])
    assert named(s) == (
        "Most of the exposed communication is 12 all-gathers of 4.19 MB among 2 ranks in forward per step, exposed for "
        "24.0 ms at 2.1 GB/s (bus bandwidth 1.05 GB/s)."
    )
    assert advice_of(s).startswith("send fewer bytes, or give them more work to hide behind")
    assert advice_of(job([("forward", [("all_gather", MB // 2)] * 12)])) == ""


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
