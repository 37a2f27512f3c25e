"""What a loop keeps, at which line, and how many bytes a step: each loop here keeps a number of bytes that is known."""

from __future__ import annotations

import inspect
import io
import re
import sys
from collections import deque
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the observer is loaded beside PyTorch")

from harness.observe.kept_values import GrowingValue, KeptValues, is_look  # noqa: E402 - needs torch

STEPS = 40
COUNT = 5000  # numbers of a tensor
SIZE = 4 * COUNT
CLOSE = 0.02

Loop = Callable[[Iterator[int]], Any]


def a_list(steps: Iterator[int]) -> Any:
    kept = []
    for _ in steps:
        kept.append(torch.zeros(COUNT))  # keeps
    return kept


def a_dict_by_the_step(steps: Iterator[int]) -> Any:
    kept = {}
    for step in steps:
        made = torch.zeros(COUNT)
        kept[step] = made  # keeps
    return kept


def text_that_the_collector_does_not_know(steps: Iterator[int]) -> Any:
    kept = {}
    for step in steps:
        kept[step] = "x" * SIZE  # keeps
    return kept


def every_tenth_step(steps: Iterator[int]) -> Any:
    kept = []
    for step in steps:
        if step % 10 == 5:
            kept.append(torch.zeros(10 * COUNT))  # keeps
    return kept


def one_tensor_that_grows(steps: Iterator[int]) -> Any:
    kept = torch.zeros(0)
    for _ in steps:
        kept = torch.cat([kept, torch.zeros(COUNT)])  # keeps
    return kept


def a_buffer(steps: Iterator[int]) -> Any:
    kept = io.BytesIO()
    for _ in steps:
        kept.write(bytes(SIZE))  # keeps
    return kept


def a_hook(steps: Iterator[int]) -> Any:
    kept = []

    def keep(_module: Any, _inputs: Any, output: Any) -> None:
        kept.append(output)  # keeps

    layer = torch.nn.Identity()
    layer.register_forward_hook(keep)
    for _ in steps:
        layer(torch.zeros(COUNT))
    return kept


def objects_of_a_class(steps: Iterator[int]) -> Any:
    class Record:
        def __init__(self) -> None:
            self.values = [float(number) for number in range(SIZE // 40)]

    kept: deque[Any] = deque()
    for _ in steps:
        kept.append(Record())  # keeps
    return kept


def a_cache_without_a_limit(steps: Iterator[int]) -> Any:
    @cache  # keeps
    def positions(step: int) -> Any:
        return torch.zeros(COUNT) + step

    for step in steps:
        positions(step)
    return positions


def losses_with_their_graphs(steps: Iterator[int]) -> Any:
    weight, kept = torch.ones(COUNT, requires_grad=True), []
    for _ in steps:
        kept.append(torch.tanh(weight).sum())  # keeps
    return kept


LEAKS = (a_list, a_dict_by_the_step, text_that_the_collector_does_not_know, every_tenth_step, one_tensor_that_grows,
         a_buffer, a_hook, objects_of_a_class, a_cache_without_a_limit, losses_with_their_graphs)  # fmt: skip


def a_total_with_its_graph(steps: Iterator[int]) -> Any:
    weight = torch.ones(COUNT, requires_grad=True)
    total = torch.zeros(())
    for _ in steps:
        total = total + (weight * 2).sum()  # keeps
    return total


def a_cache_that_fills_up(steps: Iterator[int]) -> Any:
    kept = {}
    for step in steps:
        kept[step % 6] = torch.zeros(COUNT)
    return kept


def the_same_tensor_again(steps: Iterator[int]) -> Any:
    shared, kept = torch.zeros(100 * COUNT), []
    for _ in steps:
        kept.append(shared)
    return kept


def numbers(steps: Iterator[int]) -> Any:
    kept: list[float] = []
    for _ in steps:
        kept.append(torch.zeros(COUNT).sum().item())
    return kept


def a_bounded_deque(steps: Iterator[int]) -> Any:
    kept: deque[Any] = deque(maxlen=5)
    for _ in steps:
        kept.append(torch.zeros(COUNT))
    return kept


def observed(loop: Loop, steps: int = STEPS) -> KeptValues:
    found = KeptValues()

    def told() -> Iterator[int]:
        for step in range(steps):
            found.step_begins(step)
            yield step

    loop(told())
    found.close()
    return found


def largest(found: KeptValues) -> GrowingValue | None:
    growing = [one for one in found.growing if one.rate()]
    return growing[0] if growing else None


def marked(loop: Loop) -> int:
    lines, first = inspect.getsourcelines(loop)
    return next(first + number for number, line in enumerate(lines) if re.search("# keeps$", line.rstrip()))


@pytest.mark.parametrize("loop", LEAKS)
def test_the_line_that_keeps_and_its_bytes_a_step(loop: Loop) -> None:
    one = largest(observed(loop, 70 if loop is every_tenth_step else STEPS))
    assert one is not None
    file, line, _ = one.as_json()["where"]
    assert (file, line) == (__file__, marked(loop))
    assert one.rate() == pytest.approx(SIZE, rel=CLOSE)


def test_a_tensor_that_keeps_every_graph_is_named() -> None:
    """Its bytes are not Python's: the tracker counts them."""
    found = observed(a_total_with_its_graph)
    (one,) = [one for one in found.growing if one.kind == "graph"]
    assert (one.name, one.as_json()["where"][1]) == ("total", marked(a_total_with_its_graph))


def test_what_a_graph_holds_is_not_computed_again() -> None:
    def unpack(packed: Any) -> Any:
        raise AssertionError("as activation checkpointing does")

    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: [tensor.numpy().copy()], unpack):
        one = largest(observed(losses_with_their_graphs))
    assert one is not None and one.rate() == pytest.approx(SIZE, rel=CLOSE)


@pytest.mark.parametrize("loop", [a_cache_that_fills_up, the_same_tensor_again, numbers, a_bounded_deque])
def test_what_does_not_grow_is_not_named(loop: Loop) -> None:
    found = observed(loop, steps=70)
    assert largest(found) is None


def test_names_are_those_of_the_program() -> None:
    names = {loop.__name__: one.name for loop in (a_list, a_cache_without_a_limit) if (one := largest(observed(loop)))}
    assert names == {"a_list": "kept", "a_cache_without_a_limit": "positions"}


def test_nothing_stays_behind_and_a_debugger_is_left_alone() -> None:
    def trace(*_: Any) -> None:
        """A debugger's."""

    sys.settrace(trace)
    try:
        found = observed(a_list)
        assert sys.gettrace() is trace
    finally:
        sys.settrace(None)
    one = largest(found)
    assert one is not None and one.as_json()["where"] is None
    observed(a_list)
    assert sys.gettrace() is None


def test_steps_in_which_nobody_watched_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.observe.kept_values.is_look", lambda _number: False)
    found, kept = KeptValues(), list[int]()
    one = GrowingValue("kept", "objects", 0.0, element_bytes=SIZE, value=kept)
    found.growing = [one]
    for step in range(20):
        one.bytes_per_step = 0.0 if 2 <= step < 12 else SIZE
        found.step_begins(step)
        kept.append(step)
    found.close()
    assert (len(one.seen), one.rate()) == (3, SIZE)


def test_looks_become_rare() -> None:
    assert [number for number in range(300) if is_look(number)] == [2, 4, 6, 8, 16, 32, 64, 128, 256]
