"""What a scaling study showed: throughput, speed-up and efficiency with intervals, and what explains them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.analysis.scaling import FACTORS, Repeated, Size, over_runs, ratio_of, repeated, scaling
from harness.experiment.exercises import Own
from harness.study.sweeps.axes import Settings
from harness.study.sweeps.expand import value_text
from harness.study.sweeps.results import Measured

RANK_STEPS = "rank steps/s"  # of weak scaling, where each rank does the same in a step


def sizes(found: Mapping[str, Sequence[Measured]], settings: Mapping[str, Settings]) -> list[Size]:
    """Each measured size, the smallest first. found: by key. settings: by key, in the order of the sizes."""
    measured = [(key, list(found[key])) for key in settings if key in found]
    unit = _unit([one for _, runs in measured for one in runs])
    speeds = {key: [speed for one in runs if (speed := _speed(one, unit))] for key, runs in measured}
    scaled = _scaled(measured)
    least = measured[0][1][0].summary.world_size or 1 if measured else 1
    rows: list[Size] = []
    for key, runs in measured:
        devices = runs[0].summary.world_size or 1
        throughput = repeated(speeds[key])
        speed_up = ratio_of(speeds[key], speeds[measured[0][0]])
        if not rows and throughput is not None:
            speed_up = Repeated(mean=1.0, n=throughput.n)  # itself: exact
        rows.append(
            Size(
                point=key,
                settings={name: value_text(value) for name, value in settings[key].items()},
                devices=devices,
                runs=[one.run.job_id for one in runs],
                unit=unit,
                throughput=throughput,
                speed_up=speed_up,
                efficiency=None if speed_up is None else _over(speed_up, devices / least),
                values=over_runs([_factors(one) for one in runs]) | scaled.get(key, {}),
            )
        )
    return rows


def _over(value: Repeated, ideal: float) -> Repeated:
    ends = [None if end is None else end / ideal for end in (value.low, value.high)]
    return Repeated(mean=value.mean / ideal, n=value.n, low=ends[0], high=ends[1])


def _unit(runs: Sequence[Measured]) -> str:
    if all("tokens_per_s" in one.metrics for one in runs):
        return "tokens/s"
    samples = all(one.summary.efficiency and one.summary.efficiency.samples_per_s for one in runs)
    return "samples/s" if samples or not all(_is_own(one) for one in runs) else RANK_STEPS


def _is_own(one: Measured) -> bool:
    return isinstance(one.summary.experiment, Own)


def _speed(one: Measured, unit: str) -> float | None:
    if unit == "tokens/s":
        return one.metrics.get("tokens_per_s")
    found = one.summary.efficiency
    if unit == RANK_STEPS:
        return (one.summary.world_size or 1) * 1e9 / found.step_ns if found and found.step_ns else None
    return found.samples_per_s if found else None


def _factors(one: Measured) -> dict[str, float]:
    """The shares and efficiencies that explain a run, of those that are known."""
    pop = one.summary.pop
    known = {name: getattr(pop, name) for name in FACTORS if pop is not None and hasattr(pop, name)}
    share = one.metrics.get("exposed_communication_share")
    found = known | {"exposed_communication_share": share}
    return {name: value for name, value in found.items() if value is not None}


def _scaled(measured: Sequence[tuple[str, Sequence[Measured]]]) -> dict[str, dict[str, Repeated]]:
    """Computation scalability and global efficiency of each size: each repeat's against the smallest size's."""
    values: dict[str, dict[str, list[float]]] = {}
    for number in range(min((len(runs) for _, runs in measured), default=0)):
        rows = scaling([key for key, _ in measured], [runs[number].summary for _, runs in measured])
        for row in rows:
            for name in ("computation_scalability", "global_efficiency"):
                if (value := getattr(row, name)) is not None:
                    values.setdefault(row.run, {}).setdefault(name, []).append(value)
    return {
        key: {name: value for name, each in named.items() if (value := repeated(each))} for key, named in values.items()
    }
