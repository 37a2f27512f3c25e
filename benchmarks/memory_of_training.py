"""What one rank of a training really allocates, counted tensor by tensor, without the other ranks and without a GPU.

    python benchmarks/memory_of_training.py -- -e 2 -g 4 --mixed-precision        # words of a launch
    python benchmarks/memory_of_training.py --fake --rank 0 -- -e 3 -g 4 --model mistral-7b --mixed-precision

Builds the objects of an exercise as its training script does (DDP, DeepSpeed's engine, megatron-core's), on a process
group whose collectives do nothing, trains two steps, and follows every storage that is made: bytes by owner, and the
peak of each part of a step. With `--fake` storages have sizes and no memory, for models of billions of parameters.
Prints one JSON object.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import sys
import tempfile
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_iter, tree_map

STEPS = 2  # the optimizer's states exist from the first one's end
Tensors = Iterable[Any]
Owners = Callable[[], dict[str, list[Any]]]


class Storages(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Bytes of the storages that live, and their most since `take_peak`. What an operator returns is seen."""

    def __init__(self, fake: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._fake = fake
        self._live: dict[int, int] = {}
        self.now = self._peak = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._fake and function is torch.ops.aten._local_scalar_dense.default:
            return 1.0 if args[0].is_floating_point() else 0  # a number that a fake tensor does not have
        if self._fake and "coalesced" in str(function):
            return _with_real_tensors(function, args, kwargs or {})
        result = function(*args, **(kwargs or {}))
        for each in tree_iter(result):
            if isinstance(each, torch.Tensor):
                self._see(each)
        return result

    def take_peak(self) -> int:
        """The most bytes since the last call."""
        peak, self._peak = self._peak, self.now
        return peak

    def _see(self, tensor: torch.Tensor) -> None:
        # Token ids are few beside activations, and a data set of them belongs to the host's memory.
        if tensor.device.type == "meta" or not tensor.is_floating_point():
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._live:
            self._live[key] = storage.nbytes()
            self.now += self._live[key]
            self._peak = max(self._peak, self.now)
            weakref.finalize(storage, self._forget, key)

    def _forget(self, key: int) -> None:
        self.now -= self._live.pop(key, 0)


def _with_real_tensors(function: Any, args: Any, kwargs: Any) -> Any:
    """A collective that fake tensors do not know, of no real numbers: the storages are there before it."""
    with _disable_current_modes():
        empty = tree_map(lambda each: torch.zeros(0) if isinstance(each, torch.Tensor) else each, args)
        return function(*empty, **kwargs)


class Rank:
    """One rank's training, built, and its step in parts: (name, work)."""

    parameters: int
    parts: Callable[[], Iterator[str]]
    owners: Owners


def bytes_of(owners: dict[str, list[Any]]) -> dict[str, int]:
    """Bytes of every owner's storages; a shared one belongs to the owner that is named first."""
    seen: set[int] = set()
    found = {}
    for name, tensors in owners.items():
        found[name] = 0
        for each in tensors:
            if isinstance(each, torch.Tensor) and each.device.type != "meta":
                storage = each.untyped_storage()
                if storage._cdata not in seen:
                    seen.add(storage._cdata)
                    found[name] += storage.nbytes()
    return found


def build_ddp(argv: list[str]) -> Rank:
    """Exercise 1. The reduction returns its bucket, as the process group gives no future to wait for."""
    os.environ["ACCELERATE_USE_CPU"] = "true"
    from exercises.exercise_1_DDP import preparation
    from exercises.utils.arguments import parse_arguments
    from exercises.utils.stop import StopRequest

    arguments = parse_arguments(preparation.DDPArguments, "", preparation.declare_options, argv)
    training = preparation.build(arguments, StopRequest())
    model, optimizer = training.model, training.optimizer
    fake = torch._guards.detect_fake_mode() is not None
    if isinstance(model, torch.nn.parallel.DistributedDataParallel):
        model.register_comm_hook(None, _unreduced)

    def step() -> Iterator[str]:
        every = training.arguments.gradient_accumulation_steps
        for number, batch in enumerate(batches(training)):
            # PyTorch orders its buckets anew after the first reduction, by numbers that fake tensors do not have.
            unordered = fake and not optimizer.state
            with model.no_sync() if unordered else nullcontext():
                loss = model(**batch).loss
                yield "forward"
                training.accelerator.backward(loss)
            yield "backward"
            if (number + 1) % every:
                continue
            training.accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            yield "optimizer"
            optimizer.zero_grad()

    def owners() -> dict[str, list[Any]]:
        parameters = list(model.parameters())
        return {
            "weights": parameters,
            "gradients": [p.grad for p in parameters],
            "optimizer": _states(optimizer.optimizer),
        }

    return _rank(training.description.parameters, step, owners)


def _unreduced(_: object, bucket: Any) -> Any:
    future: Any = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


# PyTorch checks the types themselves, and annotations are texts here.
_unreduced.__annotations__ = {"bucket": vars(dist)["GradBucket"], "return": torch.futures.Future[torch.Tensor]}


def build_deepspeed(argv: list[str]) -> Rank:
    """Exercise 2."""
    from exercises.exercise_2_DeepSpeed import preparation
    from exercises.utils.arguments import parse_arguments
    from exercises.utils.stop import StopRequest

    gc.enable()  # as run_script does: DeepSpeed leaves the weights that it has copied in a circle of references
    arguments = parse_arguments(preparation.DeepSpeedArguments, "", preparation.declare_options, argv)
    if torch._guards.detect_fake_mode():
        _believe_other_ranks()
    training = preparation.build(arguments, StopRequest())
    engine, zero = training.engine, training.engine.optimizer

    def step() -> Iterator[str]:
        for batch in batches(training):
            loss = engine(**batch).loss
            yield "forward"
            engine.backward(loss)
            yield "backward"
            engine.step()
            yield "optimizer"

    def owners() -> dict[str, list[Any]]:
        parameters = list(engine.module.parameters())
        masters = getattr(zero, "fp32_partitioned_groups_flat", None) or zero.single_partition_of_fp32_groups
        partitioned = [getattr(p, "ds_tensor", None) for p in parameters]
        secondary = [getattr(p, "ds_secondary_tensor", None) for p in parameters]
        flat = getattr(zero, "grad_partitions_flat_buffer", None)
        averaged = [g for group in getattr(zero, "averaged_gradients", {}).values() for g in group or []]
        return {
            "weights": partitioned if any(each is not None for each in partitioned) else parameters,
            "secondary": secondary,
            "gathered": parameters,
            "gradients": [flat, *averaged, *(p.grad for p in parameters)],
            "optimizer": [*masters, *_states(zero.optimizer)],
        }

    return _rank(training.description.parameters, step, owners)


def _believe_other_ranks() -> None:
    """DeepSpeed compares lengths of lists between ranks, which fake tensors do not carry."""
    from deepspeed.runtime.zero import partitioned_param_coordinator, stage3  # type: ignore[import-untyped]

    for module in (partitioned_param_coordinator, stage3):
        for name in ("assert_ints_same_as_other_ranks", "assert_lst_len_same_as_other_ranks"):
            if name in vars(module):
                vars(module)[name] = lambda *_: None


def build_megatron(argv: list[str]) -> Rank:
    """Exercise 3."""
    from exercises.exercise_3_MegatronLM import options, runtime
    from exercises.utils.models import load_model_config

    arguments = options.parse(argv)
    sizes = load_model_config(arguments.model)
    layout = arguments.layout(dist.get_world_size())
    batch = arguments.batch(layout, sizes)
    runtime.install()
    from exercises.exercise_3_MegatronLM import data, engine

    engine.start_groups(layout, arguments.seed)
    if torch._guards.detect_fake_mode():
        from megatron.core.optimizer import optimizer as megatron_optimizer

        vars(megatron_optimizer)["get_grad_norm_fp32"] = lambda *_, **__: 1.0
    training = engine.build(arguments, sizes, layout, batch)
    tokens = torch.ones((batch.micro_size, batch.seq_length // layout.cp), dtype=torch.int64)
    positions = torch.arange(tokens.shape[1]).expand(tokens.shape)

    def read() -> Iterator[Any]:
        return itertools.repeat(data.MicroBatch(tokens, tokens, positions))

    def step() -> Iterator[str]:
        for _ in range(STEPS):
            training.zero_grad()
            training.forward_backward(read)
            yield "backward"
            training.optimizer.step()
            yield "optimizer"

    def owners() -> dict[str, list[Any]]:
        buffers = [b for chunk in training.chunks for b in (*chunk.buffers, *chunk.expert_parallel_buffers)]
        chained = getattr(training.optimizer, "chained_optimizers", [training.optimizer])
        masters = [
            p
            for each in chained
            for name in ("shard_fp32_from_float16_groups", "fp32_from_float16_groups")
            for group in getattr(each, name, [])
            for p in group
        ]
        return {
            "weights": [*(b.param_data for b in buffers), *(p for c in training.chunks for p in c.parameters())],
            "gradients": [b.grad_data for b in buffers],
            "optimizer": [*masters, *(t for each in chained for t in _states(each.optimizer))],
        }

    return _rank(training.parameters(), step, owners)


def _rank(parameters: int | None, parts: Callable[[], Iterator[str]], owners: Owners) -> Rank:
    rank = Rank()
    rank.parameters, rank.parts, rank.owners = parameters or 0, parts, owners
    return rank


def batches(training: Any) -> Iterator[dict[str, torch.Tensor]]:
    """The same made-up batch for every step, of the size that the loader's would have."""
    size = (training.arguments.micro_batch_size, training.description.seq_length)
    for _ in range(STEPS * training.arguments.gradient_accumulation_steps):
        tokens = torch.ones(size, dtype=torch.int64, device=training.accelerator.device)
        yield {"input_ids": tokens, "labels": tokens}


def _states(optimizer: Any) -> list[Any]:
    return [tensor for state in optimizer.state.values() for tensor in state.values()]


BUILD = {1: build_ddp, 2: build_deepspeed, 3: build_megatron}


def measure(exercise: int, argv: list[str], fake: bool) -> dict[str, Any]:
    """Bytes of one rank: by owner before the last optimizer step, after it, and each part's peak in the last step."""
    storages = Storages(fake)
    mode: AbstractContextManager[object] = nullcontext()
    if fake:
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        torch.nn.Module._apply = _apply_without_swap  # type: ignore[method-assign]
        # Both would read values, to compare what the ranks have.
        vars(dist)["all_gather_object"] = _gathered_alike
        vars(torch.nn.parallel.distributed)["_verify_param_shape_across_processes"] = lambda *_, **__: True
    with mode, storages:
        rank = BUILD[exercise](argv)
        peaks: dict[str, int] = {}
        owned: dict[str, int] = {}
        storages.take_peak()
        for part in rank.parts():
            peaks[part] = storages.take_peak()
            for name, size in bytes_of(rank.owners()).items():  # gradients live between two parts
                owned[name] = max(owned.get(name, 0), size)
        after = storages.now
    return {"parameters": rank.parameters, "owned": owned, "peaks": peaks, "after_step": after}


def _apply_without_swap(self: torch.nn.Module, change: Any, recurse: bool = True) -> torch.nn.Module:
    """`Module._apply` as new parameters: PyTorch cannot exchange fake ones in place."""
    for module in self.children() if recurse else ():
        _apply_without_swap(module, change)
    for name, parameter in self._parameters.items():
        if parameter is not None:
            changed = change(parameter.data)
            if changed is not parameter.data and changed.dtype != parameter.dtype:
                self._parameters[name] = torch.nn.Parameter(changed, parameter.requires_grad)
    for name, buffer in self._buffers.items():
        if buffer is not None:
            self._buffers[name] = change(buffer)
    return self


def _gathered_alike(found: list[Any], own: Any, group: Any = None) -> None:
    found[:] = [own] * len(found)


def training_argv_of(words: list[str], run_dir: str) -> tuple[int, int, list[str]]:
    """(exercise, world size, the training script's arguments) of a launch on this machine; writes its files."""
    from harness.cli.command import read_launch
    from harness.cli.launch.launch import request_of
    from harness.launch.argv import read_here
    from harness.launch.submit import prepare

    experiment, choice = request_of(read_launch([*words, "--site", "local"]))
    job = prepare(experiment, choice.site).job
    for name, text in job.files.items():
        (Path(run_dir) / name).write_text(text, encoding="utf-8")
    argv = [read_here(word, {**os.environ, "RUN_DIR": run_dir}).text for word in job.commands[0].argv]
    script = next(place for place, word in enumerate(argv) if word.endswith("/train.py"))
    return int(job.experiment.exercise), job.experiment.world_size or 1, argv[script + 1 :]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rank", type=int, default=0, help="which rank")
    parser.add_argument("--fake", action="store_true", help="storages without memory")
    parser.add_argument("words", nargs="+", help="the words of a launch")
    asked = parser.parse_args()
    warnings.filterwarnings("ignore")
    with tempfile.TemporaryDirectory() as run_dir:
        exercise, world, argv = training_argv_of(asked.words, run_dir)
        place = {"RANK": asked.rank, "LOCAL_RANK": asked.rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
        os.environ.update({name: str(value) for name, value in place.items()})
        os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"})
        dist.init_process_group("fake", rank=asked.rank, world_size=world, store=FakeStore())
        print(json.dumps(measure(exercise, argv, asked.fake)))


if __name__ == "__main__":
    main()
