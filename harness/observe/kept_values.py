"""What a training keeps from step to step, and more of it each time: containers that grow, and names whose values do;
how many bytes that is a step, and the line at which it happens.

A look goes through all of Python's objects, so looks are rare: at a few early steps, and whenever the number of steps
has doubled. What has grown between three of them in turn is watched from line to line of the user's code, until it has
been seen to grow.
"""

from __future__ import annotations

import gc
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from inspect import CO_OPTIMIZED
from itertools import chain
from types import CodeType, FrameType
from typing import Any

from harness.observe.lines import SourceLine, is_users
from harness.observe.object_sizes import MeasuredObjects, graph_size, kind_of_value, own_size

FIRST_LOOKS = (2, 4, 6, 8)
LEAST_BYTES = 4096  # a step: what grows by less is not told
MOST_WATCHED = 8
SEEN_OFTEN = 3  # times that a value must be seen to grow, until its line is known
MOST_STEPS = 256  # in which lines are watched
MEASURED = 16  # of the elements that have come last, from which the size of one is taken
_CONTAINERS = (list, dict, set, deque)
_MOST_OF_THEM = 0.75
_OURS = "harness."


def is_look(number: int) -> bool:
    """Whether to look before this step.

    >>> [number for number in range(70) if is_look(number)]
    [2, 4, 6, 8, 16, 32, 64]
    """
    return number in FIRST_LOOKS or (number > FIRST_LOOKS[-1] and number & (number - 1) == 0)


@dataclass
class GrowingValue:
    """A container, or a name whose value grows. value: None of a name. read: gives the name's value in a frame."""

    name: str
    kind: str
    bytes_per_step: float
    value: Any = None
    read: Callable[[FrameType | None], Any] = lambda _frame: None
    lines: Counter[SourceLine] = field(default_factory=Counter)
    _size: Any = None

    def state(self, frame: FrameType | None) -> Any:
        """Differs once it has grown; None: it cannot be seen from this frame."""
        if self.value is not None:
            return len(self.value)
        found = self.read(frame)
        return None if found is None else (id(found), own_size(found))

    def grew(self, frame: FrameType | None) -> bool:
        """Whether it has grown since the last call."""
        now = self.state(frame)
        if now is None:
            return False
        before, self._size = self._size, now
        return before is not None and now != before and not (self.value is not None and now < before)

    def as_json(self) -> dict[str, Any]:
        most = self.lines.most_common(1)
        where = list(most[0][0]) if most else None
        return {"name": self.name, "kind": self.kind, "bytes_per_step": round(self.bytes_per_step), "where": where}


class KeptValues:
    """Told of each step before it begins, by the thread that trains. `growing`: what was found, the largest first."""

    def __init__(self) -> None:
        self.growing: list[GrowingValue] = []
        self.looked: list[int] = []  # the steps before which it looked
        self._lengths: dict[int, int] = {}  # of containers, by id
        self._values: dict[Any, int] = {}  # sizes of named values, by the owner's id and the name
        self._grew: set[Any] = set()  # ids and names that grew between the last two looks
        self._objects = MeasuredObjects()
        self._watch = LineWatch()
        self._watched_steps = 0

    def step_begins(self, number: int) -> bool:
        """Whether this step is slower for it. Looks, and watches lines as long as one is not known."""
        if is_look(number):
            self._watch.end()
            self._look(number)
        wanted = [one for one in self.growing if one.bytes_per_step and sum(one.lines.values()) < SEEN_OFTEN]
        watches = bool(wanted) and self._watched_steps < MOST_STEPS
        self._watched_steps += watches
        if watches and not self._watch.on:
            self._watch.begin(wanted)
        elif not watches:
            self._watch.end()
        return watches

    def close(self) -> None:
        self._watch.end()

    def _look(self, number: int) -> None:
        steps = number - self.looked[-1] if self.looked else 0
        self.looked.append(number)
        self._objects.look()
        names = _named_values(sys._getframe(2))
        lengths, grown = _containers(self._lengths, [value for value, _ in names.values()])
        values = {key: own_size(value) + graph_size(value) for key, (value, _) in names.items()}
        larger = {key for key, size in values.items() if size > self._values.get(key, size)}
        known = {id(one.value) for one in self.growing}
        found = [
            self._container(value, steps, len(value) - self._lengths[key], names)
            for key, value in grown.items()
            if key in self._grew or key in known
        ]
        for key in larger & self._grew:
            value, read = names[key]
            size = (values[key] - self._values[key]) / steps
            found.append(GrowingValue(key[1], kind_of_value(value), size, read=read))
        self._keep([one for one in found if one.bytes_per_step >= LEAST_BYTES or one.kind == "graph"])
        self._grew = {*grown, *larger}
        self._lengths, self._values = lengths, values

    def _container(self, value: Any, steps: int, more: int, names: dict[Any, Any]) -> GrowingValue:
        """more: elements since the last look."""
        newest = newest_of(value, min(more, MEASURED))
        sizes = [self._objects.size(element) for element in newest]
        held = [size for size in sizes if size]
        if len(held) >= _MOST_OF_THEM * len(sizes):  # the others' memory was somebody else's at the look before
            sizes = held
        kinds = Counter(filter(None, (kind_of_value(each) for element in newest for each in _inside(element))))
        kind = "graph" if kinds["graph"] else kinds.most_common(1)[0][0] if kinds else "objects"
        own = sys.getsizeof(value) / max(len(value), 1)
        return GrowingValue(_name_of(value, names), kind, more * (sum(sizes) / len(sizes) + own) / steps, value)

    def _keep(self, found: list[GrowingValue]) -> None:
        """Those that were known keep their lines. One that has not grown since the last look may have its end."""
        for one in self.growing:
            one.bytes_per_step = 0.0
        for one in found:
            before = next((old for old in self.growing if old.name == one.name and old.value is one.value), None)
            if before is None:
                self.growing.append(one)
            else:
                before.bytes_per_step, before.kind = one.bytes_per_step, one.kind
        self.growing.sort(key=lambda one: -one.bytes_per_step)
        del self.growing[MOST_WATCHED:]


def _containers(before: dict[int, int], named: list[Any]) -> tuple[dict[int, int], dict[int, Any]]:
    """How many elements each container has, by its id, and the containers that have more than before. named: values,
    among which are dicts that Python's collector does not know, as they hold only numbers and text."""
    lengths: dict[int, int] = {}
    grown: dict[int, Any] = {}
    for value in chain(gc.get_objects(), named):
        if issubclass(type(value), _CONTAINERS):
            key, size = id(value), len(value)
            lengths[key] = size
            if before.get(key, size) < size and not _is_ours(value):
                grown[key] = value
    return lengths, grown


def _is_ours(container: Any) -> bool:
    newest = newest_of(container, 1)
    return bool(newest) and str(type(newest[0]).__module__).startswith(_OURS)


def newest_of(container: Any, count: int) -> list[Any]:
    """The elements, of a dict the values, that came last, as far as the container keeps an order."""
    if isinstance(container, dict):
        values = list(container.values())
    elif isinstance(container, set):
        values = list(container)
    else:
        return [container[at] for at in range(max(len(container) - count, 0), len(container))]
    return values[max(len(values) - count, 0) :]


def _inside(element: Any) -> Iterator[Any]:
    """An element, and what a small tuple, list or dict in its place holds."""
    yield element
    if isinstance(element, (tuple, list)):
        yield from element[:MEASURED]
    elif isinstance(element, dict):
        yield from list(element.values())[:MEASURED]


def _named_values(frame: FrameType | None) -> dict[Any, tuple[Any, Callable[[FrameType | None], Any]]]:
    """The values by owner and name, each with what reads it again: of the user's functions that run now, of modules,
    and of objects of the user's own classes. frame: the innermost."""
    found: dict[Any, tuple[Any, Callable[[FrameType | None], Any]]] = {}
    while frame is not None:
        if frame.f_code.co_flags & CO_OPTIMIZED and is_users(frame.f_code.co_filename):
            for name, value in list(frame.f_locals.items()):
                found[id(frame.f_code), name] = value, _reads_local(frame.f_code, name)
            _forget_locals(frame)
        frame = frame.f_back
    for namespace in _users_namespaces():
        for name, value in list(namespace.items()):
            if isinstance(name, str) and not name.startswith("__"):
                found[id(namespace), name] = value, _reads_item(namespace, name)
    return found


def _forget_locals(frame: FrameType) -> None:
    """Before Python 3.13 a frame keeps the dict of its variables that was asked for, and with it their values."""
    if sys.version_info < (3, 13) and frame.f_code.co_flags & CO_OPTIMIZED:
        frame.f_locals.clear()


def _reads_local(code: CodeType, name: str) -> Callable[[FrameType | None], Any]:
    return lambda frame: frame.f_locals.get(name) if frame is not None and frame.f_code is code else None


def _reads_item(namespace: dict[str, Any], name: str) -> Callable[[FrameType | None], Any]:
    return lambda _frame: namespace.get(name)


def _users_namespaces() -> Iterator[dict[str, Any]]:
    """Of the user's modules, and of objects and classes that these define."""
    own: set[str] = set()
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__dict__", {}).get("__file__")
        if isinstance(file, str) and is_users(file):
            own.add(name)
            yield vars(module)
    of_type: dict[type, bool] = {}
    for value in gc.get_objects():
        kind = type(value)
        if kind not in of_type:
            of_type[kind] = getattr(kind, "__module__", None) in own
        if of_type[kind] and isinstance(getattr(value, "__dict__", None), dict):
            yield value.__dict__


def _name_of(container: Any, names: dict[Any, Any]) -> str:
    """How the program calls it; empty: it has no name of its own."""
    return next((key[1] for key, (value, _) in names.items() if value is container), "")


class LineWatch:
    """Notes after which of the user's lines a value has grown, with Python's trace function; off where the script has
    one itself, as a debugger's."""

    def __init__(self) -> None:
        self.on = False
        self._watched: list[GrowingValue] = []
        self._at: SourceLine | None = None
        self._users: dict[CodeType, bool] = {}
        self._frames: list[FrameType] = []

    def begin(self, watched: list[GrowingValue]) -> None:
        if sys.gettrace() is not None:
            return
        self._watched, self.on = watched, True
        frame: FrameType | None = sys._getframe(1)
        innermost = None
        while frame is not None:
            if self._is_users(frame.f_code):
                innermost = innermost or frame
                frame.f_trace = self._line
                self._frames.append(frame)
            frame = frame.f_back
        self._at = _place(innermost)
        for one in watched:
            one.grew(innermost)
        sys.settrace(self._called)

    def end(self) -> None:
        if self.on:
            sys.settrace(None)
            for frame in self._frames:
                frame.f_trace = None
                _forget_locals(frame)
            self._frames, self.on = [], False

    def _is_users(self, code: CodeType) -> bool:
        known = self._users.get(code)
        if known is None:
            known = self._users[code] = is_users(code.co_filename)
        return known

    def _called(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self._line if self._is_users(frame.f_code) else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        """Called before each of the user's lines, and at a function's end: what has grown grew in the line before."""
        for one in self._watched:
            if one.grew(frame) and self._at is not None:
                one.lines[self._at] += 1
        outer = frame
        if event == "return":
            back = frame.f_back
            while back is not None and not self._is_users(back.f_code):
                back = back.f_back
            outer = back or frame
        self._at = _place(outer)
        return self._line


def _place(frame: FrameType | None) -> SourceLine | None:
    if frame is None:
        return None
    return SourceLine(frame.f_code.co_filename, frame.f_lineno or frame.f_code.co_firstlineno, frame.f_code.co_name)
