"""The faults that are planted in simulated trainings, with what a right answer says of each; and the changes that
remove a cause, which say what every finding is worth."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from .program import MS, US
from .simulate import run_step_ns
from .training import HostWork, Training

EVERYONE: tuple[int, ...] | None = None
PHASE_OF = {"data": "data loading", "between": "between steps"}
KIT_FILE = "train.py"
NOT_RECORDED = "host-stall"  # what a cause is that leaves no record of its own
FREE = 1e9  # GB/s: messages that take no time
_EVALUATION = ("evaluation", "extra-compute")  # the second where neither a range nor a function says that it is one
PARALLEL = ("ddp", "sharded")


def same(t: Training) -> Training:
    """No change."""
    return t


@dataclass(frozen=True)
class Planted:
    """A fault in a training. causes: any of these is right. ranks: who has it. phases: where, empty: not looked at.
    function: the planted function, which is to be named where Python functions are recorded. every: as in a finding,
    0: not looked at. without: the same training without it, whatever else is planted; before: what that is compared
    with, if not with the training itself. marks: only a mark of torch or of the program tells what it is."""

    name: str
    training: Training
    causes: tuple[str, ...]
    ranks: tuple[int, ...]
    phases: tuple[str, ...]
    function: str
    every: int
    without: Callable[[Training], Training]
    before: Callable[[Training], Training] = same
    marks: bool = False


Apply = Callable[[Training, random.Random, int], Planted]  # size in nanoseconds of a step


def _some(t: Training, rng: random.Random) -> tuple[int, ...]:
    return (rng.randrange(t.ranks),)


def _planted(
    name: str, t: Training, causes: tuple[str, ...], without: Callable[[Training], Training],
    *, ranks: tuple[int, ...] | None = EVERYONE, phases: tuple[str, ...] = (), function: str = "", every: int = 0,
    before: Callable[[Training], Training] = same, marks: bool = False,
) -> Planted:  # fmt: skip
    of = tuple(range(t.ranks)) if ranks is None else ranks
    return Planted(name, t, causes, of, phases, function, every, without, before, marks)


def _slow_loads(t: Training, ns: int, ranks: tuple[int, ...] | None, every: int = 1, worker: bool = False) -> Planted:
    """Batches come late: every n-th, on some ranks or all; loaded by the program itself, or by a worker that is too
    slow (then nothing else can be the limit, and the steps that wait change)."""
    step = run_step_ns(t)
    more = ns * every if not worker else max(step - t.load_ns, 0) + ns if every == 1 else 2 * step + ns * every
    slow = replace(t, slow_loads=((ranks, every, more),), slow_workers=int(worker))
    name = f"slow-loader{'' if ranks is None else '-one'}{f'-every-{every}' if every > 1 else ''}{'-worker' * worker}"
    return _planted(
        name, slow, ("data-stall",), lambda x: replace(x, slow_loads=(), fetch_ns=0),
        ranks=ranks, phases=("data loading",), every=0 if worker else every, marks=True,
    )  # fmt: skip


def slow_loader(t: Training, rng: random.Random, ns: int) -> Planted:
    """Each batch, on all ranks."""
    return _slow_loads(t, ns, EVERYONE)


def slow_worker(t: Training, rng: random.Random, ns: int) -> Planted:
    """The same, by a worker."""
    return _slow_loads(t, ns, EVERYONE, worker=True)


def slow_loader_one(t: Training, rng: random.Random, ns: int) -> Planted:
    """Each batch, on one rank."""
    return _slow_loads(t, ns, _some(t, rng))


def late_loads(t: Training, rng: random.Random, ns: int) -> Planted:
    """Every n-th batch."""
    return _slow_loads(t, ns, EVERYONE, every=rng.choice((2, 3, 4)))


def late_worker(t: Training, rng: random.Random, ns: int) -> Planted:
    """The same, by a worker."""
    return _slow_loads(t, ns, EVERYONE, every=rng.choice((2, 3, 4)), worker=True)


def _host_work(t: Training, rng: random.Random, ns: int, place: str, *, one: bool, every: int = 1) -> Planted:
    ranks = _some(t, rng) if one else EVERYONE
    name = rng.choice(("count_tokens", "augment", "metrics", "tokenise"))
    function = f"{KIT_FILE}({200 + rng.randrange(99)}): {name}_{place}"
    work = HostWork(place, ns * every, ranks, every, function)
    causes = ("host-stall", "between-steps") if place == "between" else ("host-stall",)
    named = "CustomFunctionBackward" if place == "backward" else function.split(": ")[1]
    return _planted(
        f"host-work-{place}{'-one' if one else ''}{f'-every-{every}' if every > 1 else ''}",
        replace(t, host_work=(*t.host_work, work)), causes,
        lambda x: replace(x, host_work=tuple(w for w in x.host_work if w != work)),
        ranks=ranks, phases=(PHASE_OF.get(place, place),), function=named, every=every,
    )  # fmt: skip


def host_work(t: Training, rng: random.Random, ns: int) -> Planted:
    """Python on the host, on all ranks."""
    return _host_work(t, rng, ns, rng.choice(("forward", "backward", "optimizer", "between")), one=False)


def host_work_sometimes(t: Training, rng: random.Random, ns: int) -> Planted:
    return _host_work(
        t, rng, ns, rng.choice(("forward", "optimizer", "between")), one=False, every=rng.choice((2, 3, 4))
    )


def late_rank(t: Training, rng: random.Random, ns: int) -> Planted:
    """One rank's host has more to do."""
    return _host_work(t, rng, ns, rng.choice(("forward", "backward", "optimizer", "between")), one=True)


def blocking_output(t: Training, rng: random.Random, ns: int) -> Planted:
    """A whole tensor copied to the host in each step."""
    return _planted(
        "blocking-copy", replace(t, blocking_outputs=max(ns * 5, 1 << 20)), ("pageable", "sync", "copies"),
        lambda x: replace(x, blocking_outputs=0),
    )  # fmt: skip


def pageable(t: Training, rng: random.Random, ns: int) -> Planted:
    return _planted(
        "pageable-copies", replace(t, pageable_bytes=max(ns * 5, 1 << 20)), ("pageable", "copies"),
        lambda x: replace(x, pageable_bytes=0),
    )  # fmt: skip


def sync_layers(t: Training, rng: random.Random, ns: int) -> Planted:
    return _planted(
        "synchronisation-per-layer", replace(t, sync_layers=True), ("sync",), lambda x: replace(x, sync_layers=False)
    )


def item(t: Training, rng: random.Random, ns: int) -> Planted:
    return _planted("item-per-step", replace(t, item_every=1), ("sync",), lambda x: replace(x, item_every=0))


def small_kernels(t: Training, rng: random.Random, ns: int) -> Planted:
    return _planted(
        "small-kernels", replace(t, split=rng.choice((8, 12, 16))), ("tiny-kernels",),
        lambda x: replace(x, python_ns=0, launch_ns=0),
    )  # fmt: skip


def allocations(t: Training, rng: random.Random, ns: int) -> Planted:
    return _planted(
        "allocator", replace(t, allocations_ns=max(ns // t.layers * 2 // 3, 50 * US)), ("allocation",),
        lambda x: replace(x, allocations_ns=0), phases=("forward",),
    )  # fmt: skip


def first_use(t: Training, rng: random.Random, ns: int) -> Planted:
    return _planted(
        "first-use",
        replace(t, first_use_ns=max(ns * t.steps // 3, 2 * MS)),
        ("first-use",),
        lambda x: replace(x, first_use_ns=0),
    )


def collector(t: Training, rng: random.Random, ns: int) -> Planted:
    every = rng.choice((1, 3))
    return _planted(
        f"collector-every-{every}", replace(t, collect_ns=ns * every, collect_every=every), ("gc", NOT_RECORDED),
        lambda x: replace(x, collect_ns=0), every=every,
    )  # fmt: skip


def _share(t: Training, ns: int) -> float:
    return 1 + ns / run_step_ns(t)


def slower_device(t: Training, rng: random.Random, ns: int) -> Planted:
    ranks = _some(t, rng)
    return _planted(
        "slower-device",
        replace(t, slower={ranks[0]: _share(t, ns)}),
        ("slow-device",),
        lambda x: replace(x, slower={}),
        ranks=ranks,
    )


def more_work(t: Training, rng: random.Random, ns: int) -> Planted:
    ranks = _some(t, rng)
    return _planted(
        "more-work-on-a-rank", replace(t, more_work={ranks[0]: _share(t, ns)}), ("long-sequences", "extra-compute"),
        lambda x: replace(x, more_work={}), ranks=ranks,
    )  # fmt: skip


def _free(t: Training) -> Training:
    return replace(t, gb_per_s=FREE, message_ns=0)


def slow_link(t: Training, rng: random.Random, ns: int) -> Planted:
    return _planted("slower-link", replace(t, gb_per_s=t.gb_per_s / rng.choice((3, 5, 8))), ("communication",), _free)


def tiny_buckets(t: Training, rng: random.Random, ns: int) -> Planted:
    return _planted(
        "tiny-buckets", replace(t, tiny_buckets=max(ns // t.message_ns // t.layers * 2, 16), layer_bytes=600_000),
        ("small-buckets",), lambda x: replace(x, tiny_buckets=0), phases=("backward",),
    )  # fmt: skip


def extra_collective(t: Training, rng: random.Random, ns: int) -> Planted:
    return _planted("extra-collective", replace(t, extra_gather=int(ns * t.gb_per_s)), ("communication",), _free)


def large_message(t: Training, rng: random.Random, ns: int) -> Planted:
    """One all-gather of the logits in each step."""
    size = int(ns * t.gb_per_s / (t.ranks - 1)) // 2 * 2 * t.ranks  # as many elements of each rank
    return _planted("one-large-message", replace(t, logits_bytes=size), ("communication",), _free)


def one_stream(t: Training, rng: random.Random, ns: int) -> Planted:
    return _planted("no-overlap", replace(t, one_stream=True, gb_per_s=t.gb_per_s / 3), ("communication",), _free)


def reduce_each(t: Training, rng: random.Random, ns: int) -> Planted:
    return _planted(
        "reduces-each-micro-batch",
        replace(t, micro_batches=4, reduce_each=True, gb_per_s=t.gb_per_s / 4),
        ("communication",),
        _free,
    )


def offload(t: Training, rng: random.Random, ns: int) -> Planted:
    return _planted(
        "offload", replace(t, offload_gb_per_s=24.0, layer_bytes=max(t.layer_bytes, int(t.kernel_ns * 24 * 6))),
        ("copies",), lambda x: replace(x, offload_gb_per_s=0.0),
    )  # fmt: skip


def uneven_stages(t: Training, rng: random.Random, ns: int) -> Planted:
    stage = rng.randrange(t.stages)
    return _planted(
        "uneven-stages", replace(t, stage_layers={stage: t.layers + rng.choice((1, 2))}), ("uneven-stages",),
        lambda x: replace(x, stage_layers={}), ranks=tuple(range(stage, t.ranks, t.stages)),
    )  # fmt: skip


def few_micro_batches(t: Training, rng: random.Random, ns: int) -> Planted:
    return _planted(
        "few-micro-batches",
        replace(t, micro_batches=rng.choice((1, 2))),
        ("bubble",),
        lambda x: replace(_free(x), apart=True),
        before=_free,
    )


def fp32(t: Training, rng: random.Random, ns: int) -> Planted:
    return _planted("fp32", replace(t, precision="fp32"), ("fp32",), lambda x: replace(x, precision="bf16"))


def checkpoint(t: Training, rng: random.Random, ns: int) -> Planted:
    every = rng.choice((3, 4))
    return _planted(
        "checkpoint",
        replace(t, checkpoint_ns=ns * every, checkpoint_every=every, checkpoint_bytes=ns * every),  # 5 GB/s: a fifth
        ("host-stall", "checkpoint"),
        lambda x: replace(x, checkpoint_ns=1), function="save", every=every,
    )  # fmt: skip


def evaluation(t: Training, rng: random.Random, ns: int) -> Planted:
    every = rng.choice((3, 4))
    return _planted(
        "evaluation-on-one-rank", replace(t, evaluate_every=every), _EVALUATION,
        lambda x: replace(x, evaluate_every=0), ranks=(0,), every=every,
    )  # fmt: skip


def evaluation_of_all(t: Training, rng: random.Random, ns: int) -> Planted:
    every = rng.choice((3, 4))
    return _planted(
        "evaluation", replace(t, evaluate_every=every, evaluate_all=True), _EVALUATION,
        lambda x: replace(x, evaluate_every=0), every=every,
    )  # fmt: skip


def layouts(t: Training, rng: random.Random, ns: int) -> Planted:
    """Conversions before and after each of the 6 products of a layer's forward and backward."""
    products = 6 * t.layers * t.micro_batches
    each = max(ns // (2 * products), 2 * US)
    return _planted("layouts", replace(t, layout_ns=each), ("layout",), lambda x: replace(x, layout_ns=0))


def tf32(t: Training, rng: random.Random, ns: int) -> Planted:
    return _planted("tf32", replace(t, precision="tf32"), ("fp32",), lambda x: replace(x, precision="bf16"))


def contention(t: Training, rng: random.Random, ns: int) -> Planted:
    ranks = _some(t, rng)
    return _planted(
        "core-contention",
        replace(t, contended=ranks),
        ("noisy-neighbour", "interrupted"),
        lambda x: replace(x, contended=()),
        ranks=ranks,
    )


@dataclass(frozen=True)
class FaultKind:
    """kinds: of training that can have it. ranks: the fewest. bound: where it costs time."""

    apply: Apply
    kinds: tuple[str, ...] = ("alone", "ddp", "sharded")
    ranks: int = 1
    bound: tuple[str, ...] = ("device", "host")


FAULTS: dict[str, FaultKind] = {
    "slow-loader": FaultKind(slow_loader),
    "slow-loader-one": FaultKind(slow_loader_one, PARALLEL, 2),
    "late-loads": FaultKind(late_loads),
    "slow-worker": FaultKind(slow_worker),
    "late-worker": FaultKind(late_worker),
    "host-work": FaultKind(host_work),
    "host-work-sometimes": FaultKind(host_work_sometimes),
    "late-rank": FaultKind(late_rank, PARALLEL, 2),
    "blocking-copy": FaultKind(blocking_output),
    "pageable-copies": FaultKind(pageable),
    "synchronisation-per-layer": FaultKind(sync_layers),
    "item-per-step": FaultKind(item),
    "small-kernels": FaultKind(small_kernels, bound=("device",)),
    "allocator": FaultKind(allocations),
    "first-use": FaultKind(first_use),
    "collector": FaultKind(collector),
    "slower-device": FaultKind(slower_device, PARALLEL, 2, ("device",)),
    "more-work": FaultKind(more_work, PARALLEL, 2, ("device",)),
    "slower-link": FaultKind(slow_link, PARALLEL, 2, ("device",)),
    "tiny-buckets": FaultKind(tiny_buckets, ("ddp",), 2, ("device",)),
    "extra-collective": FaultKind(extra_collective, PARALLEL, 2, ("device",)),
    "one-large-message": FaultKind(large_message, ("ddp",), 2, ("device",)),
    "no-overlap": FaultKind(one_stream, PARALLEL, 2, ("device",)),
    "reduces-each": FaultKind(reduce_each, ("ddp",), 2, ("device",)),
    "offload": FaultKind(offload, ("alone", "ddp"), 1, ("device",)),
    "uneven-stages": FaultKind(uneven_stages, ("pipeline",), 2, ("device",)),
    "few-micro-batches": FaultKind(few_micro_batches, ("pipeline",), 2, ("device",)),
    "fp32": FaultKind(fp32, bound=("device",)),
    "tf32": FaultKind(tf32, bound=("device",)),
    "layouts": FaultKind(layouts, bound=("device",)),
    "checkpoint": FaultKind(checkpoint),
    "evaluation": FaultKind(evaluation, ("ddp",), 2, ("device",)),
    "evaluation-of-all": FaultKind(evaluation_of_all, ("alone", "ddp"), bound=("device",)),
    "core-contention": FaultKind(contention, PARALLEL, 2, ("host",)),
}

# What a finding of each cause is worth: the same program without any of it.
WITHOUT: dict[str, Callable[[Training], Training]] = {
    "data-stall": lambda t: replace(t, slow_loads=(), load_ns=0, fetch_ns=0),
    "host-stall": lambda t: replace(t, host_work=(), checkpoint_ns=min(t.checkpoint_ns, 1), collect_ns=0),
    "checkpoint": lambda t: replace(t, checkpoint_ns=min(t.checkpoint_ns, 1)),
    "between-steps": lambda t: replace(t, host_work=tuple(w for w in t.host_work if w.place != "between")),
    "pageable": lambda t: replace(t, pageable_bytes=0, blocking_outputs=0, checkpoint_bytes=0),
    "sync": lambda t: replace(t, sync_layers=False, item_every=0, blocking_outputs=0),
    "tiny-kernels": lambda t: replace(t, python_ns=0, launch_ns=0),
    "allocation": lambda t: replace(t, allocations_ns=0),
    "first-use": lambda t: replace(t, first_use_ns=0),
    "gc": lambda t: replace(t, collect_ns=0),
    "slow-device": lambda t: replace(t, slower={}),
    "long-sequences": lambda t: replace(t, more_work={}),
    "extra-compute": lambda t: replace(t, more_work={}, evaluate_every=0),
    "communication": _free,
    "small-buckets": lambda t: replace(t, tiny_buckets=0),
    "copies": lambda t: replace(
        t, offload_gb_per_s=0.0, batch_bytes=0, blocking_outputs=0, pageable_bytes=0, checkpoint_bytes=0
    ),
    "uneven-stages": lambda t: replace(t, stage_layers={}),
    "bubble": lambda t: replace(t, apart=True),
    "fp32": lambda t: replace(t, precision="bf16"),
    "layout": lambda t: replace(t, layout_ns=0),
    "evaluation": lambda t: replace(t, evaluate_every=0),
    "noisy-neighbour": lambda t: replace(t, contended=()),
    "interrupted": lambda t: replace(t, contended=()),
}

# The change that each what-if promises, with the micro-batches of the present step in a step with the change.
CHANGES: dict[str, tuple[Callable[[Training], Training], int]] = {
    "no-data-stall": (lambda t: replace(t, slow_loads=(), load_ns=0), 1),
    "no-host-stall-forward": (lambda t: replace(t, host_work=_elsewhere(t, "forward"), allocations_ns=0), 1),
    "no-host-stall-backward": (lambda t: replace(t, host_work=_elsewhere(t, "backward")), 1),
    "no-host-stall-optimizer": (lambda t: replace(t, host_work=_elsewhere(t, "optimizer")), 1),
    "no-checkpoint": (
        lambda t: replace(t, host_work=_elsewhere(t, "between"), checkpoint_ns=min(t.checkpoint_ns, 1), collect_ns=0),
        1,
    ),
    "no-extra-compute": (lambda t: replace(t, evaluate_every=0), 1),
    "rank-like-others": (lambda t: replace(t, slower={}, more_work={}, stage_layers={}), 1),
    "no-tiny-kernels": (lambda t: replace(t, python_ns=0, launch_ns=0), 1),
    "gas-x2": (lambda t: replace(t, update_every=2), 1),
    "gas-x4": (lambda t: replace(t, update_every=4), 1),
    "micro-batch-x2": (lambda t: replace(t, work=2 * t.work), 2),
    "micro-batches-x2": (lambda t: replace(t, micro_batches=2 * t.micro_batches), 2),
    "one-bucket": (lambda t: replace(t, tiny_buckets=0), 1),
    "no-communication": (_free, 1),
    "products-x2": (lambda t: replace(t, precision="bf16"), 1),
    "no-noisy-neighbour": (lambda t: replace(t, contended=()), 1),
}


def _elsewhere(t: Training, place: str) -> tuple[HostWork, ...]:
    return tuple(work for work in t.host_work if work.place != place)
