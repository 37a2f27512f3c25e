"""Announces the moments of an iteration to faults, from megatron-core's schedules and optimizer.

Enter it before stage_ranges.install(), whose ranges then enclose what the faults do. Knows no fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from megatron.core.pipeline_parallel import schedules

from exercises.exercise_3_MegatronLM.data import Samples
from exercises.exercise_3_MegatronLM.engine import Engine
from exercises.exercise_3_MegatronLM.options import MegatronArguments
from exercises.utils.faults.inject import inject_all
from exercises.utils.faults.moments import Moment, Moments, watch_update, wrap

Function = Callable[..., Any]


@contextmanager
def injected(arguments: MegatronArguments, training: Engine, samples: Samples) -> Iterator[None]:
    """The faults that were asked for, in the training inside; without `--fault` nothing is touched."""
    with ExitStack() as until:
        if arguments.faults:
            moments = Moments()
            _watch(training, samples, moments, until)
            inject_all(arguments, list(training.chunks), moments, until)
        yield


def _watch(training: Engine, samples: Samples, moments: Moments, until: ExitStack) -> None:
    def first(moment: Moment) -> Callable[[Function], Function]:
        """Wraps a function that begins with `moment`."""

        def wrapper(function: Function) -> Function:
            def announced(*args: Any, **kwargs: Any) -> Any:
                moments.reach(moment)
                return function(*args, **kwargs)

            return announced

        return wrapper

    def beginning(zero_grad: Function) -> Function:
        def announced(*args: Any, **kwargs: Any) -> Any:
            moments.begin()  # an iteration begins with forgetting the last one's gradients
            return zero_grad(*args, **kwargs)

        return announced

    def loading_slowly(micro_batches: Function) -> Function:
        def announced(
            batch: object, iteration: int, loading: Callable[[int], AbstractContextManager[object]]
        ) -> Any:
            @contextmanager
            def late(number: int) -> Iterator[None]:
                with loading(number):
                    moments.reach("load")
                    yield

            return micro_batches(batch, iteration, late)

        return announced

    wrap(training.optimizer, "zero_grad", beginning, until)
    wrap(samples, "micro_batches", loading_slowly, until)
    wrap(schedules, "forward_step", first("forward"), until)
    wrap(schedules, "backward_step", first("backward"), until)
    watch_update(training.optimizer, moments, until)
