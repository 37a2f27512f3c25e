"""--compile: how torch.compile is prepared, and what is said of it when the training is over."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import torch
import torch._dynamo
import torch._inductor.config
from torch._dynamo.utils import graph_break_reasons

from exercises.utils.arguments import TrainingArguments
from harness.common.errors import RequestError
from harness.common.system.cpp_compiler import why_not_compiled
from harness.observe.compilations import Compilations

_NAMED = 3  # places of graph breaks
_LONGEST = 80  # characters of a reason
_TORCH = str(Path(torch.__file__).parent)
_BY_DDP = "DDPOptimizer"

_here: list[Compilations] = []  # of this process


def prepare(arguments: TrainingArguments, *, divides: bool = True) -> None:
    """Call it before the model is compiled. divides: DDP's buckets can divide the graph.

    Raises RequestError: this machine cannot compile.
    """
    if arguments.on_cpu and (why := why_not_compiled(os.environ)):
        raise RequestError(why)
    torch._dynamo.config.optimize_ddp = divides
    # On a CPU the kernels are functions of C++, which no trace shows unless they tell it themselves.
    torch._inductor.config.cpp.enable_kernel_profile = arguments.on_cpu and arguments.profiler == "torch"
    _here.append(Compilations(torch._dynamo.callback))


def sentences(arguments: TrainingArguments) -> Iterator[str]:
    """Where torch.compile broke the graph, and the profiled steps in which it compiled; without full stops."""
    places: Counter[str] = Counter()
    for each in graph_break_reasons:
        outside = [line for line in each.user_stack if not line.filename.startswith(_TORCH)]
        where = next(reversed(outside or each.user_stack), None)
        at = f" ({Path(where.filename).name}:{where.lineno})" if where else ""
        reason = each.reason.strip().partition("\n")[0]
        places[_BY_DDP if reason.startswith(_BY_DDP) else reason[:_LONGEST] + at] += 1
    if places.pop(_BY_DDP, 0):
        yield "the compiled graph is divided at DDP's buckets, so that all-reduces begin during the backward pass"
    if not _here[-1].steps:
        yield "torch.compile compiled nothing"
    elif not places:
        yield "no graph break: torch.compile compiled the whole forward pass"
    else:
        named = "; ".join(place for place, _ in places.most_common(_NAMED))
        more = f"; {len(places) - _NAMED} more places" if len(places) > _NAMED else ""
        breaks = f"{places.total()} graph break{'s' * (places.total() != 1)}"
        yield f"{breaks}, where Python runs between the parts that torch.compile compiled: {named}{more}"
    window = arguments.window
    late = sorted(step for step in _here[-1].steps if window.start <= step < window.end)
    if late and arguments.profiler != "none":
        steps = ", ".join(map(str, late))
        yield f"some profiled steps are longer, because torch.compile compiled in them ({steps}): raise --skip-steps"
