"""What is used for the first time takes long once; what takes long again and again is the program's."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harness.analysis.process.first_use import compiles
from harness.analysis.process.measure import measured_processes
from harness.analysis.process.part import Compressible
from harness.analysis.summary import Summary, Window
from harness.explain.answer import answer
from harness.measure.jobs import summarise
from harness.replay.graph.process import process_graph
from harness.traces.trace import HostKind, RangeKind
from tests.analysis.measuring import RULES, idle_of
from tests.synthetic.columns import Made

MS = 1_000_000
US = 1_000
KERNELS = 8
Cold = Callable[[Made, int, int], int]  # at a moment of a pass: what comes first, and how long it takes


def passes(count: int, cold: Cold, *, marked: bool = True) -> Made:
    """Passes over eight kernels, 100 us each; before the third kernel of each the host does what `cold` adds."""
    made, at = Made(), 0
    for number in range(count):
        begin = at
        for i in range(KERNELS):
            at += cold(made, number, at) if i == 2 else 0
            made.call(at, at + 5 * US, "cudaLaunchKernel")
            made.event(at + 8 * US, at + 60 * US, f"kernel_{i}", launch_ns=at)
            at += 100 * US
        if marked:
            made.step(begin, at, number)
    return made


def calls(name: str, first_ns: int, later_ns: int = 0) -> Cold:
    """A call that takes so long in the first pass, and in each later one."""

    def at(made: Made, number: int, moment: int) -> int:
        ns = later_ns if number else first_ns
        if ns:
            made.call(moment, moment + ns, name)
        return ns + 10 * US

    return at


ONCE = (
    *("cudaFree", "cudaMalloc", "cudaStreamCreateWithFlags", "cudaEventCreateWithFlags"),
    *("cuLibraryLoadData", "cublasCreate"),
)
REPEATED = ("cudaFree", "cudaMalloc", "cudaHostAlloc")


def both(made: Made, number: int, moment: int) -> int:
    """A stream, and memory."""
    created = calls("cudaStreamCreateWithFlags", 20 * MS)(made, number, moment)
    return created + calls("cudaMalloc", 9 * MS)(made, number, moment + created)


def convolution(made: Made, number: int, moment: int) -> int:
    """An operator that chooses a kernel before and after a call."""
    if number:
        return 0
    made.call(moment + 5 * MS, moment + 25 * MS, "cudaStreamCreateWithFlags")
    made.host(moment, moment + 30 * MS, "aten::conv2d", HostKind.OPERATOR)
    return 30 * MS


Causes = dict[str, int]
CASES: list[tuple[int, Cold, Causes]] = [
    *((3, calls(name, 40 * MS), {"first use": 40 * MS, "allocation": 0, "host work": 0}) for name in ONCE),
    # memory that every step asks for
    *((3, calls(name, 6 * MS, 5 * MS), {"first use": 0, "allocation": 16 * MS}) for name in REPEATED),
    (4, calls("cudaFree", 300 * MS, 5 * MS), {"first use": 300 * MS, "allocation": 15 * MS}),
    # one pass of a warm process, in which nothing comes later, and one of a cold process
    (1, calls("cudaMalloc", 2 * MS), {"first use": 0}),
    (1, both, {"first use": 29 * MS}),
    (3, calls("cudaMemcpy", 40 * MS), {"first use": 0, "blocking copy": 40 * MS}),
    (3, calls("cudaStreamSynchronize", 40 * MS), {"first use": 0, "synchronisation": 40 * MS}),
    (3, convolution, {"first use": 30 * MS}),
]


@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_what_takes_long_once_is_first_use_and_what_does_so_again_is_not(
    case: tuple[int, Cold, Causes], marked: bool
) -> None:
    count, cold, causes = case
    found = idle_of(passes(count, cold, marked=marked), Window.GPU)
    assert {name: found.get(name, 0) for name in causes} == pytest.approx(causes, rel=0.05)


def compiling(first_ns: int, later_ns: int) -> Cold:
    def at(made: Made, number: int, moment: int) -> int:
        ns = later_ns if number else first_ns
        made.range(moment, moment + ns, "_compile.compile_inner (dynamo_timed)", kind=RangeKind.ANNOTATION)
        return ns

    return at


def test_a_compiler_is_first_use_unless_it_runs_in_every_step() -> None:
    assert idle_of(passes(4, compiling(50 * MS, 0)), Window.GPU)["first use"] == pytest.approx(50 * MS, rel=0.01)
    assert "first use" not in idle_of(passes(4, compiling(50 * MS, 45 * MS)), Window.GPU)


def test_what_was_compiled_is_no_compiler() -> None:
    run = (
        *("Torch-Compiled Region: 0/0", "CompiledFunction", "## Call CompiledFxGraph abc ##"),
        *("triton_poi_fused_add_0", "torch/_dynamo/eval_frame.py(500): _fn"),
        "torch/_inductor/runtime/triton_heuristics.py(900): run",
    )
    assert not any(compiles(name) for name in run)


def replayed(made: Made) -> Summary:
    ((part, measured),) = measured_processes(made.trace(), Window.STEPS, RULES)
    (summary,) = summarise([part.model_copy(update={"graph": Compressible(process_graph(measured))})])
    return summary


def test_a_kernel_that_ends_before_its_long_launch_returns_does_not_hold_the_launch_up() -> None:
    """The driver loads a kernel, runs it, and comes back: without the loading all that follows is earlier."""

    def launch(made: Made, number: int, moment: int) -> int:
        if number:
            return 0
        made.call(moment, moment + 80 * MS, "cudaLaunchKernel")
        made.event(moment + 80 * MS - 8 * US, moment + 80 * MS - 6 * US, "loaded", launch_ns=moment)
        return 80 * MS + 10 * US

    summary = replayed(passes(3, launch, marked=False))
    (found,) = (f for f in summary.findings if f.cause == "first-use")
    assert found.lost_ns == pytest.approx(80 * MS, rel=0.01)
    said = answer(summary)
    assert "80.0 of the 82." in said.sentences[0] and "from the device's first to last work" in said.sentences[0]
    assert said.further[0].endswith("The largest part is cudaLaunchKernel (80.0 ms).")
