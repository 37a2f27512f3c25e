"""The verdict on a change, the same for every command that compares runs: what it may be, and the rule. Knows numbers
only.

The interval is the 95 % interval of b over a; what it is computed from depends on the runs at hand (comparison.py). A
change is called better or worse if the interval excludes no change and the ratio lies beyond the threshold, and the
same if the whole interval lies within the threshold (inclusion of the interval: Schuirmann 1987, J. Pharmacokinetics
and Biopharmaceutics 15). Of all else nothing can be told.
"""

from __future__ import annotations

from enum import Enum
from math import log, log1p
from typing import NamedTuple

SAME_SHARE = 0.05  # a change by less is no change: two runs of one command differ by so much on a busy machine
_TINY = 1e-300
_SHOWN_SPREAD = 10  # an interval whose ends differ by more says nothing


class ChangeVerdict(str, Enum):
    """What may be said of b against a."""

    BETTER = "better"
    WORSE = "worse"
    SAME = "same"
    UNKNOWN = "cannot tell"
    NOT_COMPARABLE = "not comparable"

    @property
    def is_change(self) -> bool:
        return self in (ChangeVerdict.BETTER, ChangeVerdict.WORSE)

    @property
    def exit_code(self) -> int:
        """Of a command that fails if b is worse; 2 is a wrong request (harness/common/errors.py)."""
        return {ChangeVerdict.BETTER: 0, ChangeVerdict.SAME: 0, ChangeVerdict.WORSE: 1}.get(self, 3)


class Threshold(NamedTuple):
    """share: the change that still counts as the same. one_sided: only a change for the worse has to exceed it, as in a
    test that must not fail because b is a little better."""

    share: float = SAME_SHARE
    one_sided: bool = False

    @property
    def text(self) -> str:
        return f"{100 * self.share:g} %"


class Interval(NamedTuple):
    """b over a, and the ends of its 95 % interval; all above zero."""

    ratio: float
    low: float
    high: float

    @property
    def inverse(self) -> Interval:
        """a over b."""
        return Interval(1 / self.ratio, 1 / self.high, 1 / self.low)

    @property
    def excludes_no_change(self) -> bool:
        return self.low > 1 or self.high < 1


def decide(interval: Interval, threshold: Threshold) -> tuple[ChangeVerdict, str]:
    """The verdict on a ratio of which more is worse, with its reason as a clause."""
    limit, allowed = log1p(threshold.share), threshold.text
    ratio, low, high = (log(max(each, _TINY)) for each in interval)
    larger = f"the interval excludes no change, and the change is larger than {allowed}"
    rules = (
        (low > 0 and ratio > limit, ChangeVerdict.WORSE, larger),
        (high < 0 and ratio < -limit, ChangeVerdict.BETTER, larger),
        (high < 0 and threshold.one_sided, ChangeVerdict.BETTER, "the interval excludes no change"),
        (-limit < low and high < limit, ChangeVerdict.SAME, f"the whole interval is within {allowed}"),
        (
            threshold.one_sided and high < limit and high - low < 2 * limit,
            ChangeVerdict.SAME,
            f"the interval excludes a change for the worse by {allowed}",
        ),
        (low > 0 or high < 0, ChangeVerdict.UNKNOWN, f"it changed, but it is not known whether by more than {allowed}"),
    )
    contains_both = ChangeVerdict.UNKNOWN, f"the interval contains both no change and a change of {allowed}"
    return next(((verdict, why) for holds, verdict, why in rules if holds), contains_both)


def change_text(ratio: float | None, low: float | None = None, high: float | None = None) -> str:
    """A change with half the length of its interval, as all commands show it.

    >>> change_text(1.123, 1.112, 1.134), change_text(0.5), change_text(1.2, 0.2, 9.0), change_text(None)
    ('+12.3 % ± 1.1 %', '−50.0 %', '+20.0 %', '–')
    """
    if ratio is None:
        return "–"
    text = f"{_signed(100 * (ratio - 1))} %"
    if low is None or high is None or high > _SHOWN_SPREAD * low:
        return text
    return f"{text} ± {50 * (high - low):,.1f} %"


def _signed(value: float) -> str:
    text = f"{abs(value):,.1f}"
    return f"−{text}" if value < 0 and text != "0.0" else f"+{text}"
