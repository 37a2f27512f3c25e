"""The sentences of a screen agree with each other, with the bar and with the recording, of real recordings and of
simulated ones: no share is above the whole, parts are not more than what they are parts of, nothing is both told and
denied, and no advice is against the recording. That a number is the right one is the matter of its own test."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from gpu_jobs.cases import requests
from gpu_jobs.judge import summary_of as simulated
from gpu_jobs.simulate import run

from harness.analysis.summary import Summary
from harness.explain.answer import Diagnosis, answer
from harness.measure.paths import measure_jobs
from harness.report.first_screen import bar_of_answer
from harness.theory.devices import half_precision
from tests.gallery import gallery_jobs
from tests.real_traces import real_jobs
from tests.replay.replaying import summary_of
from tests.synthetic.simulated import MS, US, Costs, CpuJob, GpuJob

_DIGITS = r"(-?\d+(?:,\d{3})*(?:\.\d+)?)"
_NUMBER = re.compile(rf"(?<![\w.#/-]){_DIGITS}(?: to {_DIGITS})? ?(ns|µs|ms|s|%)(?![\w/])")
_ROUNDING = 0.35  # percent, of parts that are told together
_JOBS = [*gallery_jobs(), *real_jobs(), *sorted(Path(__file__).parents[1].glob("data/h?00/*.json.gz"))]
_DENIED = re.compile(r"No (?:part that could be avoided|cause of lost time) is above 3.0 %")
_AVOIDABLE = re.compile(r"exposed communication|copies|idle: (?!not recorded|other)")  # parts of a bar
_ADVICE: dict[str, Callable[[Summary], bool]] = {  # words of an advice, and what a recording must not show then
    "pinned memory and|pin the host": lambda s: {copy.memory for copy in s.copies} - {None} == {"pinned"},
    r"bf16\)": lambda s: {half_precision(device.name) for device in s.devices} != {"bf16"},
    "torch.compile\\)": lambda s: any("triton_" in kernel.name for kernel in s.kernels),
    "in another process": lambda s: s.host_activities[0].kind == "os call" and not s.host_activities[0].range,
    "larger buckets|larger messages": lambda s: (
        len(s.ranks) == 1 < (s.world_size or 1) and "another rank" not in told(s)
    ),
}


class Told(NamedTuple):
    """One number of a sentence with its unit, a range's ends apart."""

    value: float
    unit: str


def numbers_of(sentence: str) -> list[Told]:
    """
    >>> numbers_of("Rank 1 loses 20.1 to 24.9 ms, 3.1 % of 2 steps.")
    [Told(value=20.1, unit='ms'), Told(value=24.9, unit='ms'), Told(value=3.1, unit='%')]
    """
    found = [(text, unit) for *ends, unit in _NUMBER.findall(sentence) for text in filter(None, ends)]
    return [Told(float(text.replace(",", "")), unit) for text, unit in found]


def too_much(answer: Diagnosis) -> list[str]:
    """Sentences with a share above the whole, or with shares that are together more than it."""
    wrong = []
    for sentence in (*answer.first, *answer.rest):
        told = numbers_of(sentence)
        shares = [one.value for one in told if one.unit == "%" and "more time than" not in sentence]
        above = [share for share in shares if not 0 <= share <= 100]
        split = " computing, " in sentence and sum(shares) > 100 + _ROUNDING
        if above or split:
            wrong.append(sentence)
    return wrong


def told(s: Summary) -> str:
    said = answer(s)
    return " ".join([*said.first, said.also])


def disagreements(s: Summary) -> list[str]:
    """What a screen tells that the rest of it, or the recording, denies."""
    said, bar, words = answer(s), bar_of_answer(s), told(s)
    wrong, tried = too_much(said), said.attempt.text if said.attempt and not said.attempt.command else ""
    parts = bar.parts if bar else []
    whole_ns = sum(part.ns for part in parts)
    if _DENIED.search(words):
        large = [part.label for part in parts if _AVOIDABLE.match(part.label) and part.ns >= 0.0305 * whole_ns]
        wrong += [f"{label} is large" for label in large if "Without one such part" not in words]
        wrong += ["a loss is denied"] * bool(s.findings)
    if "device's work was not recorded" in words:
        wrong += ["the host stands in for the device"] * any(part.label == "compute" for part in parts)
    drawn_ns = sum(min(part.avoidable_ns, part.ns) for part in parts)
    loading = [lost.lost_ns for lost in s.findings if lost.cause == "data-stall" and len(lost.ranks) >= len(s.ranks)]
    wrong += ["waiting for data is more than the bar has"] * (bool(parts) and sum(loading) > 1.05 * drawn_ns)
    wrong += ["a loss is above its step"] * any(lost.share > 1 for lost in s.findings)
    wrong += [f"advice {text}" for text, denied in _ADVICE.items() if re.search(text, tried) and denied(s)]
    start = max(s.before_steps, key=lambda row: row.duration_ns, default=None)
    if (
        start
        and start.ended_by != "end"
        and start.duration_ns > 0.55 * start.recorded_ns
        and start.unknown_ns < 0.8 * start.duration_ns
    ):
        wrong += ["the start is not told first"] * ("lie before" not in " ".join(said.first[: len(said.doubts) + 1]))
    return wrong


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(job, id=job.name, marks=pytest.mark.long if i % 3 else ())  # a third, as each takes a second
        for i, job in enumerate(_JOBS)
    ],
)
def test_the_numbers_told_of_a_real_recording_agree(job: Path) -> None:
    assert [found for s in measure_jobs([job]) if (found := disagreements(s))] == []


def made() -> Iterator[Summary]:
    """Jobs on CPUs and GPUs, healthy and not, and every ninth of the simulated ones."""
    yield summary_of(GpuJob(launch_ns=300 * US, kernel_ns=50 * US).traces())
    yield summary_of(GpuJob(kernel_ns=MS, transfer_ns=30 * MS, late={(1, 2): 20 * MS}).traces())
    yield summary_of(CpuJob(Costs(ranks=2, stalls={(1, 1): 30 * MS})).traces())
    for request in requests(20_262, 1, 2, 3)[::9]:
        case = request.case()
        yield simulated(run(case.training), case.tool, python=case.training.stacks)


def test_the_numbers_told_of_a_made_recording_agree() -> None:
    assert [found for s in made() if (found := disagreements(s))] == []


@pytest.mark.parametrize(
    "sentence",
    ["A step takes 1.00 ms on average: 70.0 % computing, 40.0 % idle.", "A stall costs 3.0 ms a step (103 %)."],
)
def test_numbers_that_disagree_are_seen(sentence: str) -> None:
    assert too_much(Diagnosis([sentence])) == [sentence]
