"""Reads a YAML file of ours or a user's strictly. Knows nothing of its meaning."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from harness.common.errors import RequestError

_BaseLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # in C: ten times faster


class _Loader(_BaseLoader):  # type: ignore[misc]  # which of the two is known at run time only
    """YAML without a key that stands twice: the second would silently replace the first."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set[str]()
        for key, _ in node.value:
            name = str(key.value)
            if name in seen:
                raise yaml.constructor.ConstructorError(
                    problem=f"{name} stands there twice", problem_mark=key.start_mark
                )
            seen.add(name)
        made: dict[Hashable, Any] = super().construct_mapping(node, deep=deep)
        return made


def read_yaml(path: Path, what: str) -> Any:
    """The content of a YAML file.

    Raises:
        RequestError: the file cannot be read or is not YAML.
    """
    try:
        return parse_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RequestError(f"{what} {path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise RequestError(f"{what} {path}: is not text in UTF-8") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark else ""
        raise RequestError(
            f"{what} {path}: is not valid YAML{where} ({getattr(error, 'problem', error)})"
        ) from None


def parse_yaml(text: str) -> Any:
    """The content of a YAML text. Raises yaml.YAMLError: the text is not YAML."""
    return yaml.load(text, Loader=_Loader)
