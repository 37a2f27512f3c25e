"""What surrounds Megatron's iterations: their metrics, the ranges of stages and micro-batches, and injected faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from megatron.core import parallel_state
from megatron.core.pipeline_parallel import schedules
from megatron.core.pipeline_parallel.p2p_communication import P2PCommunicator

from exercises.exercise_3_MegatronLM.data import Samples
from exercises.exercise_3_MegatronLM.engine import Engine
from exercises.exercise_3_MegatronLM.options import MegatronArguments
from exercises.utils.faults.inject import inject_all
from exercises.utils.faults.moments import Moments, watch_update, wrap
from harness.common.model.megatron_layout import BatchSizes
from harness.common.run_folder.metrics_lines import StepLine
from harness.observe.metrics import StepTimer, peak_memory_bytes, rank_of_process
from harness.observe.ranges import annotate

# Megatron's name of each request, and ours: activations go forward, gradients backward.
_REQUESTS = {
    "send_next": "send_forward",
    "recv_prev": "recv_forward",
    "send_prev": "send_backward",
    "recv_next": "recv_backward",
}


@dataclass(frozen=True)
class MegatronStep(StepLine):
    """One iteration of one rank. Its tokens and samples are this rank's equal share; the sum over all ranks is the
    global batch. The loss is that of the global batch, the same on every rank; forward is without the data loading
    inside."""

    tokens_global: int

    def summary(self) -> str:
        """The progress line on the terminal."""
        rate = self.tokens_global / (self.step_ns / 1e9)
        return f"loss {self.loss:.4f}  {self.step_ns / 1e6:.0f} ms  {rate:.0f} tokens/s  ({self.phase})"


def step_line(
    iteration: int, phase: str, batch: BatchSizes, timer: StepTimer, *, loss: float, lr: float
) -> MegatronStep:
    """The line of an iteration; `timer` has the parts iteration, data, forward, backward and optimizer."""
    rank, world, _ = rank_of_process()
    return MegatronStep(
        step=iteration,
        phase=phase,
        unix_ns=timer.unix_ns,
        step_ns=timer.part_ns("iteration"),
        data_ns=timer.part_ns("data"),
        forward_ns=timer.part_ns("forward") - timer.part_ns("data"),
        backward_ns=timer.part_ns("backward"),
        optimizer_ns=timer.part_ns("optimizer"),
        evaluation_ns=timer.part_ns("evaluation"),
        loss=loss,
        lr=lr,
        tokens=batch.tokens_of_rank(rank, world),
        samples=batch.samples_of_rank(rank, world),
        synced=True,
        peak_memory_bytes=peak_memory_bytes(),
        tokens_global=batch.tokens,
    )


def install(marks: StageRanges) -> None:
    """Wrap megatron-core's functions, once per process."""
    schedules.forward_step = marks.forward(schedules.forward_step)
    schedules.backward_step = marks.backward(schedules.backward_step)
    P2PCommunicator._communicate = _marked_communication(P2PCommunicator._communicate)


class StageRanges:
    """Marks the steps of the schedule, and adds their times to the current iteration's timer."""

    def __init__(self) -> None:
        self._timer = StepTimer()

    def new_timer(self) -> StepTimer:
        """A fresh timer for the iteration that begins now."""
        self._timer = StepTimer()
        return self._timer

    def forward(self, forward_step: Callable[..., Any]) -> Callable[..., Any]:
        def marked(*args: Any, current_microbatch: int, vp_stage: int | None = None, **kwargs: Any) -> Any:
            place = f"mb{current_microbatch} stage{stage_number(vp_stage)}"
            with annotate(f"forward {place}"), self._timer.part("forward"):
                output, num_tokens = forward_step(
                    *args, current_microbatch=current_microbatch, vp_stage=vp_stage, **kwargs
                )
            # The schedules give this same object to the backward step, and no number of the micro-batch.
            _first(output).harness_place = place
            return output, num_tokens

        return marked

    def backward(self, backward_step: Callable[..., Any]) -> Callable[..., Any]:
        def marked(input_tensor: Any, output_tensor: Any, *args: Any, **kwargs: Any) -> Any:
            place = _first(output_tensor).harness_place
            with annotate(f"backward {place}"), self._timer.part("backward"):
                return backward_step(input_tensor, output_tensor, *args, **kwargs)

        return marked


def stage_number(vp_stage: int | None) -> int:
    """The stage's number in the whole pipeline: with VPP, chunk c of pipeline rank r is stage c·PP + r."""
    size: int = parallel_state.get_pipeline_model_parallel_world_size()
    rank: int = parallel_state.get_pipeline_model_parallel_rank()
    return (vp_stage or 0) * size + rank


def _first(tensor_or_list: Any) -> Any:
    return tensor_or_list[0] if isinstance(tensor_or_list, list) else tensor_or_list


class _MarkedRequest:
    """A pending send or receive whose waiting shows as a range."""

    def __init__(self, request: Any, name: str) -> None:
        self._request = request
        self._name = name

    def wait(self) -> None:
        with annotate(self._name):
            self._request.wait()


def _marked_communication(communicate: Callable[..., Any]) -> Callable[..., Any]:
    def marked(self: P2PCommunicator, **kwargs: Any) -> Any:
        name = _communication_name(**kwargs)
        if not name:
            return communicate(self, **kwargs)
        with annotate(name):
            received_prev, received_next, requests = communicate(self, **kwargs)
        if isinstance(requests, dict):
            requests = {key: _MarkedRequest(each, f"{_REQUESTS[key]} wait") for key, each in requests.items()}
        return received_prev, received_next, requests

    return marked


def _communication_name(
    *, tensor_send_next: Any, tensor_send_prev: Any, recv_prev: bool, recv_next: bool, **_: Any
) -> str:
    """All that one call sends and receives, such as `send_forward_recv_backward`; empty for nothing."""
    wanted = {
        "send_next": tensor_send_next is not None,
        "send_prev": tensor_send_prev is not None,
        "recv_prev": recv_prev,
        "recv_next": recv_next,
    }
    return "_".join(_REQUESTS[request] for request, is_wanted in wanted.items() if is_wanted)


Function = Callable[..., Any]


@contextmanager
def injected(arguments: MegatronArguments, engine: Engine, samples: Samples) -> Iterator[None]:
    """The faults that were asked for, in the training inside; without `--fault` nothing is touched."""
    with ExitStack() as until:
        if arguments.faults:
            moments = Moments()
            _watch(engine, samples, moments, until)
            inject_all(arguments, list(engine.chunks), moments, until)
        yield


def _watch(engine: Engine, samples: Samples, moments: Moments, until: ExitStack) -> None:
    def after(announce: Callable[[], None]) -> Callable[[Function], Function]:
        def wrapper(function: Function) -> Function:
            def announced(*args: Any, **kwargs: Any) -> Any:
                announce()
                return function(*args, **kwargs)

            return announced

        return wrapper

    def loading_slowly(micro_batches: Function) -> Function:
        def announced(batch: object, iteration: int, loading: Callable[[int], AbstractContextManager[object]]) -> Any:
            @contextmanager
            def late(number: int) -> Iterator[None]:
                with loading(number):
                    moments.reach("load")
                    yield

            return micro_batches(batch, iteration, late)

        return announced

    # An iteration begins with forgetting the last one's gradients.
    wrap(engine.optimizer, "zero_grad", after(moments.begin), until)
    wrap(samples, "micro_batches", loading_slowly, until)
    wrap(schedules, "forward_step", after(lambda: moments.reach("forward")), until)
    wrap(schedules, "backward_step", after(lambda: moments.reach("backward")), until)
    watch_update(engine.optimizer, moments, until)
