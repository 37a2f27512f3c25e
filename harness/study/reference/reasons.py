"""The likely reasons for the result of a check, from what was recorded: one sentence each, the likeliest first."""

from __future__ import annotations

from collections.abc import Iterator

from harness.study.reference.check import Difference, ReferenceChecked, VariantOutcome

_WORDS = {"machine": "another machine", "container": "another container image", "device": "another device"}
_COMMIT_DIGITS = 12


def likely_reasons(checked: ReferenceChecked) -> list[str]:
    """The reasons; or that no recorded difference explains a change."""
    found = list(dict.fromkeys(_reasons(checked)))
    if found or checked.outcome is not VariantOutcome.MOVED:
        return found
    return ["no recorded difference: hardware, software, the harness and the settings are the same"]


def _reasons(checked: ReferenceChecked) -> Iterator[str]:
    for each in checked.variants:
        for asked in each.asked:
            yield f"{each.new} has {asked.name} {_text(asked.new)}, the reference {_text(asked.stored)}"
    yield from map(_changed, checked.key)
    unsettled = [each for each in checked.variants if each.outcome is not VariantOutcome.SAME]
    for doubt in dict.fromkeys(doubt for each in unsettled for doubt in each.doubts):
        who = ", ".join(each.new for each in unsettled if doubt in each.doubts)
        yield f"{doubt} (of {who})"
    if any(each.changed for each in checked.variants):
        yield from map(_changed, checked.beside)


def _changed(each: Difference) -> str:
    stored, new = (_text(value)[:_COMMIT_DIGITS] if each.name in ("harness", "container", "machine") else _text(value)
                   for value in (each.stored, each.new))  # fmt: skip
    return f"{_WORDS.get(each.name, each.name)}: {stored} → {new}"


def _text(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)
