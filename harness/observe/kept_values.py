"""What a training keeps from step to step, and more of it each time: containers that grow, and names whose values do;
how many bytes that is a step, and the line at which it happens.

A look goes through all of Python's objects, so looks are rare: at a few early steps, and whenever the number of steps
has doubled. What has grown between three of them in turn is watched from line to line of the user's code, until it has
been seen to grow.
"""

from __future__ import annotations

import gc
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from inspect import CO_OPTIMIZED
from itertools import chain, islice
from types import CodeType, FrameType
from typing import Any

from harness.observe.lines import SourceLine, is_users
from harness.observe.object_sizes import MeasuredObjects, kind_of_value, operators, own_size

FIRST_LOOKS = (2, 4, 6, 8)
LEAST_BYTES = 4096  # a step: what grows by less is not told
MOST_WATCHED = 8
SEEN_OFTEN = 3  # times that a value must be seen to grow, until its line is known
MOST_WATCHED_S = 10.0  # for which lines are watched, which makes code with many short lines slow
MEASURED = 16  # of the elements that have come last, from which the size of one is taken
_CONTAINERS = (list, dict, set, deque)
_MOST_OF_THEM = 0.75
_FEWEST_MEASURED = 4
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
    element_bytes: float = 0.0
    value: Any = None
    read: Callable[[FrameType | None], Any] = lambda _frame: None
    where: SourceLine | None = None
    lines: Counter[SourceLine] = field(default_factory=Counter)
    seen: list[tuple[int, int]] = field(default_factory=list)  # in which watched step it grew, and by how much
    _size: Any = None

    def state(self, frame: FrameType | None) -> Any:
        """Another one as soon as it has grown; None if it cannot be seen from this frame."""
        if self.value is not None:
            return len(self.value)
        found = self.read(frame)
        return None if found is None else (id(found), own_size(found))

    def look(self, frame: FrameType | None, at: SourceLine | None, step: int) -> None:
        """Note whether it has grown since the last call. at: the line that has run since then; None: it is not known,
        and this is the first call."""
        now = self.state(frame)
        if now is None:
            return
        before, self._size = self._size, now
        if at is None or before is None or now == before or (self.value is not None and now < before):
            return
        self.lines[at] += 1
        self.seen.append((step, now - before if self.value is not None else 1))

    def is_known(self) -> bool:
        """Whether it was seen to grow often enough."""
        return len(self.seen) >= SEEN_OFTEN

    def rate(self) -> float:
        """Bytes a step: of a container that grows once in many steps from the steps between."""
        steps = self.seen[-1][0] - self.seen[0][0] if self.seen else 0
        if not steps or not self.element_bytes or not self.bytes_per_step:
            return self.bytes_per_step
        first = self.seen[0][0]
        return self.element_bytes * sum(more for step, more in self.seen if step > first) / steps

    def as_json(self) -> dict[str, Any]:
        most = self.lines.most_common(1)
        where = self.where or (most[0][0] if most else None)
        place = None if where is None else list(where)
        return {"name": self.name, "kind": self.kind, "bytes_per_step": round(self.rate()), "where": place}


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
        self._watched_s = 0.0  # for which lines were watched
        self._last_s = time.monotonic()

    def step_begins(self, number: int) -> bool:
        """Whether this step is slower for it. Looks, and watches lines as long as one is not known."""
        now_s = time.monotonic()
        self._watched_s += (now_s - self._last_s) * self._watch.on
        self._watch.step += self._watch.on
        if is_look(number):
            self._watch.end()
            self._look(number)
        self._last_s = time.monotonic()
        wanted = [one for one in self.growing if one.bytes_per_step and not one.is_known()]
        watches = bool(wanted) and self._watched_s < MOST_WATCHED_S
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
        values = {key: own_size(value) + len(operators(value)) for key, (value, _) in names.items()}
        larger = {key for key, size in values.items() if size > self._values.get(key, size)}
        known = {id(one.value) for one in self.growing}
        found = [
            self._container(value, steps, len(value) - self._lengths[key], names)
            for key, value in grown.items()
            if (key in self._grew or key in known) and newest_of(value, 1)
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
        sizes = self._objects.sizes(newest, value)
        if len(sizes) >= _FEWEST_MEASURED:  # the first may share what older ones hold, and the last is not complete yet
            sizes = sizes[1:-1]
        held = [size for size in sizes if size]
        if len(held) >= _MOST_OF_THEM * len(sizes):  # the others' memory was somebody else's at the look before
            sizes = held
        kinds = Counter[str]()
        for each in (each for element in newest for each in _inside(element)):
            kinds[kind_of_value(each)] += own_size(each)
        kind = "graph" if "graph" in kinds else kinds.most_common(1)[0][0] or "objects"
        size = sum(sizes) / len(sizes) + sys.getsizeof(value) / max(len(value), 1)
        cached = _cached_function(value)
        name = cached.function if cached else _name_of(value, names)
        return GrowingValue(name, kind, more * size / steps, size, value, where=cached)

    def _keep(self, found: list[GrowingValue]) -> None:
        """Those that were known keep their lines. One that has not grown since the last look may have its end."""
        for one in self.growing:
            one.bytes_per_step = 0.0
        for one in found:
            before = next((old for old in self.growing if old.name == one.name and old.value is one.value), None)
            if before is None:
                self.growing.append(one)
            else:
                before.bytes_per_step, before.element_bytes = one.bytes_per_step, one.element_bytes
                before.kind = one.kind
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
    """The elements, of a dict the values, that came last, as far as the container keeps an order; none of one that
    another thread changes just now."""
    try:
        if issubclass(type(container), (list, deque)):
            return list(islice(reversed(container), count))[::-1]
        values = list(container.values() if issubclass(type(container), dict) else container)
    except (RuntimeError, IndexError):
        return []
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


def _cached_function(container: Any) -> SourceLine | None:
    """The function whose `functools.lru_cache` a dict is, where it begins; None: it is no such dict."""
    for owner in gc.get_referrers(container) if isinstance(container, dict) else ():
        code = getattr(getattr(owner, "__wrapped__", None), "__code__", None)
        if hasattr(owner, "cache_info") and code is not None:
            return SourceLine(code.co_filename, code.co_firstlineno, code.co_name)
    return None


class LineWatch:
    """Notes after which of the user's lines a value has grown, with Python's trace function; off where the script has
    one itself, as a debugger's."""

    def __init__(self) -> None:
        self.on = False
        self.step = 0  # of those that it watches
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
            one.look(innermost, None, self.step)
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
            one.look(frame, self._at, self.step)
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
