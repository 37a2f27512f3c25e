"""A report says what kind of recording it is, by its structure, and concludes nothing that such a one cannot carry."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.summary import Summary, Window, problem_texts
from harness.compare.summaries import compare
from harness.compare.verdict import ChangeVerdict
from harness.explain.answer import answer
from harness.explain.findings import why_no_answer
from harness.measure.jobs import summarise
from harness.measure.paths import measure_one as measure
from harness.replay.attribute.diagnosis import by_share
from harness.report.compare.terminal import render_comparisons
from harness.traces.trace import Trace
from tests.analysis.measuring import RULES, measure_trace
from tests.synthetic.columns import GEMM, event, trace
from tests.synthetic.one_gpu import event as one_gpu
from tests.synthetic.one_gpu import training, written

MS = 1_000_000
US = 1_000
Rows = list[dict[str, Any]]


class Recorded:
    """A host that launches kernels one after the other; each row is what a profiler writes down of it."""

    def __init__(self) -> None:
        self.calls: Rows = []
        self.events: Rows = []
        self.ranges: Rows = []
        self.number = 0  # as CUPTI counts calls

    def call(self, start: int, end: int, name: str) -> Recorded:
        self.number += 1
        self.calls.append({"start": start, "end": end, "name": name, "correlation": self.number})
        return self

    def launch(self, start: int, runs: tuple[int, int] | None, *, took: int = 5 * US, name: str = GEMM) -> Recorded:
        """A launch at `start`, after getters that profilers leave out; the kernel runs from and to the times in `runs`,
        None: it does not run."""
        self.number += 7
        self.call(start, start + took, "cudaLaunchKernel")
        if runs is not None:
            self.events.append(event(name, *runs, launch=start, correlation=self.number, launch_thread=1))
        return self

    def training(self, steps: int, kernels: int = 40, *, start: int = 0, every: int = 100 * US) -> Recorded:
        """Steps in which each kernel runs half of the time until the next one."""
        for step in range(steps):
            begin = start + step * kernels * every
            self.ranges.append({"start": begin, "end": begin + kernels * every, "name": f"iteration_{step}"})
            for i in range(kernels):
                at = begin + i * every
                self.launch(at, (at + 10 * US, at + 10 * US + every // 2), name=f"kernel_{i % 7}")
        return self

    def captured(self, start: int, launches: int, every: int = 20 * US) -> Recorded:
        """A CUDA graph: its kernels are written down and do not run."""
        self.call(start, start + 2 * US, "cudaStreamBeginCapture")
        for i in range(launches):
            self.launch(start + 4 * US + i * every, None)
        return self.call(start + launches * every + 5 * US, start + launches * every + 10 * US, "cudaStreamEndCapture")

    def training_of_captures(self, launches: int, apart: int = 3 * MS) -> Recorded:
        """As vLLM records its start: each size is run, with so many launches, and captured once."""
        for at in range(0, 10 * apart, apart):
            for i in range(launches):
                self.launch(at + i * 100 * US, (at + i * 100 * US + 10 * US, at + i * 100 * US + 60 * US))
            self.captured(at + launches * 110 * US, 100, every=50 * US if launches > 1 else 20 * US)
        return self

    def trace(self) -> Trace:
        return trace(self.events, self.ranges, calls=self.calls, rank=0, world_size=1)

    def summary(self) -> Summary:
        return summary_of(self.trace())


def summary_of(made: Trace) -> Summary:
    (summary,) = summarise(measure_trace(made, Window.STEPS, RULES))
    return summary


def kinds(summary: Summary) -> list[str]:
    return [problem.what for problem in summary.quality.problems if problem.what in problem_texts.KINDS]


def reasons(summary: Summary, field: str) -> set[str]:
    return {one.reason for one in summary.quality.withheld if one.field == field}


def concludes_nothing(summary: Summary, what: str) -> bool:
    """Its kind is the first sentence, what to record follows and no cause, and the fields say so."""
    said = answer(summary)
    text = " ".join([*said.first, *said.rest])
    withheld = {one.field for one in summary.quality.withheld if one.reason == what}
    assert said.sentences[0].startswith(what[0].upper() + what[1:]) and text.count(said.sentences[0]) == 1
    assert said.attempt is not None and said.attempt.text.startswith("record ")
    assert said.command is None and not any(word in text for word in ("launch-bound", " costs "))
    assert not summary.findings and (summary.replay is None or not summary.replay.what_ifs)
    return {"findings", "replay.what_ifs"} <= withheld


def captured_once() -> Recorded:
    """A training that captures once and launches its graph."""
    made = Recorded().captured(0, 400, every=50 * US)
    for replay in range(30):
        at = 21 * MS + replay * 2 * MS
        made.call(at, at + 20 * US, "cudaGraphLaunch")
        made.events.append(event(GEMM, at + 20 * US, at + 2 * MS, launch=at, correlation=made.number))
    made.ranges.append({"start": 0, "end": 81 * MS, "name": "iteration_0"})
    return made


def sampled(share: float) -> Recorded:
    """A random sample of the launches; of many kernels and launches are drawn apart, else a kernel stays if its launch
    stays."""
    whole, chance = Recorded().training(50, kernels=400), random.Random(1)
    whole.calls = [row for row in whole.calls if chance.random() < share]
    there = {row["correlation"] for row in whole.calls}
    for row in whole.events:
        if row["correlation"] not in there:
            row["launch"] = -1
    whole.events = [row for row in whole.events if (chance.random() < share if share > 0.1 else row["launch"] >= 0)]
    return whole


def cut_out_of_a_queue() -> Recorded:
    """The host is far ahead: kernels at the start were launched before the recording, and those launched at its end
    run after it."""
    made = Recorded()
    for i in range(1000):
        made.launch(i * 100 * US, (i * 100 * US + 60 * MS, i * 100 * US + 60 * MS + 99 * US))
    made.calls = [row for row in made.calls if row["start"] >= 50 * MS]
    made.events = [row for row in made.events if row["end"] <= 110 * MS]
    made.events = [row | {"launch": row["launch"] if row["launch"] >= 50 * MS else -1} for row in made.events]
    return made


def with_getters() -> Recorded:
    """Calls that a profiler always leaves out: getters before each launch, and between steps a loop of queries that
    takes numbers by the thousand."""
    made = Recorded()
    for step in range(10):
        made.number += 50_000
        for i in range(40):
            made.number += 12
            at = step * 4 * MS + i * 100 * US
            made.launch(at, (at + 10 * US, at + 60 * US))
    return made


def step_of_a_server() -> Recorded:
    """A step cut out of a server's recording: what ran before it on the device is not in the file."""
    made = Recorded()
    for i in range(5):
        made.launch(i * 20 * US, (400 * MS + i * 20 * US, 400 * MS + i * 20 * US + 10 * US))
    made.events.insert(0, event(GEMM, 5 * US, 8 * US, launch=0, correlation=999))
    made.training(1, 100, start=401 * MS)
    made.ranges.clear()
    return made


def late(of: str) -> Recorded:
    """Work that waits for something recorded: for other ranks, for a long launch, or while another device works."""
    made = Recorded().training(1, 50)
    name = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL" if of == "collective" else "kernel_0"
    made.launch(6 * MS, (6 * MS + 301 * MS, 6 * MS + 310 * MS), took=300 * MS if of == "launch" else 5 * US, name=name)
    if of == "other device":
        made.launch(6 * MS, (7 * MS, 6 * MS + 300 * MS))
        made.events[-1]["device"] = 1
    return made


def long_launch(name: str) -> Recorded:
    """Of a known kernel, or behind a full queue: the host is far ahead."""
    made = Recorded().training(3)
    if name == "loaded_now":
        made.launch(12 * MS - 20 * US, (12 * MS, 18 * MS), name="kernel_1")
    return made.launch(12 * MS, (18 * MS, 18 * MS + 60 * US), took=6 * MS, name=name)


KINDS: dict[str, tuple[Recorded, list[str]]] = {
    "captures": (Recorded().training_of_captures(1), [problem_texts.GRAPH_CAPTURE]),
    "each size is run before it is captured": (
        Recorded().training_of_captures(100, 20 * MS), [problem_texts.GRAPH_CAPTURE]),
    "captures without any kernel": (Recorded().captured(0, 300), [problem_texts.GRAPH_CAPTURE]),
    "one capture and a training": (captured_once(), [problem_texts.FIRST_USE]),
    "a sample of kernels and launches": (sampled(0.3), [problem_texts.SAMPLED]),
    "a sample of launches": (sampled(0.02), [problem_texts.SAMPLED]),
    "a cut out of a queue": (cut_out_of_a_queue(), []),
    "calls that a profiler leaves out": (with_getters(), []),
    "work waits while nothing recorded runs": (step_of_a_server(), [problem_texts.WORK_MISSING]),
    **{f"work waits for a {of}": (late(of), []) for of in ("collective", "launch", "other device")},
    "a long launch of a known kernel": (long_launch("kernel_0"), []),
    "a long launch behind a full queue": (long_launch("loaded_now"), []),
}  # fmt: skip
CARRY_NOTHING = (
    *("captures", "a sample of kernels and launches", "a sample of launches"),
    "work waits while nothing recorded runs",
)


@pytest.mark.parametrize("case", KINDS)
def test_the_kind_of_a_recording_is_known_and_concludes_nothing_that_it_cannot_carry(case: str) -> None:
    made, expected = KINDS[case]
    summary = made.summary()
    assert kinds(summary) == expected
    assert case not in CARRY_NOTHING or concludes_nothing(summary, expected[0])


def test_what_such_recordings_show_of_the_devices() -> None:
    """Where captures run nothing runs, which is true; a sample and missing work carry no times without work."""
    captures = KINDS["captures"][0].summary()
    assert not captures.idle_causes and captures.devices[0].idle_ns
    assert captures.pop is None and problem_texts.GRAPH_CAPTURE in reasons(captures, "pop")
    assert (
        answer(KINDS["captures without any kernel"][0].summary()).first[0].startswith("A CUDA graph is captured here")
    )
    sample = KINDS["a sample of launches"][0].summary()
    assert (sample.devices[0].idle_ns, sample.devices[0].exposed_communication_ns) == (None, None) and sample.kernels
    assert KINDS["work waits while nothing recorded runs"][0].summary().devices[0].idle_ns is None
    once = KINDS["one capture and a training"][0].summary()
    (seen,) = (p.evidence for p in once.quality.problems if p.what == problem_texts.FIRST_USE)
    assert seen.endswith("20.0 ms of 81.0 ms, 1 CUDA graph")


def test_a_recording_of_the_device_alone_cannot_say_why_it_has_no_work(tmp_path: Path) -> None:
    document = training(12)
    document["traceEvents"] = [e for e in document["traceEvents"] if e["cat"] in ("kernel", "gpu_memcpy")]
    summary = measure([written(tmp_path / "trace.json.gz", document)])
    assert kinds(summary) == [problem_texts.DEVICE_ONLY]
    first, *others = answer(summary).first
    assert first.startswith("The host is missing in this recording: why a device has no work cannot be known (rank 0")
    assert not any("launch-bound" in text or "stall" in text for text in others)
    withheld = {w.field for w in summary.quality.withheld if w.reason == problem_texts.DEVICE_ONLY}
    assert withheld == {"findings.host", "replay.what_ifs"} and not (summary.replay and summary.replay.what_ifs)
    assert summary.devices[0].idle_ns  # how much is known
    with_launches = measure([written(tmp_path / "whole.json.gz", training(12))])
    assert kinds(with_launches) == []


def test_the_first_use_of_a_kernel_in_the_window_is_said_first() -> None:
    made = Recorded().training(3)
    made.launch(12 * MS, (18 * MS, 18 * MS + 60 * US), took=6 * MS, name="loaded_now")
    made.training(1, start=19 * MS)
    made.ranges[-1] = {"start": 12 * MS, "end": 23 * MS, "name": "iteration_3"}
    summary = made.summary()
    assert kinds(summary) == [problem_texts.FIRST_USE]
    said = answer(summary)
    assert not any("holds the first use" in text for text in (*said.first, *said.rest))
    assert [t for t in said.rest if "the first use of libraries and kernels: 26.1 % of the time" in t] != []
    other = summary.model_copy(update={"findings": [f for f in by_share(summary) if f.cause != "first-use"]})
    assert answer(other).first[0].startswith("The window holds the first use of libraries or kernels: it takes")
    assert not any(one.reason == problem_texts.FIRST_USE for one in summary.quality.withheld)


@pytest.mark.parametrize(("share", "seen"), [(0.7, "7 of 9 steps can be counted"), (0.05, "0 of 1 step can be")])
def test_a_file_that_is_cut_off_says_so_before_anything_else(tmp_path: Path, share: float, seen: str) -> None:
    text = json.dumps(training(12))
    file = tmp_path / "half.json"
    file.write_text(text[: int(share * len(text))])
    summary = measure([file])
    assert kinds(summary)[0] == problem_texts.CUT_OFF
    assert (
        answer(summary)
        .first[0]
        .startswith(f"The file is cut off: the work after its last event is not known (rank 0 (half.json): {seen}")
    )
    file.write_text(text)
    assert kinds(measure([file])) == []


def test_compare_and_whatif_say_the_kind_and_conclude_nothing() -> None:
    plain = Recorded().training(6).summary()
    graph = Recorded().training_of_captures(1)
    graph.ranges += [{"start": at * 3 * MS, "end": (at + 1) * 3 * MS, "name": f"iteration_{at}"} for at in range(6)]
    captured = graph.summary()
    pair = compare(plain, captured, ("plain", "captured"))
    assert pair.step_time and pair.step_time.verdict is ChangeVerdict.UNKNOWN
    text = " ".join(render_comparisons([pair], [plain, captured]).split())
    assert f"doubtful: b: {problem_texts.GRAPH_CAPTURE}: rank 0" in text
    assert "no verdict on this kind of recording" in text and "worse" not in text and "better" not in text
    assert why_no_answer(captured) == problem_texts.GRAPH_CAPTURE
    same = compare(plain, plain, ("a", "b"))
    assert same.step_time and same.step_time.verdict is ChangeVerdict.SAME and not same.doubts


def test_the_profilers_own_work_is_summed_inside_the_window(tmp_path: Path) -> None:
    """Its threads work at the same time, and before and after the steps; what the driver does is not the profiler's."""
    document = training(6)
    times = [(-500.0, 400.0), (900.0, 300.0), (1100.0, 300.0), (5900.0, 900.0)]  # 100 + 400 + 100 µs inside
    document["traceEvents"] += [one_gpu("overhead", "Buffer Flush", begin, length) for begin, length in times]
    document["traceEvents"].append(one_gpu("overhead", "Lazy Function Loading", 3000.0, 500.0))
    (own,) = measure([written(tmp_path / "trace.json.gz", document)]).profiler_overhead
    assert (own.rank, own.window_ns) == (0, 6 * MS)
    assert own.overhead_ns == pytest.approx(600 * US, abs=2)
    assert measure([written(tmp_path / "plain.json.gz", training(6))]).profiler_overhead == []
