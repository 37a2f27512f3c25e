"""Expressions are evaluated as written, refuse everything else, and separate a missing metric from a wrong one."""

from __future__ import annotations

import pytest

from harness.analysis.expression import Unanswerable, evaluate
from harness.common.errors import RequestError

RUNS = {"a": {"step_ns": 100.0, "bubble": 0.34}, "b": {"step_ns": 300.0}}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("b.step_ns >= 3 * a.step_ns", True),
        ("b.step_ns > 3 * a.step_ns", False),
        ("abs(a.bubble - 1/3) < 0.05", True),
        ("0.3 < a.bubble < 0.4 and not b.step_ns == 1", True),
        ("max(a.step_ns, b.step_ns, -5) - min(1, 2)", 299.0),
        ("a.step_ns == 1 or b.step_ns / a.step_ns == 3", True),
    ],
)
def test_it_reads_as_it_is_written(text: str, value: float | bool) -> None:
    assert evaluate(text, RUNS) == value


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('touch evil')",
        "a.step_ns.__class__",
        "a['step_ns']",
        "(lambda: 1)()",
        "[x for x in (1,)]",
        "'text' == 'text'",
        "2 ** 1000000000",
        "max(*a)",
        "a",
        "1 +",
        "",
        "abs(1, 2)",
        "min(5)",
        "9" * 400 + " * 1.5",
    ],
)
def test_it_is_no_program(text: str) -> None:
    with pytest.raises(RequestError):
        evaluate(text, RUNS)


@pytest.mark.parametrize("text", ["-" * 3000 + "1", "(" * 100_000, "+".join("1" * 5000)])
def test_what_is_nested_too_deeply_is_refused_in_a_short_sentence(text: str) -> None:
    with pytest.raises(RequestError) as refused:
        evaluate(text, RUNS)
    assert len(str(refused.value)) < 150


def test_a_wrong_name_gets_the_nearest() -> None:
    with pytest.raises(RequestError, match="did you mean step_time"):
        evaluate("step_tim > 1", {"step_time": 1.0})


def test_a_metric_that_was_not_measured_is_not_a_mistake() -> None:
    with pytest.raises(Unanswerable, match=r"^b\.bubble was not measured$"):
        evaluate("b.bubble < a.bubble", RUNS)
    with pytest.raises(Unanswerable, match=r"^it divides by zero$"):
        evaluate("a.step_ns / 0 > 1", RUNS)
