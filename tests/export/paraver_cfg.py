"""What Paraver computes from a trace and a view (.cfg), written anew from its documentation and its kernel's rules.

Only what our views use: an unknown name fails, as Paraver would ignore the window. It reads the files and shares no
line with the writer. Times are integer nanoseconds; a zero-length interval has no time and is left out.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tests.export import strict_prv

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]
UNITS_NS = {"Nanoseconds": 1, "Microseconds": 1000, "Milliseconds": 1_000_000}


@dataclass(frozen=True)
class Line:
    """A line from a thread to another: here, from a launch to its kernel."""

    sender: int
    send_ns: int
    receive_ns: int
    tag: int


@dataclass(frozen=True)
class Prv:
    """A trace: `task_of` each thread, its events in the order of time, the lines, labels of types and of values."""

    end_ns: int
    task_of: list[int]
    events: list[I64]  # of each thread, [n, 3]: time, type, value
    lines: list[Line]
    types: dict[str, int]
    values: dict[tuple[int, int], str]
    rows: list[str]


def read_prv(prv: Path) -> Prv:
    """Read the three files of a trace, ours or of nsys2prv, whose records are not in the order of time."""
    header, *body = prv.read_text(encoding="utf-8").splitlines()
    sizes = [int(pair.split(":")[0]) for pair in re.findall(r"\(([\d:,]+)\)$", header)[0].split(",")]
    first = [0, *np.cumsum(sizes).tolist()]
    found: list[list[tuple[int, int, int]]] = [[] for _ in range(first[-1])]
    lines: list[Line] = []
    for text in body:
        if text[:2] == "1:":
            continue
        words = [int(word) for word in text.split(":")]
        thread = first[words[3] - 1] + words[4] - 1
        if words[0] == 2:
            found[thread] += [(words[5], kind, value) for kind, value in zip(words[6::2], words[7::2], strict=True)]
        else:
            lines.append(Line(thread, words[6], words[12], words[14]))
    events = [np.array(each, np.int64).reshape(-1, 3) for each in found]
    end = re.findall(r"\):(\d+)_ns:", header)[0]
    tasks = [task for task, size in enumerate(sizes) for _ in range(size)]
    ordered = [each[np.argsort(each[:, 0], kind="stable")] for each in events]
    types, values, _ = strict_prv.pcf(prv.with_suffix(".pcf"))
    kinds = {label: kind for kind, label in types.items()}
    labels = {(kind, value): label for kind, of in values.items() for value, label in of.items()}
    return Prv(int(end), tasks, ordered, lines, kinds, labels, strict_prv.row(prv.with_suffix(".row"))["THREAD"])


@dataclass(frozen=True)
class Curve:
    """A value over time: `value[i]` from `start_ns[i]` to the next start, the last to the trace's end."""

    start_ns: I64
    value: F64

    def at(self, times_ns: I64) -> F64:
        return self.value[np.searchsorted(self.start_ns, times_ns, side="right") - 1]


Tags = dict[str, list[str]]


@dataclass(frozen=True)
class View:
    """A view: the tags of its windows, in their order, and those of its table, if it has one."""

    windows: list[Tags]
    table: dict[str, str]


def read_view(text: str) -> View:
    windows: list[Tags] = []
    above, _, below = text.partition("< NEW ANALYZER2D >")
    for line in above.splitlines():
        tag, _, value = line.partition(" ")
        if tag == "window_name":
            windows.append({})
        if tag.startswith("window_"):
            windows[-1].setdefault(tag, []).append(value)
    return View(windows, dict(re.findall(r"^Analyzer2D\.(\w+): (.*)$", below, re.MULTILINE)))


def functions(window: Tags) -> dict[str, str]:
    """The function of each level and of each compose level."""
    texts = window["window_selected_functions"] + window["window_compose_functions"]
    return {level: name for text in texts for level, name in re.findall(r"\{(\w+), ([^}]+)\}", text)}


def filters(window: Tags) -> dict[str, list[str]]:
    """The words of each filter, without their number."""
    texts = map(shlex.split, window.get("window_filter_module", []))
    return {name: words for name, _, *words in texts}


# Of a level: from the values of what is below it, [rows, times], to one for each time.
LEVEL: dict[str, Callable[[F64], F64]] = {
    "Adding": lambda values: values.sum(axis=0),
    "Maximum": lambda values: np.maximum(values.max(axis=0), 0),
}
OPERATION: dict[str, Callable[[F64, F64], F64]] = {"add": np.add, "product": np.multiply}
STATISTICS = ("Time", "% Time", "% Window Time", "# Bursts", "Average value", "Maximum")


@dataclass(frozen=True)
class Paraver:
    """A trace with a view, as Paraver shows it."""

    prv: Prv
    view: View

    @cached_property
    def curves(self) -> list[list[Curve]]:
        """Of each window, of each of its objects."""
        done: list[list[Curve]] = []
        for window in self.view.windows:
            derived = window["window_type"] == ["composed"]
            done.append(self._derived(window, done) if derived else self._single(window))
        return done

    def _derived(self, window: Tags, done: list[list[Curve]]) -> list[Curve]:
        first, second = (done[int(number) - 1] for number in window["window_identifiers"][0].split())
        a, b = map(float, window["window_factors"][0].split())
        operation = OPERATION[window["window_operation"][0]]
        composed = {name for level, name in functions(window).items() if "compose" in level}
        assert composed == {"As Is"}
        return [
            _merged([one, two], lambda rows: operation(a * rows[0], b * rows[1]))
            for one, two in zip(first, second, strict=True)
        ]

    def _single(self, window: Tags) -> list[Curve]:
        chosen, level = functions(window), window["window_level"][0]
        unit_ns = UNITS_NS[window["window_units"][0]]
        threads = [self._thread(index, window, chosen) for index in range(len(self.prv.events))]
        if level == "task":
            below = [[c for c, of in zip(threads, self.prv.task_of, strict=True) if of == task] for task in self.tasks]
            tasks = [_merged(curves, LEVEL[chosen["task"]]) for curves in below]
            threads = [self._composed(chosen["compose_task"], curve, unit_ns) for curve in tasks]
        else:
            assert level == "thread"
        return [self._composed(chosen["topcompose1"], curve, unit_ns) for curve in threads]

    @property
    def tasks(self) -> list[int]:
        return sorted(set(self.prv.task_of))

    def _thread(self, index: int, window: Tags, chosen: dict[str, str]) -> Curve:
        words = filters(window)
        if chosen["thread"] == "Send Messages in Transit":
            tags = {int(tag) for tag in words["tag_msg"]}
            sent = [each for each in self.prv.lines if each.sender == index and each.tag in tags]
            changes = sorted((t, by) for each in sent if each.receive_ns > each.send_ns for t, by in _passage(each))
            times, steps = (np.array([row[i] for row in changes], np.int64) for i in (0, 1))
            return self._composed(chosen["compose_thread"], _curve(times, np.cumsum(steps).astype(np.float64)), 1)
        assert chosen["thread"] == "Last Evt Val"
        kinds = [
            self.prv.types.get(label, int(n))
            for n, label in zip(words["evt_type"], words["evt_type_label"], strict=True)
        ]
        mine = self.prv.events[index]
        mine = mine[np.isin(mine[:, 1], kinds)]
        values = mine[:, 2].astype(np.float64)
        if chosen["compose_thread"] == "Stacked Val":
            return _curve(mine[:, 0], _stacked(values))
        return self._composed(chosen["compose_thread"], _curve(mine[:, 0], values), 1)

    def _composed(self, name: str, curve: Curve, unit_ns: int) -> Curve:
        if name == "Burst Time":
            return Curve(curve.start_ns, np.diff(curve.start_ns, append=self.prv.end_ns) / unit_ns)
        each = {"As Is": curve.value, "Sign": curve.value != 0, "1-Sign": curve.value == 0}
        return Curve(curve.start_ns, each[name].astype(np.float64))

    def tabulated(
        self, statistic: str | None = None, begin_ns: int = 0, end_ns: int | None = None
    ) -> list[dict[float, float]]:
        """Of each object, the view's table by the value at which a column begins. Paraver's user may choose another
        statistic, and another stretch of time, by a zoom."""
        asked, end = self.view.table, self.prv.end_ns if end_ns is None else end_ns
        assert asked["Statistic"] in STATISTICS
        control, data = (self.curves[int(asked[name]) - 1] for name in ("ControlWindow", "DataWindow"))
        delta, low, high = (float(asked[name]) for name in ("Delta", "Minimum", "Maximum"))
        if asked["ComputeYScale"] == "True":  # Paraver counts zero, the end of a burst, for no value
            assert delta == 1.0
            seen = np.concatenate([each.value for each in control])
            low, high = seen[seen != 0].min(initial=high), seen.max(initial=low)
        unit_ns = UNITS_NS[self.view.windows[int(asked["ControlWindow"]) - 1]["window_units"][0]]
        columns = max(int(np.ceil((high - low) / delta)) + (delta == 1.0), 1)
        rows = []
        for one, two in zip(control, data, strict=True):
            times = np.unique(np.concatenate([one.start_ns, two.start_ns, [begin_ns]]))
            times = times[(times >= begin_ns) & (times < end)]
            length, key, value = np.diff(times, append=end), one.at(times), two.at(times)
            inside = (key >= low) & (key <= high)
            column = np.minimum(np.floor((key - low) / delta), columns - 1)
            found = {low + delta * c: inside & (column == c) for c in np.unique(column[inside]).tolist()}
            all_ns = (int(length[inside].sum()), end - begin_ns)
            rows.append(
                {
                    key: _statistic(statistic or asked["Statistic"], length[on], value[on], all_ns, unit_ns)
                    for key, on in found.items()
                }
            )
        return rows


def _statistic(name: str, length_ns: I64, value: F64, all_ns: tuple[int, int], unit_ns: int) -> float:
    """Of one cell. all_ns: the row's time in its columns, and the whole time."""
    spent = float(length_ns.sum())
    return {
        "Time": lambda: spent / unit_ns,
        "% Time": lambda: 100 * spent / all_ns[0],
        "% Window Time": lambda: 100 * spent / all_ns[1],
        "# Bursts": lambda: float(len(length_ns)),
        "Average value": lambda: float((length_ns * value).sum() / spent),
        "Maximum": lambda: float(value.max()),
    }[name]()


def _passage(line: Line) -> list[tuple[int, int]]:
    return [(line.send_ns, 1), (line.receive_ns, -1)]


def _curve(times_ns: I64, values: F64) -> Curve:
    """From changes in the order of time; of several at one time the last stands. 0 before the first."""
    times, changed = np.append(0, times_ns), np.append(0.0, values)
    last = np.append(np.diff(times) > 0, True)
    return Curve(times[last], changed[last])


def _stacked(values: F64) -> F64:
    """A value is put on a stack, 0 takes the top away, and the top is shown."""
    stack: list[float] = []
    shown = []
    for value in values.tolist():
        if value:
            stack.append(value)
        elif stack:
            stack.pop()
        shown.append(stack[-1] if stack else 0.0)
    return np.array(shown, np.float64)


def _merged(curves: Sequence[Curve], function: Callable[[F64], F64]) -> Curve:
    times = reduce(np.union1d, (each.start_ns for each in curves))
    return Curve(times, function(np.stack([each.at(times) for each in curves])))
