"""--compile: what the run says of torch.compile is what torch.compile did, and compiling is no part of the steps."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the training scripts need PyTorch")

from exercises.utils import compilation  # noqa: E402
from exercises.utils.arguments import TrainingArguments, parse_arguments  # noqa: E402
from harness.common.errors import RequestError  # noqa: E402
from harness.common.run_folder.job_parts import COMPILATION  # noqa: E402
from harness.observe.heartbeat import PROGRESS  # noqa: E402

WHOLE = "no graph break: torch.compile compiled the whole forward pass"


@pytest.fixture
def arguments(tmp_path: Path) -> Iterator[TrainingArguments]:
    """Of a training that profiles steps 2 and 3, in a process that has compiled nothing."""
    words = ["--run-dir", str(tmp_path), "--model", "m", "--device", "cpu", "--profiler", "torch"]
    window = ["--skip", "1", "--wait", "0", "--warmup", "1", "--active", "2"]
    torch._dynamo.reset()  # forgets graph breaks and callbacks
    yield parse_arguments(TrainingArguments, "", argv=[*words, *window])
    torch._dynamo.reset()
    PROGRESS.begins(0)
    PROGRESS.enters(None)


def said(arguments: TrainingArguments) -> list[str]:
    return list(compilation.sentences(arguments))


def whole(tensor: Any) -> Any:
    return tensor.sin() + 1


def broken(tensor: Any) -> Any:
    larger = tensor + 1
    torch._dynamo.graph_break()
    return larger.cos()


def test_a_graph_break_is_counted_and_named_by_its_line(arguments: TrainingArguments) -> None:
    compilation.prepare(arguments)
    assert said(arguments) == ["torch.compile compiled nothing"]
    torch.compile(whole, backend="eager")(torch.ones(2))
    assert said(arguments) == [WHOLE]
    torch.compile(broken, backend="eager")(torch.ones(2))
    line = broken.__code__.co_firstlineno + 2
    (sentence,) = said(arguments)
    assert sentence.startswith("1 graph break, where Python runs between the parts that torch.compile compiled: ")
    assert sentence.endswith(f"({Path(__file__).name}:{line})")


def test_compiling_is_a_phase_of_its_own_and_told_if_it_is_in_a_profiled_step(arguments: TrainingArguments) -> None:
    phases: list[str | None] = []

    def backend(graph: Any, _inputs: Any) -> Any:
        phases.append(PROGRESS.phase)
        return graph

    compilation.prepare(arguments)
    compiled = torch.compile(whole, backend=backend, dynamic=False)
    for step, size in ((0, 2), (1, 2), (3, 3)):  # another size in step 3
        PROGRESS.begins(step)
        PROGRESS.enters("forward")
        compiled(torch.ones(size))
        assert PROGRESS.phase == "forward"
    assert phases == [COMPILATION, COMPILATION]
    longer = "some profiled steps are longer, because torch.compile compiled in them (3): raise --skip-steps"
    assert said(arguments) == [WHOLE, longer]


def test_a_machine_without_a_compiler_is_told_before_the_model_is_compiled(
    arguments: TrainingArguments, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(os.environ, "CXX", "no-such-compiler")
    with pytest.raises(RequestError, match="there is no no-such-compiler on PATH: install g"):
        compilation.prepare(arguments)
