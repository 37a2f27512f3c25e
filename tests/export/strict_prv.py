"""A reader of Paraver traces that forgives nothing. For tests: it is slow, and its errors are assertions."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

HEADER = re.compile(r"#Paraver \(\d\d/\d\d/\d{4} at \d\d:\d\d\):(\d+)_ns:(\d+)\(([\d,]+)\):1:(\d+)\(((?:\d+:\d+,?)+)\)")
COMMON, STATE_LENGTH, LINE_LENGTH = 6, 8, 15


@dataclass
class Prv:
    """What was read. Bursts: (task, thread, type, value, begin, end); states and lines as in the file."""

    end_ns: int
    cpus_per_node: list[int]
    threads_of_task: list[int]
    node_of_task: list[int]
    type_labels: dict[int, str]
    value_labels: dict[int, dict[int, str]]
    state_labels: dict[int, str]
    names: dict[str, list[str]]
    bursts: list[tuple[int, int, int, int, int, int]] = field(default_factory=list)
    extras: list[dict[int, int]] = field(default_factory=list)
    states: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    comms: list[list[int]] = field(default_factory=list)
    events_by_type: dict[int, int] = field(default_factory=lambda: defaultdict(int))

    def time_by_label(self, kind: int) -> dict[str, int]:
        """Summed duration of each named value of an event type."""
        total: dict[str, int] = defaultdict(int)
        for _, _, number, value, begin, end in self.bursts:
            if number == kind:
                total[self.value_labels[kind][value]] += end - begin
        return dict(total)


def read(prv: Path) -> Prv:
    """Read the three files. AssertionError, with the line, for anything that the format does not allow."""
    text = prv.read_text(encoding="ascii")
    assert text.endswith("\n")
    header, *body = text.splitlines()
    trace = _header(header)
    trace.type_labels, trace.value_labels, trace.state_labels = pcf(prv.with_suffix(".pcf"))
    trace.names = row(prv.with_suffix(".row"))
    assert len(trace.names["THREAD"]) == sum(trace.threads_of_task)
    assert len(trace.names["NODE"]) == len(trace.cpus_per_node)
    assert len(trace.names["CPU"]) == sum(trace.cpus_per_node)
    assert len(trace.names["TASK"]) == len(trace.threads_of_task)
    _body(trace, body)
    return trace


def _header(line: str) -> Prv:
    match = HEADER.fullmatch(line)
    assert match, line
    end, nodes, cpus, tasks, placed = match.groups()
    pairs = [tuple(map(int, pair.split(":"))) for pair in placed.split(",")]
    per_node = [int(count) for count in cpus.split(",")]
    assert len(per_node) == int(nodes) and all(per_node), line
    assert len(pairs) == int(tasks) and all(1 <= node <= len(per_node) and threads for threads, node in pairs)
    return Prv(int(end), per_node, [t for t, _ in pairs], [n for _, n in pairs], {}, {}, {}, {})


def pcf(path: Path) -> tuple[dict[int, str], dict[int, dict[int, str]], dict[int, str]]:
    """Labels of the event types, of each type's values, and of the states."""
    types: dict[int, str] = {}
    values: dict[int, dict[int, str]] = {}
    states: dict[int, str] = {}
    section, current = "", 0
    sections = {"DEFAULT_OPTIONS", "DEFAULT_SEMANTIC", "STATES", "STATES_COLOR", "EVENT_TYPE", "VALUES"}
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.strip():
            continue
        if line.strip() in sections:
            section = line.strip()
        elif section == "EVENT_TYPE":
            _, number, label = line.split(None, 2)
            assert int(number) not in types, f"type {number} twice"
            current = int(number)
            types[current] = label
        elif section == "VALUES":
            number, label = line.split(None, 1)
            assert int(number) not in values.setdefault(current, {}), f"value {number} of {current} twice"
            values[current][int(number)] = label
        elif section == "STATES":
            number, label = line.split(None, 1)
            states[int(number)] = label
        elif section == "STATES_COLOR":
            assert re.fullmatch(r"\d+\s+\{\d+,\d+,\d+\}", line), line
        else:
            assert section, f"text before any section: {line}"
    return types, values, states


def row(path: Path) -> dict[str, list[str]]:
    """The names of each level."""
    names: dict[str, list[str]] = {}
    lines = iter(path.read_text(encoding="utf-8").splitlines())
    for line in lines:
        if line:
            match = re.fullmatch(r"LEVEL (CPU|NODE|TASK|THREAD) SIZE (\d+)", line)
            assert match, line
            names[match[1]] = [next(lines) for _ in range(int(match[2]))]
            assert all(names[match[1]]), f"an empty name in {match[1]}"
    return names


def _body(trace: Prv, body: list[str]) -> None:
    now = 0
    open_bursts: dict[tuple[int, int, int], list[tuple[int, int, dict[int, int]]]] = defaultdict(list)
    busy_until: dict[tuple[int, int], int] = defaultdict(int)
    for line in body:
        record = [int(word) for word in line.split(":")]
        assert ":".join(map(str, record)) == line, f"not in canonical form: {line}"
        kind, *place, time = record[:COMMON]
        _check_place(trace, place, line)
        assert now <= time <= trace.end_ns, f"out of order or after the end: {line}"
        now = time
        if kind == 1:
            _state(trace, record, busy_until, line)
        elif kind == 2:
            _event(trace, record, open_bursts, line)
        else:
            assert kind == 3, line
            _line(trace, record, line)
    left = {key: stack for key, stack in open_bursts.items() if stack}
    assert not left, f"bursts without an end: {list(left)[:3]}"


def _check_place(trace: Prv, place: list[int], line: str) -> None:
    cpu, application, task, thread = place
    assert application == 1 and 1 <= task <= len(trace.threads_of_task), line
    assert 1 <= thread <= trace.threads_of_task[task - 1], line
    node = trace.node_of_task[task - 1]
    low = sum(trace.cpus_per_node[: node - 1])
    assert low < cpu <= low + trace.cpus_per_node[node - 1], f"a CPU of another node: {line}"


def _state(trace: Prv, record: list[int], busy_until: dict[tuple[int, int], int], line: str) -> None:
    assert len(record) == STATE_LENGTH, line
    _, _, _, task, thread, begin, end, state = record
    assert begin < end <= trace.end_ns and state in trace.state_labels, line
    assert begin >= busy_until[task, thread], f"states overlap: {line}"
    busy_until[task, thread] = end
    trace.states.append((task, thread, begin, end, state))


def _event(
    trace: Prv,
    record: list[int],
    open_bursts: dict[tuple[int, int, int], list[tuple[int, int, dict[int, int]]]],
    line: str,
) -> None:
    _, _, _, task, thread, time, *rest = record
    assert rest and len(rest) % 2 == 0, line
    pairs = dict(zip(rest[::2], rest[1::2], strict=True))
    assert len(pairs) == len(rest) // 2, f"a type twice in one record: {line}"
    for number, value in pairs.items():
        assert number in trace.type_labels, f"type {number} is not in the .pcf: {line}"
        if value and number in trace.value_labels:
            assert value in trace.value_labels[number], f"value {value} is not in the .pcf: {line}"
        trace.events_by_type[number] += 1
    first = rest[0]
    if first not in trace.value_labels:
        return  # a counter: its value stands until the next
    stack = open_bursts[task, thread, first]
    if rest[1]:
        stack.append((rest[1], time, pairs))
        return
    assert stack, f"an end without a beginning: {line}"
    assert not any(rest[1::2]), f"an end must be all zeros: {line}"
    value, begin, at_begin = stack.pop()
    assert at_begin.keys() == pairs.keys(), f"begin and end carry different types: {line}"
    trace.bursts.append((task, thread, first, value, begin, time))
    trace.extras.append(at_begin)


def _line(trace: Prv, record: list[int], line: str) -> None:
    assert len(record) == LINE_LENGTH, line
    _check_place(trace, record[7:11], line)
    assert record[5] == record[6] and record[11] == record[12] <= trace.end_ns and record[13] >= 0, line
    trace.comms.append(record)
