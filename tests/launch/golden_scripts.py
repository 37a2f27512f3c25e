"""The golden file of a site: what all its scripts share stands once, any other line names its exercises by number."""

from __future__ import annotations

from difflib import SequenceMatcher

ALL = "0123"
COMMON = " " * len(ALL)


def merged(scripts: dict[str, str]) -> str:
    """The scripts of the exercises `ALL`, as one golden file; `script_of` reads them from it again."""
    found: list[tuple[str, str]] = []
    for exercise in ALL:
        found = _with(found, exercise, scripts[exercise].split("\n"))
    return "\n".join(f"{COMMON if of == ALL else of.ljust(len(ALL))}|{line}" for of, line in found)


def _with(found: list[tuple[str, str]], exercise: str, lines: list[str]) -> list[tuple[str, str]]:
    matcher = SequenceMatcher(None, [line for _, line in found], lines, autojunk=False)
    result: list[tuple[str, str]] = []
    for same, start, end, new_start, new_end in matcher.get_opcodes():
        if same == "equal":
            result += [(of + exercise, line) for of, line in found[start:end]]
        else:
            result += [*found[start:end], *((exercise, line) for line in lines[new_start:new_end])]
    return result


def script_of(exercise: str, golden: str) -> str:
    """The whole script of one exercise."""
    rows = [line.split("|", maxsplit=1) for line in golden.split("\n")]
    return "\n".join(line for of, line in rows if of == COMMON or exercise in of)
