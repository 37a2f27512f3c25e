"""Chrome's events of other tools, or of several ranks in one file, as Kineto writes those of one process: pairs of
begin and end as spans, a device's work under a category that is not known, ranks by what tells them apart."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from harness.traces.kineto.framing import Records, decoded
from harness.traces.kineto.records import IGNORED, KIND_OF_CATEGORY, RecordKind, integer, nanoseconds

_DEVICE = re.compile(
    r"gpu|cuda|hip(?!\s*api)|device|kernel|npu|ascend hardware|hpu|xpu|tpu|mtia|mlu|musa|gcu|accelerator|memcpy|memset",
    re.IGNORECASE,
)
_HOST = re.compile(r"\bcpu\b|\bapi\b|runtime|driver|host|python|annotation|overlap analysis", re.IGNORECASE)
_STREAM = re.compile(r"stream|queue", re.IGNORECASE)
_RANK = re.compile(r"\brank\W{0,3}(\d+)", re.IGNORECASE)
_LABELLED = re.compile(r"^(.*?\S)\s+(\d+)$", re.DOTALL)
_NUMBER = re.compile(r"(\d+)")
_OF_LEGACY_AUTOGRAD = {"CPU functions": "cpu_op", "CUDA functions": "kernel"}
_AT_ONCE = 1024
_ALL = 0.99  # of the spans that say of which rank they are
_MOST_TRACKS = 10_000  # processes and threads that are told apart
_MOST_NAMED = 3  # categories in a sentence
_FAR = 10**8  # more than any pid: numbers of a rank's processes
DEVICES_APART = 256  # numbers of a rank's devices
_THREADS_APART = 1 << 50


class Event(msgspec.Struct, gc=False):
    """Any event of Chrome's trace format."""

    ph: str = ""
    cat: str | None = ""
    name: str | None = ""
    pid: Any = -1
    tid: Any = -1
    ts: msgspec.Raw = msgspec.Raw(b"")
    dur: msgspec.Raw = msgspec.Raw(b"")
    args: dict[str, msgspec.Raw] | None = None


Process = str  # as text, as the file has it
_event = msgspec.json.Decoder(Event)
_COPIES, _SETS = re.compile(r"memcpy|\bcopy\b", re.IGNORECASE), re.compile(r"memset", re.IGNORECASE)


@dataclass(slots=True)
class Track:
    """The spans of one category in one process."""

    count: int = 0
    time_ns: int = 0
    on_device: bool = False  # its arguments name a device or a stream
    threads: set[str] = field(default_factory=set)
    ranks: Counter[int] = field(default_factory=Counter)


@dataclass(slots=True)
class Census:
    """What a file holds. tracks: by category and process."""

    tracks: dict[tuple[str, Process], Track] = field(default_factory=lambda: defaultdict(Track))
    process_names: dict[Process, str] = field(default_factory=dict)
    thread_names: dict[tuple[Process, str], str] = field(default_factory=dict)
    other: Counter[str] = field(default_factory=Counter)  # events that are no spans, by their phase


def census_of(records: Records) -> Census:
    """Count the events of a file. Raises TraceError: it cannot be read."""
    census = Census()
    for event in _spans(records, census):
        track = census.tracks[_category(event), str(event.pid)]
        track.count += 1
        track.time_ns += _duration_ns(event)
        args = event.args or {}
        track.on_device |= "stream" in args or "device" in args
        if len(track.threads) < _MOST_TRACKS:
            track.threads.add(str(event.tid))
        rank = _whole(args.get("rank"))
        if rank >= 0:
            track.ranks[rank] += 1
    return census


def _events(records: Records) -> Iterator[Event]:
    for raws in records:
        for raw in raws:
            try:
                yield decoded(_event, raw)
            except msgspec.DecodeError:
                records.unreadable += 1


def _spans(records: Records, census: Census) -> Iterator[Event]:
    """Complete events, and pairs of begin and end as such; names of processes and threads go into the census."""
    open_spans: dict[tuple[str, str], list[Event]] = defaultdict(list)
    for event in _events(records):
        where = str(event.pid), str(event.tid)
        if event.ph == "X":
            yield event
        elif event.ph == "B":
            open_spans[where].append(event)
        elif event.ph == "E" and open_spans[where]:
            begun = open_spans[where].pop()
            begun.dur = _between(begun, event)
            begun.ph, begun.args = "X", (begun.args or {}) | (event.args or {})
            yield begun
        elif event.ph == "M":
            text = _text((event.args or {}).get("name"))
            if event.name == "process_name":
                census.process_names[where[0]] = text
            elif event.name == "thread_name":
                census.thread_names[where] = text
        else:
            census.other[event.ph] += 1
    if left := sum(map(len, open_spans.values())):
        census.other["B"] += left


def _category(event: Event) -> str:
    return event.cat or ""


def _kind(category: str) -> RecordKind | None:
    return KIND_OF_CATEGORY.get(category)


def _text(value: msgspec.Raw | None) -> str:
    try:
        found = msgspec.json.decode(value or b"null")
    except msgspec.DecodeError:
        return ""
    return found if isinstance(found, str) else ""


def _whole(value: msgspec.Raw | None) -> int:
    """A number among the arguments, perhaps as text; -1: there is none."""
    return integer(bytes(value or b"").strip(b'"').decode("ascii", "replace"))


def _numbered(value: Any) -> int | str:
    return value if isinstance(value, (int, str)) else -1


def _duration_ns(event: Event) -> int:
    try:
        return int(nanoseconds([event.dur])[0])
    except ValueError:
        return 0


def _between(begin: Event, end: Event) -> msgspec.Raw:
    """The duration of a pair in microseconds; empty: it has none."""
    try:
        first_ns, last_ns = nanoseconds([begin.ts, end.ts]).tolist()
    except ValueError:
        return msgspec.Raw(b"")
    duration_ns = last_ns - first_ns
    return msgspec.Raw(b"%d.%03d" % divmod(duration_ns, 1000)) if duration_ns >= 0 else msgspec.Raw(b"-1")


@dataclass(slots=True)
class ReadingPlan:
    """How a file's events are read. as_kineto: Kineto's category of each track that is read. label: of a process, or of
    `args.rank` as text, the place of its rank in `ranks`; empty: all are one process. pids: of the ranks. notes: what
    is uncertain."""

    census: Census
    as_kineto: dict[tuple[str, Process], str]
    devices: dict[Process, int]
    label: dict[str, int] = field(default_factory=dict)
    by_argument: bool = False
    pids: list[int] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def records(self, records: Records) -> Iterator[list[bytes]]:
        """The file's spans as Kineto writes them. Raises TraceError: the file cannot be read."""
        streams, written = _streams(self.census), list[bytes]()
        for event in _spans(records, Census()):
            process, category = str(event.pid), self.as_kineto.get((_category(event), str(event.pid)), "")
            of_device = _kind(category) is RecordKind.DEVICE
            # Tools show the work of a device's streams again, on threads of its own.
            if category and not (of_device and process in streams and str(event.tid) not in streams[process]):
                written.append(self._written(event, category, of_device))
            if len(written) >= _AT_ONCE:
                yield written
                written = []
        yield written

    def _written(self, event: Event, category: str, of_device: bool) -> bytes:
        args = dict(event.args or {})
        place = self.label.get(str(_whole(args.get("rank"))) if self.by_argument else str(event.pid), 0)
        pid, tid = integer(_numbered(event.pid)), integer(_numbered(event.tid))
        if of_device:
            device = _whole(args.get("device"))
            device = self.devices.get(str(event.pid), 0) if device < 0 else device
            args["device"] = msgspec.Raw(b"%d" % (place * DEVICES_APART + device))
            args.setdefault("stream", msgspec.Raw(b"%d" % tid))
        elif self.label:
            pid, tid = self.pids[place], place * _THREADS_APART + tid
        written = {"ph": "X", "cat": category, "name": event.name or "", "pid": pid, "tid": tid, "args": args}
        times = {"ts": event.ts, "dur": event.dur if event.dur else msgspec.Raw(b"-1")}
        return msgspec.json.encode(written | times)


def plan_of(census: Census) -> ReadingPlan:
    """What the events are, and whose."""
    as_kineto = {track: _as_kineto(*track, census) for track in census.tracks}
    on_device = dict.fromkeys(process for (_, process), cat in as_kineto.items() if _kind(cat) is RecordKind.DEVICE)
    plan = ReadingPlan(
        census, as_kineto, {process: _device_number(process, census, n) for n, process in enumerate(on_device)}
    )
    for (category, process), taken in as_kineto.items():
        if taken and taken != category:
            track = census.tracks[category, process]
            what = category or census.process_names.get(process) or process
            plan.notes.append(f"{_amount(track)} of {what!r}, no category of PyTorch's, are read as {taken!r}")
    _tell_apart(plan)
    return plan


def _as_kineto(category: str, process: Process, census: Census) -> str:
    if category in KIND_OF_CATEGORY or category in IGNORED:
        return category if category in KIND_OF_CATEGORY else ""
    if not category and process in _OF_LEGACY_AUTOGRAD:
        return _OF_LEGACY_AUTOGRAD[process]
    words = f"{category} {process} {census.process_names.get(process, '')}"
    on_device = census.tracks[category, process].on_device or _DEVICE.search(words)
    if not on_device or _HOST.search(words):
        return ""
    return "gpu_memcpy" if _COPIES.search(words) else "gpu_memset" if _SETS.search(words) else "kernel"


def _device_number(process: Process, census: Census, default: int) -> int:
    """The number at the end of the process's name or of its own text, if it is no large one."""
    for text in (census.process_names.get(process, ""), process):
        numbers = _NUMBER.findall(text)
        if numbers and int(numbers[-1][:9]) < DEVICES_APART:
            return int(numbers[-1])
    return default


def _streams(census: Census) -> dict[Process, set[str]]:
    """The threads that are named after streams, of the processes that have such."""
    streams: dict[Process, set[str]] = defaultdict(set)
    for (process, thread), name in census.thread_names.items():
        if _STREAM.search(name):
            streams[process].add(thread)
    return streams


def _tell_apart(plan: ReadingPlan) -> None:
    """Set the ranks, if something says of all work of devices of which rank it is."""
    read = {track: plan.census.tracks[track] for track, category in plan.as_kineto.items() if category}
    argued = sum((track.ranks for track in read.values()), Counter[int]())
    plan.by_argument = len(argued) > 1 and argued.total() >= _ALL * sum(track.count for track in read.values())
    on_host, on_device = (defaultdict[str, Counter[str]](Counter) for _ in range(2))
    for (category, process), track in read.items():
        label = _label(process, plan.census.process_names.get(process, ""))
        whose = {str(rank): count for rank, count in track.ranks.items()} if plan.by_argument else {label: track.count}
        for owner, count in whose.items():
            is_work = _kind(plan.as_kineto[category, process]) is RecordKind.DEVICE
            (on_device if is_work else on_host)[owner][process] += count
    labels = sorted(on_device, key=lambda text: [int(part) if part.isdigit() else part for part in _NUMBER.split(text)])
    if len(labels) < 2 or "" in labels or (on_host and set(labels) != set(on_host)):
        plan.by_argument = False
        return
    numbers = [_NUMBER.findall(label) for label in labels]
    alone = all(len(found) == 1 for found in numbers) and len({int(found[0]) for found in numbers}) == len(labels)
    plan.ranks = [int(found[0]) for found in numbers] if alone else list(range(len(labels)))
    if not alone:
        plan.notes.append(f"the ranks of {', '.join(labels[:_MOST_NAMED])} … are taken in this order")
    for place, label in enumerate(labels):
        pid = integer((on_host or on_device)[label].most_common(1)[0][0])
        plan.pids.append(place * _FAR + max(pid, 0))
        if plan.by_argument:
            plan.label[label] = place
    if not plan.by_argument:
        names = plan.census.process_names
        plan.label = {process: labels.index(_label(process, names.get(process, ""))) for _, process in read}


def _label(process: Process, name: str) -> str:
    """What tells a rank's processes from those of another: a rank in a name, or what stands before the pid."""
    if rank := _RANK.search(name) or _RANK.search(process):
        return rank[1]
    labelled = _LABELLED.match(process)
    return labelled[1] if labelled else ""


def what_is_there(census: Census) -> str:
    """The file's spans by category and its other events, in words."""
    tracks = sorted(census.tracks.items(), key=lambda item: -item[1].count)
    named = [
        f"{_amount(track)} of {(category or census.process_names.get(process) or process)!r}"
        for (category, process), track in tracks
    ]
    other = [f"{count:,} events of phase {phase!r}" for phase, count in census.other.most_common()]
    told, rest = [*named, *other][:_MOST_NAMED], len(named) + len(other) - _MOST_NAMED
    return ", ".join(told) + (f" and {rest} other kinds" if rest > 0 else "") if told else "no span at all"


def _amount(track: Track) -> str:
    return f"{track.count:,} {'span' if track.count == 1 else 'spans'} ({track.time_ns / 1e6:,.1f} ms)"
