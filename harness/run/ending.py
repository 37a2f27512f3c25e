"""How a run ended: one decision from all that witnessed it, by one table. Pure; it knows no file. `ended.py` hears the
witnesses, and says what they say in words; the backend of Slurm compares Slurm's word with this one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, cast

if TYPE_CHECKING:
    from harness.run.record import State

STOPPED = 143  # by TERM, as a shell reports it
_LOST = "all its ranks completed; its exit status was not written, and plots or a conversion may be missing"


class Witnesses(NamedTuple):
    """What is known of an end. exit_code: of the training where it is known, else of its launcher or script; None:
    nobody who heard it could write it. asked: the state that it was asked to end for; empty: it was not. before: it had
    ended before that. well: all of its ranks said that they completed. missing: there is not every report that
    should be there. died: a sentence on a rank that was seen to fail."""

    exit_code: int | None
    asked: str = ""
    before: bool = False
    well: bool = False
    missing: bool = False
    died: str = ""


class Ending(NamedTuple):
    """How a run ended. exit_code: 0 only if it completed; None: not known. why: a sentence, if the state alone does not
    say it; note: one on what a completed run leaves open."""

    state: State
    exit_code: int | None
    why: str = ""
    note: str = ""


_Row = tuple[Callable[[Witnesses], object], "State | None", "int | None", str]
# The first row that holds decides: the state, or None: the one that it was asked to end for; the exit status, or None:
# that of the witness; and a sentence.
_TABLE: tuple[_Row, ...] = (
    (lambda w: w.asked and w.exit_code, None, None, ""),
    (lambda w: w.asked and not w.before, None, STOPPED, "it was asked to end, and left with exit status 0"),
    (lambda w: w.asked and w.missing, None, STOPPED, "it was asked to end before its reports were complete"),
    (lambda w: w.exit_code is None and w.well, "completed", None, _LOST),
    (lambda w: w.exit_code is None, "failed", None, ""),
    (lambda w: w.exit_code, "failed", None, ""),
    (lambda w: w.died, "failed", 1, "{died}; its command left with exit status 0 all the same"),
    (lambda _: True, "completed", None, ""),
)


def decide(witnesses: Witnesses) -> Ending:
    """
    >>> decide(Witnesses(0, asked="timeout"))
    Ending(state='timeout', exit_code=143, why='it was asked to end, and left with exit status 0', note='')
    >>> decide(Witnesses(0, asked="cancelled", before=True)).state
    'completed'
    """
    _, state, code, says = next(row for row in _TABLE if row[0](witnesses))
    state, code = state or cast("State", witnesses.asked), witnesses.exit_code if code is None else code
    says = says.format(died=witnesses.died)
    return Ending(state, code, note=says) if state == "completed" else Ending(state, code, says)
