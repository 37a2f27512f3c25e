"""An operator of a CPU trace counts once, with all its own time, however many pieces its calls cut it into."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from harness.analysis.process.part import RankPart, tables_of
from harness.analysis.summary import HostActivity
from harness.replay.attribute.host_causes import activity_words
from harness.traces.trace import Activity
from tests.analysis.measuring import part_of
from tests.synthetic.columns import MAIN, Made


def piece(made: Made, start: int, end: int, name: str, number: int) -> None:
    facts = {"activity": Activity.CPU_OP, "stream": MAIN, "correlation": number}
    made.event(start, end, name, launch_ns=start, launch_thread=MAIN, **facts)


@pytest.fixture
def part() -> RankPart:
    """Two products, the first cut by a view and by the end of a range; a third product begins before the window."""
    made = Made()
    for start, end, name, number in (
        (0, 10, "aten::mm", 0), (10, 12, "aten::t", 1), (12, 22, "aten::mm", 0), (22, 30, "aten::mm", 0),
        (40, 45, "aten::mm", 2), (90, 95, "aten::bmm", 3), (105, 108, "aten::bmm", 3),
    ):  # fmt: skip
        piece(made, start, end, name, number)
    for number, start in enumerate((0, 50, 100)):
        made.step(start, start + 50, number)
    made.range(0, 22, "forward").range(22, 50, "backward")
    return part_of(made)


def test_kernels_are_operators_with_their_own_time(part: RankPart) -> None:
    kernels, _ = tables_of(part)
    rows = {k.name: (k.count, k.total_ns, k.shortest_ns, k.longest_ns, k.overlapped_ns) for k in kernels}
    assert rows["aten::mm"] == (2, 33, 5, 28, 0)
    assert rows["aten::t"] == (1, 2, 2, 2, 0)


def test_kinds_devices_phases_and_ranges_count_operators_too(part: RankPart) -> None:
    (device,) = part.devices
    assert device.kernels == 4
    assert next(k for k in device.kinds if k.kind == "gemm").count == 3
    assert part.phases["forward"][:2] == (2, 22)
    assert part.phases["backward"][:2] == (1, 8 + 5)
    _, ranges = tables_of(part)
    assert ranges["forward"][2] == 2


NODE, COPY = ("autograd::engine::evaluate_function: MmBackward0", "torch.distributed.ddp.reducer::copy_bucket_to_grad")
FOREIGN = (  # a step of two micro-batches of DDP as torch.profiler records it: only its own ranges
    (2, 4, "aten::stack"),
    (10, 20, "aten::mm"),
    (20, 23, "aten::cross_entropy_loss"),
    (23, 30, NODE),
    (30, 35, NODE),
    (40, 50, "aten::mm"),
    (50, 60, NODE),
    (61, 62, "aten::as_strided"),
    (70, 72, COPY),
    (75, 78, "aten::norm"),
    (80, 90, "aten::addcdiv_"),
)


def test_autograds_operators_tell_the_phases_of_a_program_without_ranges() -> None:
    made = Made()
    for step in range(4):
        begin = 100 * step
        for number, (start, end, name) in enumerate(FOREIGN):
            piece(made, begin + start, begin + end, name, 100 * step + number)
        made.range(begin + 1, begin + 5, "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__")
        made.range(begin + 8, begin + 21, "DistributedDataParallel.forward")
        made.range(begin + 79, begin + 91, "Optimizer.step#AdamW.step")
        made.step(begin, begin + 100, step)
    part = part_of(made)
    told = {phase: count for phase, (count, *_) in part.phases.items()}
    assert told == {"forward": 4 * 3, "backward": 4 * 2, "optimizer": 4, "data loading": 4, "other": 4}
    _, ranges = tables_of(part)
    assert ranges["forward (by its operators)"][:2] == (8, 4 * ((23 - 8) + (50 - 40)))
    assert ranges["backward (by its operators)"][:2] == (8, 4 * ((35 - 23) + (72 - 50)))


LOAD = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
TRAINED, TESTED = "lfffbbo", "lfff" * 3  # l: a batch is loaded; f, b: operators of the passes; o: the optimizer


@pytest.mark.parametrize(
    ("steps", "evaluated"),
    [
        ([TRAINED, TRAINED + TESTED, TRAINED, TRAINED + TESTED], 18),  # after the optimizer, in some steps
        ([TRAINED, TESTED + TRAINED, TRAINED], 9),  # before a step's own batch
        ([TRAINED, TRAINED + "lfff", TRAINED], 3),
        ([TRAINED, "lfffbblfffbbo", TRAINED], 0),  # accumulates gradients
        ([TRAINED, "lflflfffbbfffbbo", TRAINED], 0),  # loads and copies all batches of a step before it trains
        (["lfffbblo", "fffbblo", "fffbblo"], 0),  # loads the next batch before the optimizer
        (["lffflfffbbo"] * 4, 0),  # the loss of two batches, in every step: trained on
        ([TESTED] * 3, 0),  # no training
    ],
)
def test_batches_that_nothing_is_trained_on_are_an_evaluation(steps: list[str], evaluated: int) -> None:
    made, at = Made(), 10
    for number, does in enumerate(steps):
        begin = at
        for each in does:
            name = {"l": "aten::stack", "f": "aten::mm", "b": NODE, "o": "aten::addcdiv_"}[each]
            piece(made, at + 1, at + 9, name, at)
            if each in "lo":
                made.range(at, at + 10, LOAD if each == "l" else "Optimizer.step#AdamW.step")
            at += 10
        made.step(begin, at, number)
    part = part_of(made)
    loaded = evaluated // 3
    assert part.phases.get("evaluation", (0,))[0] == evaluated + loaded
    passes = tables_of(part)[1].get("backward (by its operators)", (0, 0, 0))
    assert passes[2] == sum(does.count("b") for does in steps)


def test_a_wait_of_which_only_such_a_phase_is_known_has_no_words() -> None:
    """As in a script that marks all its phases but backward: the finding names the phase, and no call or operator."""
    found: dict[str, Any] = {"cause": "between operators", "kind": "range", "range": None, "rank": 0, "device": 0}
    times: dict[str, Any] = {"idle_ns": 9, "count": 1, "longest_ns": 9, "first_ns": 0}
    waited = HostActivity(what="backward (by its operators)", **found, **times)
    assert activity_words(waited) is None
    assert activity_words(structs.replace(waited, operator="aten::mm")) == "aten::mm"


def test_a_programs_own_ranges_of_backward_are_not_doubled() -> None:
    made = Made()
    piece(made, 10, 20, "aten::mm", 0)
    piece(made, 20, 30, NODE, 1)
    made.range(19, 31, "## backward ##")
    made.step(0, 50, 0)
    part = part_of(made)
    assert list(tables_of(part)[1]) == ["## backward ##", "ProfilerStep#"]
