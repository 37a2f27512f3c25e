"""`slurm.sh help faults`: the faults that `--fault` can inject, or one fault with its keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap

from harness.cli.terminal import columns
from harness.common.display.printable import printable
from harness.common.errors import RequestError, nearest_or_list
from harness.common.faults.fault import FAULTS, FaultKind
from harness.common.paths import COMMAND

HEAD = ("fault", "keys", "exercise", "on", "what happens")
DEVICES = {"cpu": "CPU", "cuda": "GPU"}
WIDTH = 118


def faults_page(words: Sequence[str]) -> str:
    """All faults, or the one that is named, with its keys. Raises RequestError: there is no such fault."""
    if words[1:] or (words[:1] and words[0].startswith("-")):
        raise RequestError(f"help faults: unexpected word {printable(words[-1])!r}")
    if words and words[0] not in FAULTS:
        hint = nearest_or_list(words[0], FAULTS, f"{COMMAND} help faults lists all")
        raise RequestError(f"there is no fault {words[0]!r}{hint}")
    kinds = [FAULTS[name] for name in words] or list(FAULTS.values())
    lines = [*_table(kinds, columns(WIDTH))]
    if words:
        return "\n".join([*lines, "", *_keys(kinds[0])])
    use = f"as in {COMMAND} -e 1 --fault {kinds[0].name},ms=50; {COMMAND} help faults NAME shows the keys of one"
    return "\n".join([*lines, use])


def where(kind: FaultKind) -> tuple[str, str]:
    return " ".join(map(str, kind.exercises)), " ".join(DEVICES[device] for device in kind.devices)


def _table(kinds: list[FaultKind], width: int) -> Iterator[str]:
    keys = [" ".join(f"{key.name}={key.default or '…'}" for key in kind.keys) or "–" for kind in kinds]
    rows = [HEAD, *((kind.name, of, *where(kind), kind.meaning) for kind, of in zip(kinds, keys, strict=True))]
    wide = [max(len(row[column]) for row in rows) for column in range(len(HEAD) - 1)]
    before = sum(wide) + 2 * len(wide)
    for row in rows:
        left = "".join(f"{cell:<{size}}  " for cell, size in zip(row, wide, strict=False))
        lines = wrap(row[-1], max(width - before, 30), break_on_hyphens=False)
        yield from (f"{left if number == 0 else ' ' * before}{line}" for number, line in enumerate(lines))


def _keys(kind: FaultKind) -> Iterator[str]:
    yield f"--fault {kind.usage}"
    for key in kind.keys:
        default = "required" if key.default is None else f"default {key.default}"
        if not key.explained:
            yield f"  {key.name}  {key.meaning}: {key.takes} ({default})"
            continue
        yield f"  {key.name}  {key.meaning} ({default}):"
        wide = max(len(word) for word in key.words)
        yield from (f"    {word:<{wide}}  {meaning}" for word, meaning in key.explained)
    if kind.ends:
        yield "faults/rank<R>.jsonl of the run has a line for it, written before it acts"
    elif kind.recorded:
        yield f"faults/rank<R>.jsonl of the run has, per {kind.per}: {kind.recorded}, in nanoseconds"
