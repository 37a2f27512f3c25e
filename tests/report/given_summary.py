"""A Summary of one device, as tests of the answer give it: only what they are about is named."""

from __future__ import annotations

from typing import Any

from harness.analysis.summary import Device, IdleCause, KindTime, RankTraining, Spread, Steps, Summary
from harness.explain.answer import Diagnosis
from harness.replay.attribute.diagnosis import by_share

MS = 1_000_000
FP32 = KindTime(kind="gemm", precision="fp32", count=1, duration_ns=90 * MS, share=1)


def equal(count: int, ns: int) -> Spread:
    return Spread(count=count, median_ns=ns, min_ns=ns, max_ns=ns, p10_ns=ns, p90_ns=ns)


def summary(
    compute: int = 60, exposed: int = 0, copying: int = 0, idle: dict[str, int] | None = None, **more: Any
) -> Summary:
    """One device of a window of 100 ms and steps of 10 ms; parts in milliseconds."""
    causes = [IdleCause(cause=c, duration_ns=ms * MS, share=0.0) for c, ms in (idle or {}).items()]
    device = Device(
        window_ns=100 * MS, compute_ns=compute * MS,
        communication_ns=exposed * MS, exposed_communication_ns=exposed * MS, overlapped_communication_ns=0,
        memory_ns=copying * MS, exposed_memory_ns=copying * MS, idle_ns=sum((idle or {}).values()) * MS,
        rank=0, device=0, source="made", gpu_events=1, kernels=1, idle_causes=causes,
    )  # fmt: skip
    given: dict[str, Any] = {"devices": [device], "idle_causes": causes} | more
    given.setdefault("steps", Steps(source="made", counted=10, duration=equal(10, 10 * MS)))
    made = Summary(**given)
    return made if "findings" in given else made.model_copy(update={"findings": by_share(made)})


def of_devices(given: Summary, **changes: Any) -> Summary:
    """The same on devices with these fields."""
    return given.model_copy(update={"devices": [device.model_copy(update=changes) for device in given.devices]})


def run(exercise: int, *flags: str, **asked: Any) -> dict[str, Any]:
    """The fields of a Summary that only a run of the harness has."""
    return {
        "run": {"command": ["slurm.sh", "-e", str(exercise), *flags]},
        "experiment": {"exercise": exercise} | asked,
        "training": [RankTraining(rank=0, micro_batch_size=2, gradient_accumulation_steps=1)],
    }


def text(said: Diagnosis) -> str:
    """All that an answer says, in the order of reading."""
    return " ".join([*said.first, *said.rest])
