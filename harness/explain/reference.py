"""The step of the stored reference beside the run's own, and the command that judges: one run is no sample."""

from __future__ import annotations

from harness.analysis.metrics import judged_step_ns, metrics_by_name
from harness.analysis.summary import Summary
from harness.common.paths import PROGRAM

_SAME = 0.05  # a reference check allows so much
_ABOUT_TWICE = (1.9, 2.1)


def reference_sentence(s: Summary) -> list[str]:
    """How the run's mean step compares with that of the stored reference that asked for the same; else nothing.

    The ratio is that of `reference check`. The two mean steps are not given: the answer has one step time, the median.
    """
    reference, own_ns = s.reference, judged_step_ns(metrics_by_name(s))
    if reference is None or not reference.mean_step_ns or not own_ns:
        return []
    stored_ns = reference.mean_step_ns
    where = f"{reference.variant} of {reference.name}, site {reference.site}, {reference.device_name}"
    said = [
        f"This run is {_in_words(own_ns / stored_ns)} as the reference by the mean step ({where}"
        f"{_close(own_ns / stored_ns)})."
    ]
    run = (s.run or {}).get("job_id")
    if run and not _is_same(own_ns / stored_ns):
        said.append(
            "One run does not show the cause, or whether the next run differs as much. Compare hardware, software, "
            f"counts and step times: `bash {PROGRAM} reference check {run}`"
        )
    return said


def _in_words(ratio: float) -> str:
    if _is_same(ratio):
        return "about as fast"
    times, pace = (ratio, "slow") if ratio > 1 else (1 / ratio, "fast")
    if _ABOUT_TWICE[0] <= times <= _ABOUT_TWICE[1]:
        return f"about twice as {pace} ({times:.2f} times)"
    return f"{times:.2f} times as {pace}"


def _close(ratio: float) -> str:
    return f"; {ratio:.2f} times" if _is_same(ratio) else ""


def _is_same(ratio: float) -> bool:
    return abs(ratio - 1) <= _SAME
