"""What a reference check is asked, and the likely reasons for its result, from what was recorded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.common.errors import RequestError
from harness.common.paths import COMMAND
from harness.compare.comparison import Difference
from harness.run import find_run
from harness.study.reference.check import (
    ReferenceCheck,
    VariantOutcome,
    arm_of_reference,
    arm_of_runs,
    check,
    without_runs,
)
from harness.study.reference.stored import (
    INDEX,
    INJECTED,
    Reference,
    Settings,
    differing,
    read_reference,
    readable_references,
    reference_folder,
    reference_folders,
)

_WORDS = {"machine": "another machine", "container": "another container image", "device": "another device"}
_COMMIT_DIGITS = 12


def likely_reasons(checked: ReferenceCheck) -> list[str]:
    """The reasons; or that no recorded difference explains a change."""
    found = list(dict.fromkeys(_reasons(checked)))
    if found or checked.outcome is not VariantOutcome.MOVED:
        return found
    return ["no recorded difference: hardware, software, the harness and the settings are the same"]


def _reasons(checked: ReferenceCheck) -> Iterator[str]:
    for each in checked.variants:
        for setting in each.settings_differ:
            yield f"{each.new} has {setting.name} {_text(setting.b)}, the reference {_text(setting.a)}"
    yield from map(_changed, checked.key)
    unsettled = [each for each in checked.variants if each.outcome is not VariantOutcome.SAME]
    for doubt in dict.fromkeys(doubt for each in unsettled for doubt in each.doubts):
        who = ", ".join(each.new for each in unsettled if doubt in each.doubts)
        yield f"{doubt} (of {who})"
    if any(each.changed for each in checked.variants):
        yield from map(_changed, checked.beside)


def _changed(difference: Difference) -> str:
    most = _COMMIT_DIGITS if difference.name in ("harness", "container", "machine") else None
    stored, new = (_text(value)[:most] for value in (difference.a, difference.b))
    return f"{_WORDS.get(difference.name, difference.name)}: {stored} → {new}"


def _text(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


def reference_named(word: str) -> Path | None:
    """The folder of the reference that a word names; None: it means a run.
    Raises RequestError: it names a run of the same name, too."""
    named = {folder.name: folder for folder in reference_folders()}.get(word)
    given = Path(word)
    return named or (given if (given / INDEX).is_file() else None)


def checked_reference(folder: Path, against: str | None) -> ReferenceCheck:
    """A reference against the older one of the name `against`.

    Raises:
        RequestError: there is no such reference, or it is the same one.
        WorkError: an index cannot be read.
    """
    if against is None:
        raise RequestError(f"{folder.name} is a reference: give the older one with --against")
    older = reference_folder(against)
    if older.resolve() == folder.resolve():
        raise RequestError(f"--against {against}: is the checked reference itself: give another one")
    return check(arm_of_reference(older), arm_of_reference(folder), whole=True)


def checked_runs(arguments: Sequence[str], against: str | None) -> ReferenceCheck:
    """Runs against the reference `against`, else the newest that has a variant like the first of them.

    Raises:
        RequestError: there is no such run or reference, or no reference asked for the same.
        WorkError: nothing was measured of a run.
    """
    runs = [find_run(word) for word in arguments]
    new = arm_of_runs(runs)
    folder = reference_folder(against) if against is not None else _like(new.variants[0].compared, arguments[0])
    found = check(without_runs(arm_of_reference(folder), new), new, whole=False)
    if not found.variants:
        raise RequestError(_unlike(read_reference(folder), new.variants[0].compared, arguments[0]))
    return found


def _like(compared: Settings, word: str) -> Path:
    """The newest reference with a variant that asked for the same, or for the same without what slows it on purpose."""
    known, like = list(readable_references()), []
    for folder, reference in known:
        names = [set(differing(each.compared, compared)) for each in reference.variants]
        if any(each <= set(INJECTED) for each in names):
            like.append((set[str]() in names, reference.created_ns, folder))
    if like:
        return max(like)[2]
    if not known:
        raise RequestError(f"there is no reference yet to compare {word} with: {COMMAND} reference record")
    raise RequestError(_unlike(known[0][1], compared, word))


def _unlike(reference: Reference, compared: Settings, word: str) -> str:
    """The sentence if no variant has the same settings, with the nearest one."""
    if not compared:
        return f"{word}: was not made by the harness, so its settings are not known"
    differ = [(differing(each.compared, compared), each) for each in reference.variants]
    names, variant = min(differ, key=lambda pair: ("exercise" in pair[0], len(pair[0])))
    said = ", ".join(f"{name} {a}, here {b}" for name, (a, b) in names.items())
    near = f"the nearest is {variant.name} of {reference.name} ({said})"
    return f"{word}: no variant of a reference has the same settings; {near}"
