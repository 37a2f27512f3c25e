"""The run that makes a what-if true: for each of replay/what_ifs.py the fields of the experiment, declared here once.

A what-if without fields is a change of the reader's program or of the machine. Knows no replay.
"""

from __future__ import annotations

from collections.abc import Callable

from harness.analysis.process.phases import PHASES
from harness.analysis.summary import Summary, WhatIf
from harness.experiment.advice import Fields
from harness.explain.asked_faults import without_faults
from harness.explain.finding import asked_of, global_batch, measured, micro_batch
from harness.explain.next_command import changed_command
from harness.format.labels import are_cpus

FieldsOf = Callable[[Summary], Fields | None]


def _prompt_data(s: Summary) -> Fields | None:
    """Without its fault, else as its exercise advises for slow data."""
    advice = asked_of(s).on_purpose("data", measured(s))
    return without_faults(s, ("data-stall",)) or (advice.changes[0].fields if advice else None)


def _unstalled(phase: str) -> FieldsOf:
    names = ("host-stall", "gc") if phase == "forward" else ("host-stall",)  # where the fault `gc` collects
    return lambda s: without_faults(s, names, phase)


def _without(*names: str) -> FieldsOf:
    return lambda s: without_faults(s, names)


def _bf16(s: Summary) -> Fields | None:
    """On GPUs only: few CPUs multiply faster in bf16."""
    return None if are_cpus(s.devices) or asked_of(s).in_bf16 else {"mixed_precision": True}


def _accumulated(times: int) -> FieldsOf:
    def fields(s: Summary) -> Fields | None:
        now: int | None = getattr(asked_of(s), "gradient_accumulation_steps", None)
        return {"gradient_accumulation_steps": times * now} if now else None

    return fields


def _larger_micro_batch(s: Summary) -> Fields | None:
    batch = micro_batch(s)
    return asked_of(s).more_work(batch, global_batch(s)) if batch is not None else None


def _more_micro_batches(s: Summary) -> Fields | None:
    batch = global_batch(s)
    return {"global_batch_size": 2 * batch} if batch else None


def _no_option(s: Summary) -> Fields | None:
    return None


FIELDS: dict[str, FieldsOf] = {
    "no-data-stall": _prompt_data,
    **{f"no-stall-{phase}": _unstalled(phase) for phase in PHASES[:3]},  # forward, backward, optimizer
    "no-stall-between": _without("checkpoint"),
    "no-pause": _without("pause"),
    "own-cores": _without("pinned-together", "noisy-neighbour"),
    "no-late-messages": _without("slow-link"),
    "no-extra-compute": _without("extra-compute"),
    "rank-like-others": _without("extra-compute", "long-sequences", "noisy-neighbour", "uneven-stages"),
    "gas-x2": _accumulated(2),
    "gas-x4": _accumulated(4),
    "micro-batch-x2": _larger_micro_batch,
    "micro-batches-x2": _more_micro_batches,
    "one-bucket": _without("small-buckets"),
    "products-x2": _bf16,
    "no-host-gaps": _no_option,
    "free-communication": _no_option,
    "bandwidth-x2": _no_option,
    "latency-half": _no_option,
}


def fields_of(s: Summary, what_if: WhatIf) -> Fields | None:
    """What to change in the summary's experiment; None: no option does it."""
    known = FIELDS.get(what_if.name)
    return known(s) if known else None


def command_of_what_if(s: Summary, what_if: WhatIf) -> str | None:
    """The command of the run with this change. None: no option of the run does it."""
    fields = fields_of(s, what_if)
    return None if fields is None else changed_command(s, fields)
