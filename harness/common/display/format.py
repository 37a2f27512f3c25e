"""Numbers as people read them: durations, amounts, shares, kernels' names. Knows no summary."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

from harness.common.display.printable import printable

_LONG_UNITS = ((86400, 3600, ("d", "h")), (3600, 60, ("h", "min")), (60, 1, ("min", "s")))
_MOST_STEPS = 10_000  # of a window: a rarer call is shown as a rate
_ARGUMENTS = re.compile(r"\((?!anonymous|int\)|bool\)|unsigned|cudnn)")  # not casts in template arguments
_END, _SEEN = 10, 6  # shown characters of a name's end, and of the place where it differs from others
_BEGINS_A_FORMULA = re.compile(r"'*[=+\-@\t\r\uff1d\uff0b\uff0d\uff20]")  # the last four: as Japanese ones are typed
_NOWHERE = "default-src 'none'; base-uri 'none'; form-action 'none'"


def duration(ns: float | None) -> str:
    """Nanoseconds in the unit that leaves one to three digits before the point.

    >>> duration(532), duration(1_234_000), duration(None)
    ('532 ns', '1.23 ms', '–')
    """
    if ns is None:
        return "–"
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if abs(ns) >= size:
            return f"{_three_digits(ns / size)} {unit}"
    return f"{ns:.0f} ns"


def span(seconds: float | None) -> str:
    """A time that passes, in one or two units.

    >>> span(4.2), span(75), span(3700), span(200_000), span(None)
    ('4 s', '1 min 15 s', '1 h 1 min', '2 d 7 h', '–')
    """
    if seconds is None:
        return "–"
    whole = round(max(0.0, seconds))
    if whole < 60:
        return f"{whole} s"
    large, small, names = next(unit for unit in _LONG_UNITS if whole >= unit[0])
    rest = whole % large // small
    return f"{whole // large:,} {names[0]}" + (f" {rest} {names[1]}" if rest else "")


def duration_range(low_ns: float | None, high_ns: float | None) -> str:
    """Two durations; a shared unit stands once. A dash where no end is known.

    >>> duration_range(20_100_000, 24_900_000), duration_range(900_000, 1_100_000)
    ('20.1 to 24.9 ms', '900 µs to 1.10 ms')
    >>> duration_range(None, 5_000_000), duration_range(5_000_000, None), duration_range(None, None)
    ('up to 5.00 ms', 'from 5.00 ms', '–')
    """
    if low_ns is None or high_ns is None:
        known = high_ns if low_ns is None else low_ns
        return "–" if known is None else f"{'up to' if low_ns is None else 'from'} {duration(known)}"
    low, high = duration(low_ns), duration(high_ns)
    unit = high.rpartition(" ")[2]
    return f"{low.removesuffix(f' {unit}')} to {high}"


class Scale:
    """Times beside a whole, which has three digits: all in its unit, and as exact as it is told.

    >>> step = Scale(128_400_000)
    >>> step.text(56_100_000), step.of(56_100_000), step.range(47_600_000, 65_900_000)
    ('56', '56 of 128 ms', '48 to 66 ms')
    >>> step.parts([41_100_000, 19_300_000, 56_100_000, 11_900_000])
    ['41', '19', '56', '12']
    """

    def __init__(self, whole_ns: float) -> None:
        value, self.unit = duration(whole_ns).split(" ")
        self.whole_ns, self._digits = whole_ns, len(value.partition(".")[2])
        self._size = {"s": 1e9, "ms": 1e6, "µs": 1e3, "ns": 1.0}[self.unit]

    def text(self, ns: float) -> str:
        return f"{ns / self._size:,.{self._digits}f}"

    def of(self, ns: float) -> str:
        return f"{self.text(ns)} of {self.text(self.whole_ns)} {self.unit}"

    def range(self, low_ns: float, high_ns: float) -> str:
        return f"{self.text(low_ns)} to {self.text(high_ns)} {self.unit}"

    def parts(self, each_ns: Sequence[float], rest_at: int = -1) -> list[str]:
        """Parts of the whole, each as `text` has it, but the one at `rest_at`, which is the rest, so that they add up.

        >>> Scale(49_000_000).parts([30_440_000, 4_740_000, 8_450_001, 1_840_000, 3_530_000])
        ['30.4', '4.7', '8.5', '1.8', '3.6']
        >>> Scale(18_840_000).parts([6_350_000, 11_750_000, 650_001, 90_000], rest_at=0)
        ['6.2', '11.8', '0.7', '0.1']
        """
        least = self._size / 10**self._digits
        counts = [round(ns / least) for ns in each_ns]
        counts[rest_at] = 0
        counts[rest_at] = max(round(self.whole_ns / least) - sum(counts), 0)
        return [self.text(count * least) for count in counts]


def about(share: float) -> str:
    """A share as a whole percentage; a small one with a decimal.

    >>> about(0.437), about(0.0312)
    ('44 %', '3.1 %')
    """
    return f"{100 * share:.0f} %" if share >= 0.0995 else percent(share)


def ordinal(number: int) -> str:
    """
    >>> [ordinal(n) for n in (1, 2, 3, 4, 11, 12, 22, 1113)]
    ['1st', '2nd', '3rd', '4th', '11th', '12th', '22nd', '1,113th']
    """
    teen = 10 <= number % 100 <= 20
    return f"{number:,}{'th' if teen else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"


def _three_digits(value: float) -> str:
    return f"{value:,.{2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0}f}"


def amount(count: float | None, unit: str = "B") -> str:
    """A number with a decimal prefix, as GB are counted in bandwidths.

    >>> amount(16_777_216), amount(None), amount(12_500, "tokens/s")
    ('16.8 MB', '–', '12.5 ktokens/s')
    """
    if count is None:
        return "–"
    for prefix, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(count) >= size:
            return f"{_three_digits(count / size)} {prefix}{unit}"
    return f"{count:.3g} {unit}"


def quantity(value: float, unit: str) -> str:
    """A number with the unit that is given in words: ns, s, share, bytes, or any other.

    >>> quantity(1_234_000, "ns"), quantity(0.25, "share"), quantity(2e9, "bytes"), quantity(0.5, "GPU h")
    ('1.23 ms', '25.0 %', '2.00 GB', '0.5 GPU h')
    >>> quantity(90, "s"), quantity(9000, "s"), quantity(1024, "samples")
    ('1 min 30 s', '2 h 30 min', '1,024 samples')
    """
    if unit == "ns":
        return duration(value)
    if unit == "share":
        return percent(value)
    if unit == "s":
        return span(value)
    if unit == "samples":
        return f"{value:,.0f} {unit}"
    if unit == "GPU h":
        return f"{rate(value)} {unit}"
    return amount(value, "B" if unit == "bytes" else unit)


def quantity_range(low: float, high: float, unit: str) -> str:
    """Two of them; a shared unit stands once.

    >>> quantity_range(0.2, 0.5, "share"), quantity_range(1.5e9, 1.5e9, "bytes"), quantity_range(0.2, 0.7, "GPU h")
    ('20.0 to 50.0 %', '1.50 GB', '0.2 to 0.7 GPU h')
    """
    first, last = quantity(low, unit), quantity(high, unit)
    return last if first == last else f"{first.removesuffix(' ' + last.partition(' ')[2])} to {last}"


def binary_size(count: float) -> str:
    """Bytes with a binary prefix, as a benchmark writes message sizes.

    >>> binary_size(512), binary_size(1024), binary_size(16 << 20), binary_size(1 << 30)
    ('512 B', '1 KiB', '16 MiB', '1 GiB')
    """
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} GiB"


def percent(share: float | None) -> str:
    """A share as a percentage with one decimal.

    >>> percent(0.0312), percent(None)
    ('3.1 %', '–')
    """
    return "–" if share is None else f"{100 * share:.1f} %"


def takes(ratio: float) -> str:
    """A time divided by another, above zero: how much more or less time the first one is.

    >>> takes(1.6), takes(0.3077)
    ('60 % more time (1.60 times as slow)', '69.2 % less time (3.25 times as fast)')
    """
    more, times, pace = ("more", ratio, "slow") if ratio >= 1 else ("less", 1 / ratio, "fast")
    return f"{round(100 * abs(ratio - 1), 1):,g} % {more} time ({_three_digits(times)} times as {pace})"


def rate(value: float | None) -> str:
    """A bare number with three digits, never in powers of ten.

    >>> rate(0.00234), rate(1071.4), rate(0.0000123), rate(None)
    ('0.00234', '1,071', '0.0000123', '–')
    """
    if value is None:
        return "–"
    if 0 < abs(value) < 1e-4:
        return format(Decimal(f"{value:.3g}"), "f")
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:.3g}"


def per_step(calls: float | None) -> str:
    """How often something happens in a step; a rare event: in how many steps it happens.

    >>> per_step(17.0), per_step(0.0625), per_step(0.075), per_step(0.0), per_step(None)
    ('17', '1 in 16 steps', '3 in 40 steps', '0', '–')
    """
    if calls is None or calls <= 0 or calls >= 1:
        return rate(calls)
    share = Fraction(calls).limit_denominator(_MOST_STEPS)
    return f"{share.numerator} in {share.denominator} steps" if share else rate(calls)


def of(numerator: float | None, whole: float) -> str:
    """A part as a percentage of a whole; a dash when either is not known."""
    return "–" if numerator is None or not whole else percent(numerator / whole)


# How a value is written of the metrics whose names have a pattern; of any other, as a bare number.
_WRITTEN: tuple[tuple[str, Callable[[float], str]], ...] = (
    (r"_ns$", duration),
    (r"_ns_per_token$", lambda ns: f"{duration(ns)} a token"),
    (r"_bytes$|^bytes_", amount),
    (r"_share(_|$)|_fraction$|bubble$|^mfu$|_efficiency$|^load_balance$", percent),
    (r"_count$", per_step),
    (r"^tokens_per_s(_per_rank)?$", lambda value: amount(value, "tokens/s")),
    (r"_joules$", lambda value: amount(value, "J")),
)


def metric_text(metric: str, value: float) -> str:
    """A metric of analysis/metrics.py with the unit that its name gives.

    >>> metric_text("a.step_ns", 3.064e7), metric_text("b.data_loading_share", 0.28)
    ('30.6 ms', '28.0 %')
    >>> metric_text("b.all_gather_bytes", 189081088), metric_text("a.tokens_per_s_per_rank", 21_400)
    ('189 MB', '21.4 ktokens/s')
    >>> metric_text("a.all_reduce_count", 17.0)
    '17'
    >>> metric_text("b.all_reduce_count", 0.0625)
    '1 in 16 steps'
    """
    name = metric.rpartition(".")[2]
    return next((write for pattern, write in _WRITTEN if re.search(pattern, name)), rate)(value)


def short(names: Sequence[str], width: int) -> list[str]:
    """Kernels' names without return type and arguments, shortened as `apart` does it."""
    return apart([_ARGUMENTS.split(name.removeprefix("void "), 1)[0] or name for name in names], width)


def apart(names: Sequence[str], width: int) -> list[str]:
    """Names cut to a width as `middle` does it. Names that would become equal keep the place where they differ.

    >>> apart(["FSDP::pre_forward (blocks.9._checkpoint_wrapped_module)"], 44)
    ['FSDP::pre_forward (bloc…oint_wrapped_module)']
    >>> apart([f"FSDP::pre_forward (blocks.{n}._checkpoint_wrapped_module)" for n in (9, 10)], 44)
    ['FSDP::pre_forward (blocks.9._chec…ed_module)', 'FSDP::pre_forward (blocks.10._che…ed_module)']
    """
    return list(map(_distinct({name: middle(name, width) for name in names}, (), width).__getitem__, names))


def _distinct(shown: dict[str, str], places: tuple[int, ...], width: int) -> dict[str, str]:
    """Texts by name. Names with an equal text get a new one, which shows the first place where the names differ."""
    alike: dict[str, list[str]] = {}
    for name, text in shown.items():
        alike.setdefault(text, []).append(name)
    if len(alike) == 1 and places:
        return shown  # there is no room for more
    for several in (found for found in alike.values() if len(found) > 1):
        further = (*places, _first_difference(several))
        shown |= _distinct({name: _with(name, further, width) for name in several}, further, width)
    return shown


def _first_difference(names: Sequence[str]) -> int:
    low, high = min(names), max(names)
    return next((i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), len(low))


def _with(name: str, places: tuple[int, ...], width: int) -> str:
    """A name that fits: the text at these places, its end, and as much of its beginning as there is room for."""
    kept = [*((place - 1, place + _SEEN) for place in places), (len(name) - _END, len(name))]
    texts = (_spans(name, [(0, start), *kept]) for start in range(width, 0, -1))
    return next((text for text in texts if len(text) <= width), cut(name, width))


def _spans(name: str, spans: list[tuple[int, int]]) -> str:
    """These spans of a name, in order, with … in place of the text between."""
    text, shown = "", 0
    for start, end in sorted(spans):
        text += "…" * (start > shown) + name[max(start, shown) : max(end, shown)]
        shown = max(end, shown)
    return text


def aligned(cells: Sequence[Sequence[str]], left: Collection[int]) -> list[str]:
    """Lines of columns with two blanks between them, the columns in `left` aligned left, the others right.

    >>> aligned([("run", "steps"), ("local-1", "9")], [0])
    ['run      steps', 'local-1      9']
    """
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    sides = ["<" if i in left else ">" for i in range(len(widths))]
    return [
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)).rstrip()
        for row in cells
    ]


def cut(text: str, width: int) -> str:
    """A text that fits: the end of a long one left out.

    >>> cut("0123456789", 5)
    '0123…'
    """
    return text if len(text) <= width else text[: width - 1] + "…"


def middle(name: str, width: int = 60) -> str:
    """A name that fits: the middle of a long one left out.

    >>> middle("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 40)
    'enumerate(DataLoade…aLoaderIter.__next__'
    """
    end = 20 if width > 32 else (width - 1) // 2
    return name if len(name) <= width else f"{name[: width - 1 - end]}…{name[-end:]}"


def cells(row: Iterable[Any]) -> list[Any]:
    """The row as it is written.

    >>> cells(["=1+1", "gemm", -1.5, "-1.5", None, "'=x"])
    ["'=1+1", 'gemm', -1.5, '-1.5', None, "''=x"]
    """
    return [_cell(value) if isinstance(value, str) else value for value in row]


def _cell(text: str) -> str:
    is_formula = _BEGINS_A_FORMULA.match(text) and not _is_number(text)
    return ("'" if is_formula else "") + printable(text)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def with_scripts(scripts: Sequence[str]) -> str:
    """The policy of a page that runs these scripts, each whole between its tags, and no other."""
    allowed = " ".join(map(_checksum, scripts))
    # Images: a plot that is saved as a picture goes through one of its own.
    return f"{_NOWHERE}; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:"


def shown_in_page(value: object) -> object:
    """A text of a page, which hides and reorders no other; the page's own parts are Markup. For Jinja's `finalize`."""
    return printable(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


def _checksum(text: str) -> str:
    """As a browser computes it of an element's text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
