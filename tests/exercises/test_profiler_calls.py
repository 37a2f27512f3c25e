"""The profiler's calls of the slide work in the student's script on a machine without a GPU; wrong ones are named."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the training scripts need PyTorch")
pytest.importorskip("accelerate")

from accelerate import Accelerator  # type: ignore[import-untyped]  # noqa: E402
from accelerate.state import AcceleratorState  # type: ignore[import-untyped]  # noqa: E402
from torch.nn import Linear, Module  # noqa: E402

from exercises.exercise_1_DDP import preparation  # noqa: E402
from exercises.utils.capture import open_capture  # noqa: E402
from exercises.utils.profiler_calls import by_calls  # noqa: E402
from exercises.utils.stop import StopRequest  # noqa: E402
from exercises.utils.synchronisation import SynchronisationCheck  # noqa: E402
from harness.common.errors import RequestError  # noqa: E402
from harness.common.run_folder.metrics_lines import START_FIELDS, StartLine  # noqa: E402
from harness.observe import ranges  # noqa: E402
from harness.observe.metrics import MetricsWriter  # noqa: E402
from tests.exercises.launching import ROOT, trace_events  # noqa: E402
from tests.exercises.student_script import GAPS, filled, solution  # noqa: E402

WINDOW = ["--skip", "0", "--wait", "0", "--warmup", "1", "--active", "3", "--steps", "5"]


class OneLayer(Module):
    """In place of a Llama: its call has the same form."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = Linear(4, 1)

    def forward(self, input_ids: Any) -> Any:
        return SimpleNamespace(loss=self.layer(input_ids).mean())


class NeverStops(StopRequest):
    """Takes no signal of the process that runs the tests."""

    def __init__(self) -> None: ...

    def before(self, step: int, lead: int = 1) -> bool:
        return False


@pytest.fixture
def accelerator() -> Iterator[Any]:
    yield Accelerator(cpu=True)
    AcceleratorState._reset_state(True)


def trained(script: str, run_dir: Path, accelerator: Any, *options: str) -> Path:
    """The script's loop over a model of one layer, in this process. Returns the run's folder."""
    argv = ["--model", str(ROOT / "configs/models/tiny-llama.yaml"), "--run-dir", str(run_dir), "--device", "cpu"]
    argv += [*WINDOW, "--profiler", "torch", *options]
    arguments = preparation.parse(argv)
    model = OneLayer()
    optimizer = torch.optim.AdamW(model.parameters())
    start: dict[str, Any] = dict.fromkeys(START_FIELDS) | {"rank": 0, "world_size": 1, "device": "cpu"}
    described = StartLine(**{name: start.get(name) for name in StartLine.__dataclass_fields__})
    training = preparation.TrainingState(
        arguments, NeverStops(), SynchronisationCheck([]), described, accelerator, model, optimizer,
        torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0), [{"input_ids": torch.ones(2, 4)}] * 3,
    )  # fmt: skip
    names: dict[str, Any] = {"__name__": "train_todo"}
    exec(compile(script, "train_todo.py", "exec"), names)
    writer = MetricsWriter(run_dir, described)
    with writer, open_capture(arguments, 0) as capture:
        by_calls(names["train"])(training, writer, capture)
    return run_dir


def phases(run: Path) -> list[str]:
    lines = map(json.loads, (run / "metrics/rank0.jsonl").read_text().splitlines())
    return [line["phase"] for line in lines if line["event"] == "step"]


def test_the_pages_solution_records_the_window_and_all_ranges(tmp_path: Path, accelerator: Any) -> None:
    run = trained(filled(), tmp_path, accelerator)
    assert phases(run) == ["skip", "active", "active", "active", "after"]
    found = trace_events(run / "torch/rank0.json.gz")
    names = [event["name"] for event in found if event.get("cat") == "user_annotation"]
    assert [name for name in names if name.startswith("batch_")] == ["batch_1", "batch_2", "batch_3"]
    assert "epoch_0-rank_0" not in names, "it begins before the recording"


# A call of the profiler and a range: the others are found in the same way.
@pytest.mark.parametrize("gap", [pytest.param(gap, marks=() if gap in (2, 7) else pytest.mark.long) for gap in GAPS])
def test_a_call_that_is_left_open_is_named_and_a_range_is_not_in_the_trace(
    tmp_path: Path, accelerator: Any, capsys: pytest.CaptureFixture[str], gap: int
) -> None:
    run = trained(filled(without=[gap]), tmp_path, accelerator)
    wrong = [line for line in capsys.readouterr().err.splitlines() if line.startswith("profiler: ")]
    call = {1: "Start", 2: "Stop"}.get(gap)
    assert [f"the script never called torch.cuda.cudart().cudaProfiler{call}()" in line for line in wrong] == (
        [True] if call else []
    )
    if gap > 2:
        pushed = re.findall(r'range_push\(f?"(\w[\w ]*)', "".join(solution()[gap]))
        names = {event.get("name", "") for event in trace_events(run / "torch/rank0.json.gz")}
        assert pushed and not [name for name in names for each in pushed if name.startswith(each)]


START, STOP = "torch.cuda.cudart().cudaProfilerStart()", "torch.cuda.cudart().cudaProfilerStop()"
POP = "torch.cuda.nvtx.range_pop()"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (('range_push("forward")', 'mark_nothing = "forward"'), f"{POP} 5 times while no range was open: a "),
        ((f"# GAP 4 ends.\n    {POP}", "pass"), f"range_push() 5 times more than {POP}: each push needs a pop"),
        (("if step == arguments.window.start:", "if True:"), f"{START} 5 times, and only the first call counts"),
        (("if step == arguments.window.end - 1:", "if True:"), f"{STOP} 4 times while nothing was recorded"),
    ],
)
def test_a_wrong_call_is_a_sentence_and_the_training_goes_on(
    tmp_path: Path, accelerator: Any, capsys: pytest.CaptureFixture[str], change: tuple[str, str], said: str
) -> None:
    script, (written, instead) = filled(), change
    assert script.count(written) == 1
    run = trained(script.replace(written, instead), tmp_path, accelerator)
    (line,) = (each for each in capsys.readouterr().err.splitlines() if each.startswith("profiler: "))
    assert said in line
    assert len(phases(run)) == 5
    (told,) = (one for one in map(json.loads, (run / "metrics/rank0.jsonl").open()) if one["event"] == "observed")
    assert any(said in note for note in told["notes"])


@pytest.mark.parametrize("nvtx", ["torch.cuda.nvtx", "nvtx"])
def test_a_range_is_a_with_and_a_push_in_a_with_says_what_works(tmp_path: Path, accelerator: Any, nvtx: str) -> None:
    """As the slide has it; `from torch.cuda.nvtx import …` works as well."""
    first = "import torch\nfrom torch.cuda import nvtx\nfrom torch.cuda.nvtx import range as own_range\n"
    script = filled().replace("import torch\n", first, 1)
    loading = '    with timer.part("data"):\n'
    good = script.replace(loading, f'    with {nvtx}.range("one"), own_range("two"), timer.part("data"):\n')
    run = trained(good, tmp_path / "good", accelerator)
    names = {event["name"] for event in trace_events(run / "torch/rank0.json.gz")}
    assert {"one", "two"} <= names
    bad = script.replace(loading, f'    with {nvtx}.range_push("one"), timer.part("data"):\n')
    with pytest.raises(RequestError, match=r"range_push returns a number: write `with torch\.cuda\.nvtx\.range"):
        trained(bad, tmp_path / "bad", accelerator)


def test_with_a_fake_cuda_the_real_calls_are_made_once_for_nsys(
    tmp_path: Path, accelerator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    cudart = SimpleNamespace(
        cudaProfilerStart=lambda: told.append("start"), cudaProfilerStop=lambda: told.append("stop"), other=7
    )
    nvtx = SimpleNamespace(rangePushA=told.append, rangePop=lambda: told.append("pop"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("harness.observe.capture.CUDART", lambda: cudart)
    monkeypatch.setattr("exercises.utils.profiler_calls.CUDART", lambda: cudart)
    monkeypatch.setattr(ranges, "PYTORCH_NVTX", nvtx)
    monkeypatch.setattr("exercises.utils.profiler_calls.nvtx_functions", ranges.nvtx_functions.__wrapped__)
    begin = "    # GAP 4 begins"
    asked = filled().replace(begin, f"    assert torch.cuda.cudart().other == 7\n{begin}")
    run = trained(asked, tmp_path, accelerator, "--profiler", "nsys")
    start, stop = told.index("start"), told.index("stop")
    assert (told.count("start"), told.count("stop")) == (1, 1)
    assert [name for name in told[start:stop] if name.startswith("batch_")] == ["batch_1", "batch_2", "batch_3"]
    assert sum(name not in ("start", "stop", "pop") for name in told) == told.count("pop")
    assert phases(run) == ["skip", "active", "active", "active", "after"]


def test_with_a_fake_nvtx_the_ranges_of_any_training_reach_torch_profiler_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU's functions stay what they are; a build without them keeps its error."""
    told: list[str | None] = []

    def push(name: str | None = None) -> int:
        told.append(name)
        return 7

    fake = SimpleNamespace(rangePushA=push, rangePop=push, markA=id)
    own = torch.cuda.nvtx._nvtx
    monkeypatch.setattr(torch.cuda.nvtx, "_nvtx", own)
    if not hasattr(torch._C, "_nvtx"):
        ranges.watch_script_ranges()
        with pytest.raises(RuntimeError, match="NVTX functions not installed"):
            torch.cuda.nvtx.range_push("an error")
    monkeypatch.setattr(torch._C, "_nvtx", fake, raising=False)
    monkeypatch.setattr(ranges, "PYTORCH_NVTX", fake)
    ranges.watch_script_ranges()
    with torch.profiler.profile() as profile:
        assert torch.cuda.nvtx.range_push("a range") == 7
        with torch.cuda.nvtx.range("inside {}", 1):
            torch.ones(2).sum()
        assert torch.cuda.nvtx.range_pop() == 7
    torch.cuda.nvtx.range_pop()
    assert told == ["a range", "inside 1", None, None, None]
    assert {"a range", "inside 1"} <= {event.name for event in profile.events()}
    assert torch.cuda.nvtx.mark(told) == id(told), "all else is as it was"
