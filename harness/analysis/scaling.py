"""A series of runs on unlike numbers of devices: how compute scales, beside each run's own efficiencies.

Source: POP standard metrics, computation scaling and global efficiency (co-design.pop-coe.eu/metrics). The reference is
the run on the fewest devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict

from harness.analysis.metric_values import samples_per_step, tokens_per_step
from harness.analysis.summary import PopEfficiency, Summary

Unit = Literal["tokens", "samples"]
SAME_WORK = 1e-6  # relative


class Scaling(BaseModel):
    """One run of a series.

    `work_per_step`: tokens or samples of all ranks in a step. `computation_scalability`: the reference's compute time
    per unit of work over this run's, all devices summed. `global_efficiency`: that times parallel efficiency; both may
    exceed 1. `unknown`: why they are not known.
    """

    model_config = ConfigDict(extra="forbid", defer_build=True)

    run: str
    devices: int | None
    unit: Unit | None = None
    work_per_step: float | None = None
    computation_scalability: float | None = None
    global_efficiency: float | None = None
    unknown: str | None = None


def scaling(names: Sequence[str], summaries: Sequence[Summary]) -> list[Scaling]:
    """Each run of a series, in the order given; empty if all runs have as many devices."""
    pops = [s.pop for s in summaries]
    if len({pop.devices for pop in pops if pop is not None}) < 2:
        return []
    unit, works = _works(summaries)
    rows = [
        Scaling(run=name, devices=pop.devices if pop else None, unit=unit, work_per_step=work)
        for name, pop, work in zip(names, pops, works, strict=True)
    ]
    if reason := _obstacle(summaries, unit):
        return [row.model_copy(update={"unknown": reason}) for row in rows]
    # Compute time of all devices per unit of work; None if the window is not one of steps.
    costs = [
        pop.useful_ns / pop.steps / work if pop is not None and pop.steps and work else None
        for pop, work in zip(pops, works, strict=True)
    ]
    _, reference = min((pop.devices, i) for i, pop in enumerate(pops) if pop is not None)
    return [_scaled(row, pop, costs[reference], cost) for row, pop, cost in zip(rows, pops, costs, strict=True)]


def how_it_scales(scalings: Sequence[Scaling]) -> str:
    """Whether the series is strong or weak scaling, in words; empty if the work is not known."""
    known = [(row.devices, row.work_per_step) for row in scalings if row.devices and row.work_per_step]
    if len(known) < len(scalings) or not scalings:
        return ""
    of_all, of_one = ([work for _, work in known], [work / devices for devices, work in known])
    if _alike(of_all):
        return "strong scaling: a step is the same work in every run"
    if _alike(of_one):
        return "weak scaling: a step is the same work for each device in every run"
    return f"neither strong nor weak scaling: compute is counted per {(scalings[0].unit or '').removesuffix('s')}"


def _alike(values: Sequence[float]) -> bool:
    return max(values) - min(values) <= SAME_WORK * max(values)


def _works(summaries: Sequence[Summary]) -> tuple[Unit | None, list[float | None]]:
    """The unit of work that every run recorded, and each run's work per step in it."""
    of_unit: tuple[tuple[Unit, list[float | None]], ...] = (
        ("tokens", list(map(tokens_per_step, summaries))),
        ("samples", list(map(samples_per_step, summaries))),
    )
    nothing: list[float | None] = [None] * len(summaries)
    return next(((unit, works) for unit, works in of_unit if all(works)), (None, nothing))


def _obstacle(summaries: Sequence[Summary], unit: Unit | None) -> str:
    """Why the compute of these runs cannot be compared; empty: it can."""
    models = sorted({t.model for s in summaries for t in s.training[:1] if t.model})
    if len(models) > 1:
        return f"the runs train several models: {', '.join(models)}"
    return "" if unit else "neither the tokens nor the samples of a step are recorded in every run"


def _scaled(scaling: Scaling, pop: PopEfficiency | None, reference: float | None, cost: float | None) -> Scaling:
    if pop is None or reference is None or cost is None:
        reason = "its efficiencies are not known" if pop is None else "the window is not one of counted steps"
        return scaling.model_copy(update={"unknown": reason})
    found = reference / cost
    return scaling.model_copy(update={"computation_scalability": found, "global_efficiency": found * pop.parallel})
