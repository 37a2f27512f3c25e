"""Reads a YAML file of ours or a user's strictly. Knows nothing of its meaning."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from harness.common.errors import RequestError
from harness.common.system.bounded_read import BoundedReadError, read_bounded_text

_BaseLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # in C: ten times faster
_STR = "tag:yaml.org,2002:str"
_MOST_NUMBER = 1 << 63
MOST_BYTES = 1 << 20  # ours have some 7 kB
MOST_DEPTH = 64
MOST_EXPANDED = 1 << 20  # characters and values of a file once its aliases are written out


class _Loader(_BaseLoader):  # type: ignore[misc]  # which of the two is known at run time only
    """YAML without duplicate keys: the second would silently replace the first."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set[str]()
        for key, _ in node.value:
            name = str(key.value)
            if name in seen:
                raise yaml.constructor.ConstructorError(problem=f"{name} is given twice", problem_mark=key.start_mark)
            seen.add(name)
        made: dict[Hashable, Any] = super().construct_mapping(node, deep=deep)
        return made

    def construct_whole_number(self, node: yaml.ScalarNode) -> int:
        number: int = self.construct_yaml_int(node)
        if not -_MOST_NUMBER <= number < _MOST_NUMBER:  # Python cannot even print one of 5,000 digits
            raise yaml.constructor.ConstructorError(
                problem="a number has more than 64 bits", problem_mark=node.start_mark
            )
        return number


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_whole_number)


def read_yaml(path: Path, what: str) -> Any:
    """The content of a YAML file. Raises RequestError: the file cannot be read or is not YAML."""
    try:
        return parse_yaml(read_bounded_text(path, MOST_BYTES))
    except OSError as error:
        raise RequestError(f"{what} {path}: cannot be read ({error.strerror})") from None
    except BoundedReadError as error:
        raise RequestError(f"{what} {path}: {error}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark else ""
        raise RequestError(f"{what} {path}: is not valid YAML{where} ({getattr(error, 'problem', error)})") from None


def parse_yaml(text: str) -> Any:
    """The content of a YAML text. Raises yaml.YAMLError: the text is not YAML, nested too deeply, or grows too much
    when its aliases are written out."""
    _refuse_bombs(text)
    try:
        return yaml.load(text, Loader=_Loader)
    except ValueError as error:  # 2024-13-45 looks like a date and is none; a number may have 5,000 digits
        raise yaml.constructor.ConstructorError(problem=str(error)) from None


def _refuse_bombs(text: str) -> None:
    """Look at the events before anything is built: deep nesting would end the process, not raise an error."""
    sizes = [0]  # of every open list or mapping, the whole first
    anchors: list[str | None] = [None]
    known: dict[str | None, int] = {}  # an anchor's size, once its end is seen
    for event in yaml.parse(text, Loader=_BaseLoader):
        tag = getattr(event, "tag", None)
        if tag not in (None, "!", _STR):  # PyYAML fails at many: !!bool x, !!int ''
            _refuse(event, f"the tag {tag} is not allowed: write the value itself")
        if isinstance(event, yaml.AliasEvent):
            if event.anchor in anchors:
                _refuse(event, f"*{event.anchor} is used inside its own &{event.anchor}")
            sizes[-1] += known.get(event.anchor, 0)
        elif isinstance(event, yaml.ScalarEvent):
            size = 1 + len(event.value)
            sizes[-1] += size
            known[event.anchor] = size
        elif isinstance(event, yaml.CollectionStartEvent):
            sizes.append(1)
            anchors.append(event.anchor)
            if len(sizes) > MOST_DEPTH + 1:
                _refuse(event, f"it is nested more than {MOST_DEPTH} levels deep")
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, size = anchors.pop(), sizes.pop()
            sizes[-1] += size
            known[anchor] = size
        if sizes[-1] > MOST_EXPANDED:
            _refuse(event, "its aliases (*) make it too large")


def _refuse(event: yaml.Event, problem: str) -> None:
    mark: Any = event.start_mark
    raise yaml.constructor.ConstructorError(problem=problem, problem_mark=mark)
