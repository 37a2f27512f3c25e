"""Which stored reference asks for the same as a run: settings that must agree, and the step that a report mentions.

Cheap, because every report of a run asks: it reads the references' indices, and the runs of one variant.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from harness.analysis.metrics import judged_step_ns, metrics_by_name
from harness.analysis.summary import ReferenceStep, Summary
from harness.common.errors import WorkError
from harness.experiment.exercises import EXERCISES, Experiment, Own, Profiled, Training, read_experiment
from harness.experiment.options import options_of
from harness.format.labels import are_cpus
from harness.measure.references import Reference, StoredVariant, read_runs, some_references

MOST_REFERENCES = 50
INJECTED = ("faults", "mystery")  # what makes a run slow on purpose
_CONVERTS = "nsys2prv"  # after the run: it changes nothing that is measured
_PROFILERS = {"kineto": "torch"}  # a reader's name -> the profiler's, where they differ

Settings = dict[str, Any]


def compared_settings(s: Summary) -> Settings:
    """What must agree between two runs that are compared, as JSON has it; empty for traces from
    elsewhere. Settings that the request left open are those that were resolved."""
    resolved = (s.run or {}).get("resolved")
    asked = read_experiment(resolved) if isinstance(resolved, dict) else s.experiment
    if not isinstance(asked, Experiment):
        return {}
    shown = {option.field for option in options_of(type(asked)) if option.flag.compared} - {_CONVERTS}
    settings = asked.model_dump(mode="json", include=shown)
    if isinstance(asked, Training):
        settings["model"] = next((t.model for t in s.training if t.model), settings["model"])
    if isinstance(asked, Own):
        settings |= {"exercise": asked.exercise, "command": list(asked.command)}
    if isinstance(asked, Profiled):
        tools = {_PROFILERS.get(source.tool, source.tool) for source in s.sources}
        settings["profiler"] = ", ".join(sorted(tools)) or "none"
    return settings


def differing(stored: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Setting -> (stored, own) where they differ. An option that is newer than the reference had its default."""
    number = own.get("exercise")
    cls = Own if number == "own" else EXERCISES.get(number) if isinstance(number, int) else None
    usual = cls.model_validate({}).model_dump(mode="json") if cls else {}
    names = dict.fromkeys([*stored, *own])
    pairs = {name: (stored.get(name, usual.get(name)), own.get(name, usual.get(name))) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def device_kind(s: Summary) -> str:
    """cpu or gpu."""
    on_cpu = are_cpus(s.devices) or (not s.devices and any(t.device == "cpu" for t in s.training))
    return "cpu" if on_cpu else "gpu"


def on_purpose_slow(s: Summary) -> bool:
    """Whether the run has faults or is a mystery."""
    asked = s.experiment
    return isinstance(asked, Profiled) and any(bool(getattr(asked, name, None)) for name in INJECTED)


def with_reference(s: Summary) -> Summary:
    """The summary with the step of the reference that asked for the same on the same kind of device, if any: of
    several that of the same site, else the newest."""
    settings = {} if on_purpose_slow(s) else compared_settings(s)
    if not settings or metrics_by_name(s).get("step_ns") is None:
        return s
    found = [
        (folder, reference, variant)
        for folder, reference in some_references(MOST_REFERENCES)
        if (variant := _variant(reference, settings, device_kind(s))) is not None
    ]
    if not found:
        return s
    site = ((s.run or {}).get("site") or {}).get("name")
    folder, reference, variant = max(found, key=lambda each: (each[1].site == site, each[1].created_ns))
    return s.model_copy(update={"reference": _step(folder, reference, variant)})


def _variant(reference: Reference, settings: Settings, kind: str) -> StoredVariant | None:
    if reference.hardware.device_kind != kind:
        return None
    timed = (each for each in reference.variants if each.step_ns is not None)
    return next((each for each in timed if not differing(each.compared, settings)), None)


def _step(folder: Path, reference: Reference, variant: StoredVariant) -> ReferenceStep:
    return ReferenceStep(
        name=reference.name,
        variant=variant.name,
        site=reference.site,
        device_name=reference.hardware.device,
        run_count=variant.runs,
        step_ns=variant.step_ns or 0,
        mean_step_ns=_mean_step_ns(folder, variant),
    )


def _mean_step_ns(folder: Path, variant: StoredVariant) -> int | None:
    """None if the variant's runs cannot be read: a report does not fail because of a reference."""
    try:
        runs = read_runs(folder, variant).runs
    except WorkError:
        return None
    steps_ns = [ns for run in runs if (ns := judged_step_ns(run.metrics))]
    return round(geometric_mean(steps_ns)) if steps_ns else None
