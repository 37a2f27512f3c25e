"""Where PyTorch, DeepSpeed and Megatron-LM tell steps.py what an unchanged script does. Each hook calls what it stands
for, with the same arguments, and gives back its result; what happens beside it never reaches the script.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from threading import get_ident
from typing import Any

import torch
import torch.utils.data.dataloader as loading

from harness.common.run_folder.job_parts import MODEL
from harness.observe import heartbeat, job_time
from harness.observe.compilations import Compilations
from harness.observe.heartbeat import PROGRESS
from harness.observe.lines import innermost
from harness.observe.module_ranges import ModuleRanges, is_compiling, size_of
from harness.observe.ranges import watch_script_ranges
from harness.observe.steps import BACKWARD, DATA, EVALUATION, FORWARD, StepState
from harness.observe.watch import TakenError, Watch, inner_model, rank_now, watch_own_profiler

_MOST_LEVELS = 3  # of modules below the outermost one, to look for the ones that are called


def place(
    after_import: Callable[[str, Callable[[Any], object]], None],
    run_dir: Path,
    asked: dict[str, Any],
    ours: Callable[[], AbstractContextManager[None]],
) -> None:
    """Place all hooks. run_dir: the run's folder. asked: as observe.json has it; ours:
    lets the checkout's packages be imported."""
    if os.environ.get("RANK", "").isdecimal():  # a launcher has made this process a rank: it may hang before it trains
        heartbeat.begin(*rank_now())
    if asked.get("module_ranges"):  # before classes of modules are observed, whose calls hold what is called now
        ModuleRanges(asked["module_ranges"], asked["profiler"] == "nsys")
    observer = Observer(run_dir, asked)
    observer.watch.ours = ours
    observer.watch_modules()
    observer.watch_optimizers()
    observer.watch_backward()
    observer.watch_data()
    watch_own_profiler(observer.watch)
    if asked.get("memory"):
        with ours():
            record = importlib.import_module("harness.observe.memory_record")
        record.watch_workers(run_dir, lambda: rank_now()[0])
    watch_script_ranges()
    os.register_at_fork(after_in_child=observer.in_child)
    after_import("torch._dynamo.callback", Compilations)
    after_import("deepspeed.runtime.engine", observer.watch_deepspeed)
    after_import("megatron.core.optimizer.optimizer", observer.watch_megatron_optimizers)
    after_import("megatron.core.pipeline_parallel.schedules", observer.watch_megatron_schedules)
    after_import("transformers.trainer_callback", observer.watch_transformers)
    for lightning in ("lightning.pytorch", "pytorch_lightning"):
        after_import(f"{lightning}.loops.fit_loop", observer.watch_lightning)
        after_import(f"{lightning}.loops.evaluation_loop", observer.watch_lightning_evaluation)
    # Last, so that what they delay is outside of what the hooks above see. A launcher trains nothing.
    if asked.get("faults") and sys.version_info < (3, 10):  # which the code of the faults needs
        print("observer: no fault is injected, because this Python is older than 3.10", file=sys.stderr)
        asked["faults"] = []
    if asked.get("faults") and (os.environ.get("RANK", "").isdecimal() or innermost(sys._getframe()) is not None):
        with ours():
            importlib.import_module("exercises.utils.faults.startup").begin_own(run_dir, asked["faults"])


class Observer:
    """The hooks of one process. Everything off the main thread is left alone."""

    def __init__(self, run_dir: Path, arguments: dict[str, Any]) -> None:
        self.watch = Watch(run_dir, arguments)
        self._made = 0
        self.steps = StepState(self.watch, lambda: self._made)
        self.watch.last_step = self.steps.close
        self._main = threading.main_thread().ident
        self._off = False
        self._modules: weakref.WeakValueDictionary[int, torch.nn.Module] = weakref.WeakValueDictionary()
        self._modules_made = 0
        self._looked_at = 0  # the modules made when the outermost ones were looked for
        self._level = 0
        self._forwards = False  # whether a forward pass has ended in this step
        self._trained: set[int] = set()  # ids of modules whose forward passes had gradients, and of what they wrap
        self._loaded = 0, 0  # samples and tokens of the last phases, as far as these loaded data
        self._scaled = False  # whether backward passes begin from a multiple of the loss
        self._seen = 0  # the last step that was noted

    # -- care ----------------------------------------------------------------------------------------------------------

    def _try(self, act: Callable[..., Any], *arguments: Any) -> Any:
        """Call it; an error switches the observer off."""
        try:
            return act(*arguments)
        except Exception as error:  # noqa: BLE001
            self._switch_off(error)
            return None

    def _switch_off(self, exception: Exception) -> None:
        self._off = True
        why = str(exception) if isinstance(exception, TakenError) else f"off from here on, because {exception!r}"
        if why:
            print(f"observer: {why}", file=sys.stderr)
        self.watch.close()

    def in_child(self) -> None:
        """A fork of a process that trains is a worker."""
        if self.watch.rank >= 0:
            self._off = True
            self.watch.rank = -2

    def around(
        self, function: Callable[..., Any], begin: Callable[..., Any], end: Callable[..., Any] = lambda *_: None
    ) -> Callable[..., Any]:
        """`function` with `begin` before it, which says whether `end` is to be called after it, with the result."""

        @functools.wraps(function)
        def observed(*arguments: Any, **named: Any) -> Any:
            # Most calls of a step pass here, with cold caches: as little as possible is called.
            if is_compiling() or self._off or get_ident() != self._main:
                return function(*arguments, **named)
            try:
                wanted = begin(*arguments)
            except Exception as error:  # noqa: BLE001 - the edge between the observer and somebody's training
                self._switch_off(error)
                wanted = False
            if not wanted:
                return function(*arguments, **named)
            result = None
            try:
                result = function(*arguments, **named)
            finally:
                if not self._off:
                    try:
                        end(result, *arguments)
                    except Exception as error:  # noqa: BLE001
                        self._switch_off(error)
            return result

        return observed

    # -- forward -------------------------------------------------------------------------------------------------------

    def watch_modules(self) -> None:
        """Every module is known from its making, so that the outermost ones can be found: their calls are the forward
        passes. No module is changed, and only the outermost ones' classes, so that a model can be copied, saved and
        compiled as without this."""
        kind: Any = torch.nn.Module
        make, evaluate = kind.__init__, kind.eval

        @functools.wraps(make)
        def made(module: torch.nn.Module, *arguments: Any, **named: Any) -> None:
            make(module, *arguments, **named)
            if not is_compiling() and not self._off:
                self._modules[id(module)] = module
                self._modules_made += 1
                if self.watch.rank < 0 and get_ident() == self._main:
                    self._try(job_time.belongs, sys._getframe(1), MODEL)

        @functools.wraps(evaluate)
        def evaluates(module: Any) -> Any:
            if not is_compiling() and not self._off and get_ident() == self._main:
                self._try(self._look_for_models)
            return evaluate(module)

        kind.__init__, kind.eval = made, evaluates

    def _look_for_models(self) -> None:
        """Observe the calls of the outermost modules' classes."""
        if self._modules_made == self._looked_at:
            return
        self._looked_at = self._modules_made
        modules = list(self._modules.values())
        inside = {id(child) for module in modules for child in module._modules.values()}
        outermost = [module for module in modules if id(module) not in inside]
        if outermost:
            self.watch.model = max(outermost, key=lambda module: sum(each.numel() for each in module.parameters()))
        for module in outermost:
            self._observe_calls(type(module))
        if self.watch.model is not None:
            self._count_calls(type(inner_model(self.watch.model)))

    def _look_further_in(self) -> None:
        """A framework may call what is inside of the outermost module: its training step is no forward."""
        if self.watch.model is None or self._level >= _MOST_LEVELS:
            return
        self._level += 1
        level = [self.watch.model]
        for _ in range(self._level):
            level = [child for module in level for child in module.children()]
        for module in level:
            self._observe_calls(type(module))

    def _observe_calls(self, kind: Any) -> None:
        if getattr(kind.__call__, "observed", False):
            return
        call: Any = self.around(kind.__call__, self._forward_begins, self._forward_ends)
        call.observed = True
        kind.__call__ = call

    def _count_calls(self, kind: Any) -> None:
        """The model inside of a wrapper, as of DDP, may be called without it: an evaluation is no hang."""
        if not getattr(kind.__call__, "counted", False) and not getattr(kind.__call__, "observed", False):
            call: Any = self.around(kind.__call__, self._counted_begins, lambda *_: self.steps.end())
            call.counted = True
            kind.__call__ = call

    def _counted_begins(self, module: torch.nn.Module, *_: Any) -> bool:
        PROGRESS.calls += 1
        return self._evaluates(module) and self._evaluation_begins()

    def _forward_begins(self, module: torch.nn.Module, *_: Any) -> bool:
        if self._evaluates(module):
            return self._evaluation_begins()
        return self.steps.begin(FORWARD)

    def _evaluates(self, module: torch.nn.Module) -> bool:
        """Whether a call evaluates what is trained: a teacher, or a policy that plays, is no evaluation."""
        return not torch.is_grad_enabled() and not module.training and id(module) in self._trained

    def _evaluation_begins(self) -> bool:
        """What was loaded for it is no part of the step's batch."""
        samples, tokens = self._loaded if self.steps.loaded_ns else (0, 0)
        if not self.steps.begin(EVALUATION):
            return False
        job_time.belongs(sys._getframe(3), EVALUATION)
        self.watch.samples = (self.watch.samples or 0) - samples or None
        self.watch.tokens = (self.watch.tokens or 0) - tokens or None
        return True

    def _forward_ends(self, _result: Any, module: torch.nn.Module, *arguments: Any) -> None:
        if self.steps.phase == EVALUATION:
            self.steps.end()
            return
        self._forwards = True
        if torch.is_grad_enabled() and module.training and id(module) not in self._trained:
            self._trained |= {id(module), id(inner_model(module))}
        if self.watch.samples is None and arguments:
            self.watch.samples, self.watch.tokens = size_of(arguments)
        self.steps.forward_ends(module is self.watch.model, torch.is_grad_enabled())
        self._note()

    # -- optimizers ----------------------------------------------------------------------------------------------------

    def watch_optimizers(self) -> None:
        """Every class of optimizers passes its `step` through here before its first instance exists."""
        optimizer: Any = torch.optim.Optimizer
        hook, patch = optimizer.profile_hook_step, optimizer._patch_step_function

        @functools.wraps(hook)
        def hooked(step: Callable[..., Any]) -> Callable[..., Any]:
            return self._optimizer(hook(step))

        @functools.wraps(patch)
        def patched(made: Any) -> None:
            self._made += 1
            patch(made)

        optimizer.profile_hook_step = staticmethod(hooked)
        optimizer._patch_step_function = patched
        for scaler in _scalers():
            scaler.step = self.around(
                scaler.step, self._scaler_begins, lambda _result, _scaler, stepped, *_: self._optimizer_ends(stepped)
            )

    def _optimizer(self, step: Callable[..., Any]) -> Callable[..., Any]:
        return self.around(step, self._optimizer_begins, lambda _result, stepped, *_: self._optimizer_ends(stepped))

    def _optimizer_begins(self, optimizer: Any, *_arguments: Any) -> bool:
        self._look_for_models()
        return self.steps.optimizer_begins(id(optimizer))

    def _scaler_begins(self, scaler: Any, optimizer: Any, *_arguments: Any) -> bool:
        self._scaled |= bool(scaler.is_enabled())
        return self.steps.optimizer_begins(id(optimizer))

    def _optimizer_ends(self, optimizer: Any, whole: bool = True) -> None:
        self.steps.optimizer_ends(id(optimizer), whole)
        self._note()

    def _note(self) -> None:
        """After what may have ended a step."""
        self.watch.steps_ended_by = self.steps.ended_by
        if self.steps.number != self._seen:
            self._seen = self.steps.number
            self._look_for_models()
            if not self._forwards:
                self._look_further_in()
            self._forwards = False

    # -- backward and data ---------------------------------------------------------------------------------------------

    def watch_backward(self) -> None:
        """`Tensor.backward` and engines call this one."""
        autograd: Any = torch.autograd
        autograd.backward = self.around(autograd.backward, self._backward_begins, self._backward_ends)

    def _backward_begins(self, tensors: Any = None, *_arguments: Any) -> bool:
        self._look_for_models()
        if not self.steps.begin(BACKWARD):
            return False
        if isinstance(tensors, torch.Tensor) and tensors.numel() == 1 and tensors.device.type == "cpu":
            self.watch.loss = None if self._scaled else float(tensors.detach())
            PROGRESS.sees(self.watch.loss, self.watch.model)
        return True

    def _backward_ends(self, *_: Any) -> None:
        self.steps.backward_ends()
        self._note()

    def watch_data(self) -> None:
        """The next batch of any DataLoader, in the process that trains."""
        batches: Any = loading._BaseDataLoaderIter
        batches.__next__ = self.around(batches.__next__, self._data_begins, self._data_ends)

    def _data_begins(self, *_: Any) -> bool:
        if torch.utils.data.get_worker_info() is not None:
            return False
        self._look_for_models()
        if not self.steps.loaded_ns:
            self._loaded = 0, 0
        begun = self.steps.begin(DATA)
        PROGRESS.calls += not begun  # a part of an evaluation, which may be long and is no hang
        return begun

    def _data_ends(self, batch: Any, *_: Any) -> None:
        self.watch.reach("load")
        self.steps.end()
        samples, tokens = size_of(batch)
        self._loaded = self._loaded[0] + (samples or 0), self._loaded[1] + (tokens or 0)
        if samples is not None:
            self.watch.samples = (self.watch.samples or 0) + samples
        if tokens is not None:
            self.watch.tokens = (self.watch.tokens or 0) + tokens

    # -- frameworks with steps of their own ---------------------------------------------------------------------------

    def watch_deepspeed(self, module: Any) -> None:
        """An engine's step calls optimizers several times, or none of them in a micro-batch that only accumulates."""
        engine = module.DeepSpeedEngine
        whole: list[bool] = []

        def begin(own: Any, *_: Any) -> bool:
            if not self.steps.optimizer_begins(id(own)):
                return False
            whole.append(bool(own.is_gradient_accumulation_boundary()))
            return True

        def end(_result: Any, own: Any, *_: Any) -> None:
            self._optimizer_ends(own, whole.pop())

        self._made += 1
        engine.step = self.around(engine.step, begin, end)
        engine.backward = self.around(engine.backward, lambda *_: self.steps.begin(BACKWARD), self._backward_ends)

    def watch_megatron_optimizers(self, module: Any) -> None:
        """A chained optimizer steps several; one of mixed precision may skip its own."""
        for name in ("MixedPrecisionOptimizer", "FP32Optimizer", "ChainedOptimizer"):
            kind = getattr(module, name, None)
            if kind is not None:
                kind.step = self._optimizer(kind.step)

    def watch_megatron_schedules(self, module: Any) -> None:
        """Its pipelines ask autograd's engine themselves."""
        module.forward_step = self.around(
            module.forward_step, lambda *_: self.steps.begin(FORWARD), lambda *_: self.steps.end()
        )
        module.backward_step = self.around(
            module.backward_step, lambda *_: self.steps.begin(BACKWARD), self._backward_ends
        )

    # -- frameworks that know how many steps there will be ------------------------------------------------------------

    def watch_transformers(self, module: Any) -> None:
        """Its Trainer tells its callbacks."""
        handler = module.CallbackHandler

        def begin(_own: Any, _asked: Any, state: Any, *_: Any) -> None:
            _plan(state.max_steps, state.global_step)

        handler.on_train_begin = self.around(handler.on_train_begin, begin)

    def watch_lightning(self, module: Any) -> None:
        """When its loop begins, its data is there."""
        loop = module._FitLoop

        def begin(own: Any) -> None:
            with suppress(Exception):  # it estimates, and refuses where accumulation changes by epoch
                _plan(own.trainer.estimated_stepping_batches, own.trainer.global_step)

        loop.on_run_start = self.around(loop.on_run_start, begin)

    def watch_lightning_evaluation(self, module: Any) -> None:
        """It calls parts of the model, which under DDP are not those that it trains by. A test alone is a program's
        own steps."""
        loop = module._EvaluationLoop

        def begin(own: Any) -> bool:
            return own.trainer.state.fn == "fit" and self._evaluation_begins()

        loop.run = self.around(loop.run, begin, lambda *_: self.steps.end())


def _plan(steps: object, done: int) -> None:
    """The training will end with so many steps, of which it has done some, perhaps before it was started again."""
    if isinstance(steps, int) and steps > done:
        PROGRESS.planned = PROGRESS.step + steps - done


def _scalers() -> list[Any]:
    """The classes of GradScaler that have a `step` of their own."""
    scalers = (getattr(module, "GradScaler", None) for module in (getattr(torch, "amp", None), torch.cuda.amp))
    return [scaler for scaler in scalers if scaler is not None and "step" in vars(scaler)]
