"""Every number in the sentences of an answer, and what it may be: a field of the Summary, or one of the sums and ratios
that are listed here. A number that is none of them is invented."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, NamedTuple

from harness.analysis import device_time
from harness.analysis.labels import are_cpus
from harness.analysis.summary import LongMessage, Summary
from harness.common.alpha_beta import bus_factor
from harness.common.format import Scale, about, amount, duration, percent, rate
from harness.explain.answer import Diagnosis
from harness.explain.copies import CopiedJob, copy_causes, steady_bandwidth
from harness.replay.attribute.causes import CAUSES
from harness.replay.attribute.diagnosis import by_share

_TIME, _SIZE = r"ns|µs|ms|s", r"(?:[kMGTP]?B)(?:/s)?"
_DIGITS = r"(-?\d+(?:,\d{3})*(?:\.\d+)?)"
_NUMBER = re.compile(rf"(?<![\w.#/-]){_DIGITS}(?: to {_DIGITS})? ?({_TIME}|%|{_SIZE})?(?![\w/])")
_PARTS = ("compute_ns", "exposed_communication_ns", "exposed_memory_ns", "idle_ns")
_CONSTANTS = {  # thresholds and definitions that sentences name
    "3.0 %",  # what is noticeable
    "95 %",  # of an interval
    "2",  # times a later step, from which a first one is warm-up
    "1",
    *("32", "16", "1.5"),  # bits of a number, and how much faster products in tf32 become
}
_FIRST = ("first use", "graph capture")  # causes of idle time that are told as one
_LARGE = 1 << 20  # bytes of a copy that may be of a model
_SHORTEST = 3  # characters of a name
_ROUNDING = 0.35  # percent, of parts that are told together


class Told(NamedTuple):
    """One number of a sentence, as text with its unit, a range's ends apart."""

    text: str
    value: float
    unit: str


def numbers_of(sentence: str) -> list[Told]:
    """
    >>> [one.text for one in numbers_of("Rank 1 loses 20.1 to 24.9 ms, 3.1 % of 2 steps: 35.5 GB.")]
    ['1', '20.1 ms', '24.9 ms', '3.1 %', '2', '35.5 GB']
    """
    found = []
    for first, last, unit in _NUMBER.findall(sentence):
        for text in filter(None, (first, last)):
            shown = f"{text} {unit}" if unit else text
            found.append(Told(shown, float(text.replace(",", "")), unit))
    return found


def invented(s: Summary, answer: Diagnosis) -> list[str]:
    """The numbers of an answer that the Summary does not have, each with its sentence."""
    allowed = known_numbers(s)
    literal = [re.compile(rf"(?<!\w){re.escape(text)}(?!\w)") for text in sorted(_quoted(s), key=len, reverse=True)]
    wrong = []
    for sentence in (*answer.first, *answer.rest):
        rest = sentence
        for text in literal:
            rest = text.sub("…", rest)
        wrong += [f"{one.text} in: {sentence}" for one in numbers_of(rest) if one.text not in allowed]
    return wrong


def too_much(answer: Diagnosis) -> list[str]:
    """Shares above the whole, and parts told together that are more than it."""
    wrong = []
    for sentence in (*answer.first, *answer.rest):
        told = numbers_of(sentence)
        shares = [one.value for one in told if one.unit == "%" and "more time than" not in sentence]
        wrong += [f"{share} % in: {sentence}" for share in shares if not 0 <= share <= 100]
        if " computing, " in sentence and sum(shares) > 100 + _ROUNDING:
            wrong.append(f"{sum(shares):.1f} % in: {sentence}")
        if sentence.startswith("The other "):
            whole, _, *parts = [_ns(one) for one in told if one.unit in _TIME.split("|")]
            if not 0.93 * whole <= sum(parts) <= 1.01 * whole + 1:
                wrong.append(f"{sum(parts):.0f} of {whole:.0f} ns in: {sentence}")
    return wrong


def _ns(one: Told) -> float:
    return one.value * {"ns": 1, "µs": 1e3, "ms": 1e6, "s": 1e9}[one.unit]


def known_numbers(s: Summary) -> set[str]:
    """The texts of all numbers that a sentence may have."""
    durations = {duration(ns).replace(" ns", " ns") for ns in _durations(s) if ns is not None}
    shares = [share for share in _shares(s) if share is not None]
    percents = {percent(share) for share in shares} | {
        f"{100 * share:.0f} %" for share in (*_line_shares(s), *_place_shares(s))
    }
    percents |= {about(share) for share in shares}
    return durations | set(_of_a_step(s)) | percents | set(_counts(s)) | set(_amounts(s)) | _CONSTANTS


def _of_a_step(s: Summary) -> Iterator[str]:
    """Losses and predicted steps, as exact as the step is told."""
    wholes = {found.lost_ns / found.share for found in s.findings if found.share}
    if s.replay is not None:
        wholes.add(s.replay.step_ns)
    changes = s.replay.what_ifs if s.replay else []
    times = [ns for what in changes for ns in (what.step_ns, what.low_ns, what.high_ns)]
    times += [ns for found in s.findings for ns in (found.lost_ns, found.low_ns, found.high_ns)]
    times += [s.replay.step_ns - found.lost_ns for found in s.findings if s.replay is not None]
    for scale in map(Scale, wholes):
        for text in {scale.text(ns) for ns in (*times, scale.whole_ns) if ns is not None}:
            yield from (text, f"{text} {scale.unit}")


def _quoted(s: Summary) -> set[str]:
    """Names and the like; a bare number is none."""
    return {text for text in _texts(s) if re.search(r"[A-Za-z]", text) and len(text) > _SHORTEST}


def _texts(s: Summary) -> Iterator[str]:
    """Texts that a sentence quotes whole: names, evidence, changes in words, and the constant advice."""
    for problem in s.quality.problems:
        yield from (problem.evidence, problem.what, problem.evidence.partition(": ")[2])
    for found in s.findings:
        yield from (found.what or "", found.evidence)
        places = [found.where, *(line.where for line in found.lines)]
        yield from chain.from_iterable((p.file, p.function) for p in places if p is not None)
    yield from (what.meaning for what in (s.replay.what_ifs if s.replay else ()))
    for activity in s.host_activities:
        yield from filter(None, (activity.what, activity.operator, activity.range))
    yield from (kernel.name for kernel in s.kernels)
    yield from (gap.range for device in s.devices for gap in device.longest_gaps if gap.range)
    yield from (entry.advice for entry in CAUSES.values())
    yield from (f"{k.kind} {k.precision}" for k in s.kinds if k.precision)
    yield from (name for device in s.devices if (name := device.name))


def _durations(s: Summary) -> Iterator[float | None]:
    yield from chain(_steps(s), _of_starts(s), _of_messages(s))
    replay = s.replay
    if replay is not None:
        yield from (replay.step_ns, replay.unexplained_ns)
        yield from (replay.remainder.model_dump().values() if replay.remainder else ())
        for what in replay.what_ifs:
            yield from (what.step_ns, what.low_ns, what.high_ns)
            yield replay.step_ns - (what.low_ns or 0)  # what bf16 saves at best
    for found in s.findings:
        yield from (found.lost_ns, found.low_ns, found.high_ns)
        if found.share:
            yield found.lost_ns / found.share
    yield from (row.step_exposed_ns for row in s.traffic)
    yield from (e.overhead_ns for e in s.profiler_overhead)


def _of_starts(s: Summary) -> Iterator[float | None]:
    """Before the first step: each part of each process; and in the window the first use of each call in each operator,
    mean of the processes."""
    for row in s.before_steps:
        yield from (row.recorded_ns, *(ns for name, ns in row.model_dump().items() if name.endswith("_ns")))
    of_call: Counter[tuple[str | None, str | None]] = Counter()
    for activity in s.host_activities:
        if activity.cause in _FIRST:
            own = activity.operator if activity.operator != activity.what else None
            of_call[activity.what, own] += activity.idle_ns
    processes = max(len({activity.rank for activity in s.host_activities}), 1)
    yield from (ns // processes for ns in of_call.values())


def _of_messages(s: Summary) -> Iterator[float | None]:
    """Of each row of long messages: exposed in a step, with and without waiting; one; how far apart ranks enter it."""
    for row in s.long_messages:
        each = row.exposed_ns * (row.count_per_step or row.count) / row.count
        yield from (each, row.duration_ns / row.count, row.mean_start_skew_ns)
        if row.transfer_ns is not None:
            yield each * row.transfer_ns / max(row.duration_ns, 1)
    ranks = {device.rank for device in s.devices}
    yield from (sum(d.communication_ns or 0 for d in s.devices if d.rank == rank) for rank in ranks)
    for used in s.traffic:
        yield used.step_duration_ns / max(used.count_per_step, 1)


def _steps(s: Summary) -> Iterator[float | None]:
    steps = s.steps
    if steps.duration is not None:
        yield from (steps.duration.median_ns, steps.mean_ns, steps.between_ns)
        yield (steps.mean_ns or 0) - (steps.between_ns or 0)
    if s.devices:
        yield sum(d.window_ns for d in s.devices) / len(s.devices)
    for own in s.training:
        yield from (own.median_step_ns, own.median_data_ns, own.median_forward_ns)
        yield from (own.median_backward_ns, own.median_optimizer_ns)


def _shares(s: Summary) -> Iterator[float | None]:
    idle = device_time.share(s.devices, "idle_ns") or 0.0
    for part in _PARTS:
        yield device_time.share(s.devices, part)
    yield from (cause.share * idle for cause in s.idle_causes)
    yield from (found.share for found in s.findings)
    yield from (what.gain for what in (s.replay.what_ifs if s.replay else ()))
    yield from _work_shares(s)
    yield from (e.overhead_ns / max(e.window_ns, 1) for e in s.profiler_overhead)
    for row in s.host_activities:  # of an activity, the part in its innermost function
        if row.innermost_ns is not None and row.idle_ns:
            yield row.innermost_ns / row.idle_ns
    yield from _copy_shares(s)
    yield from (row.duration_ns / max(row.recorded_ns, 1) for row in s.before_steps)
    total = sum(kind.duration_ns for kind in s.kinds)
    for name in ("fp32", "tf32"):
        yield sum(k.duration_ns for k in s.kinds if k.precision == name) / max(total, 1)
    alike: dict[tuple[object, ...], list[LongMessage]] = {}
    for message in (m for m in s.long_messages if m.waiting_ns is not None):
        key = message.kind, message.group_size, message.phase, message.bytes, message.range
        alike.setdefault(key, []).append(message)
    for rows in alike.values():
        yield sum(m.waiting_ns or 0 for m in rows) / max(sum(m.duration_ns for m in rows), 1)
    waited = [c for c in s.collectives if c.least_waiting_ns is not None]
    yield sum(c.least_waiting_ns or 0 for c in waited) / max(sum(c.duration_ns or 0 for c in waited), 1)
    if s.pipeline is not None:
        yield from (s.pipeline.mean_bubble_fraction, s.pipeline.expected_bubble_fraction)


def _work_shares(s: Summary) -> Iterator[float]:
    """Of kinds of kernels, without communication and copies; of a CPU's operators."""
    kernels = [k.duration_ns for k in s.kernels]
    kinds = [k.duration_ns for k in s.kinds if not k.kind.startswith(("communication", "copy", "memset"))]
    fusible = [k.duration_ns for k in s.kinds if k.kind in ("elementwise", "normalisation")]
    yield sum(fusible) / max(sum(kinds), 1)
    for times in (kernels if are_cpus(s.devices) else (), kinds):
        yield from (ns / max(sum(times), 1) for ns in times)


def _copy_shares(s: Summary) -> Iterator[float]:
    """Of each class of copies that is exposed: its part of the time, what other work could hide, what is left, and how
    much of the link's bandwidth it reaches."""
    window = sum(d.window_ns for d in s.devices) or 1
    for cause in _causes_of_copies(s):
        exposed = sum(c.exposed_ns for c in cause.copies)
        yield from (exposed / window, cause.hideable_ns / window, (exposed - cause.hideable_ns) / window)
        size, ns = sum(c.bytes for c in cause.copies), sum(c.duration_ns for c in cause.copies)
        yield from (size / max(ns, 1) / c.link_gb_per_s for c in cause.copies if c.link_gb_per_s)


def _causes_of_copies(s: Summary) -> list[Any]:
    return copy_causes(s.copies, CopiedJob(s.devices, s.steps.counted)) if s.copies and s.devices else []


def _line_shares(s: Summary) -> Iterable[float]:
    return [line.share for found in s.findings for line in found.lines]


def _place_shares(s: Summary) -> Iterator[float]:
    """Of a loss, the part in a call, an operator, a function or a range, with all that is around it; of exposed
    communication, the part in messages of a kind."""
    for found in s.findings or by_share(s):
        lost_ns = found.share * sum(d.window_ns for d in s.devices if d.rank in found.ranks)
        times: Counter[tuple[object, ...]] = Counter()
        for row in (row for row in s.host_activities if row.rank in found.ranks):
            where = row.where and (row.where.file, row.where.function)
            names = (row.what, row.operator, where, row.range)
            inner = (row.cause, row.innermost and row.innermost.function, *names)
            times[inner] += row.innermost_ns or 0
            for at in range(len(names)):
                around = (row.cause, at, *names[at:])
                times[around] += row.idle_ns
        yield from (min(ns / lost_ns, 1.0) for ns in times.values() if lost_ns)
    exposed: Counter[int | None] = Counter()
    for device in s.devices:
        exposed[device.rank] += device.exposed_communication_ns or 0
    yield from (m.exposed_ns / max(exposed[m.rank], m.exposed_ns, 1) for m in s.long_messages)


def _counts(s: Summary) -> Iterator[str]:
    ranks = {*s.ranks, *(rank for found in s.findings for rank in found.ranks)} - {None}
    yield from map(str, ranks)
    sizes = {len(s.devices), len(s.ranks), s.world_size, *(len(f.ranks) for f in s.findings)}
    if s.replay is not None:
        sizes |= {s.replay.processes, s.replay.steps}
    sizes |= {len(f.ranks) - 4 for f in s.findings} | {c.group_size for c in s.collectives}
    sizes |= {len({p.what for p in s.quality.problems}) - 2} | {p - 1 for p in (len(s.quality.problems),)}
    yield from (f"{n:,}" for n in sizes if n is not None and n >= 0)
    yield from (str(p.line) for f in s.findings for p in [f.where, *(x.where for x in f.lines)] if p and p.line)
    if s.steps.excluded_warmup:
        yield f"{s.steps.excluded_warmup / max(len(s.ranks), 1):.0f}"
    if s.profiler_cost is not None:
        yield f"{s.profiler_cost.ratio:.2f}"
    yield from _of_traffic(s)


def _of_traffic(s: Summary) -> Iterator[str]:
    for row in s.traffic:
        yield from (f"{row.count_per_step:.0f}", f"{row.used_pass_count_per_step:.0f}")
    for message in s.long_messages:
        yield from (str(message.group_size), f"{message.count_per_step or message.count:,.0f}")
    for cause in _causes_of_copies(s):
        large = sum(size.count for c in cause.copies for size in c.sizes if size.at_least_bytes >= _LARGE)
        counts = [sum(c.count for c in cause.copies), *(c.count for c in cause.copies), large]
        per_device = [n / max(s.steps.counted, 1) for n in counts]
        yield from (f"{n:,}" for n in counts)
        yield from (rate(n) for n in per_device)
        yield from (f"{n:.1f}" for n in per_device)


def _amounts(s: Summary) -> Iterator[str]:
    for start in s.before_steps:
        yield from (amount(start.copied_bytes), f"{start.copied_bytes / max(start.copying_ns, 1):.1f} GB/s")
    for message in s.long_messages:
        if message.bytes is not None:
            yield amount(message.bytes)
            for ns in filter(None, (message.duration_ns, message.transfer_ns)):
                reached = message.bytes * message.count / ns
                bus = bus_factor(message.kind, message.group_size)
                yield from (f"{rate(reached)} GB/s", f"{rate(reached * (bus or 1))} GB/s")
    for row in s.traffic:
        if row.bytes is not None:
            yield from (amount(row.bytes), amount(row.bytes * row.count_per_step))
    for cause in _causes_of_copies(s):
        for copies in (cause.copies, *([c] for c in cause.copies)):
            size, ns = sum(c.bytes for c in copies), sum(c.duration_ns for c in copies)
            yield from (amount(size), f"{rate(size / max(ns, 1))} GB/s")
        links = [steady_bandwidth(cause.copies), *(c.link_gb_per_s for c in cause.copies)]
        yield from (f"{rate(known)} GB/s" for known in links if known)
