"""The wanted records among those of a file, by their kind."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from harness.traces.kineto.framing import Records, decoded, plainly
from harness.traces.kineto.records import KIND_OF_CATEGORY, LONG_US, OLD_OPERATOR, Head, RecordKind

PAIRS = "pairs of begin and end"  # what Kineto does not write
MESSAGE_OPERATOR = "record_param_comms"


@dataclass(slots=True)
class RecordBatch:
    """Wanted records as text, by kind."""

    texts: dict[RecordKind, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    seen: set[str] = field(default_factory=set)  # PAIRS, and the categories that are of no kind

    def extend(self, record_batch: RecordBatch) -> None:
        """Append another batch."""
        for kind, texts in record_batch.texts.items():
            self.texts[kind].extend(texts)
        self.seen |= record_batch.seen

    def __len__(self) -> int:
        return sum(map(len, self.texts.values()))


_head = msgspec.json.Decoder(Head)
_heads = msgspec.json.Decoder(list[Head])
_SPAN, _BEGIN = "X", "B"
_is_long = re.compile(LONG_US).match
# Called millions of times: names of a module are found faster than those of an enumeration.
_OPERATOR, _HOST, _RANGE, _INSTANT = RecordKind.OPERATOR, RecordKind.HOST, RecordKind.RANGE, RecordKind.INSTANT


def kind_of(head: Head, operators: bool) -> RecordKind | None:
    """A record's kind; None: it is not wanted. With `operators` all operators are wanted, else messages and long ones.

    Before torch 1.10 a user's range was an operator too; only the `#` in its name shows it ("ProfilerStep#3").
    """
    kind = KIND_OF_CATEGORY.get(head.cat)
    if kind is _OPERATOR:
        if is_old_range(head.cat, head.name):
            return _RANGE
        if operators or head.name == MESSAGE_OPERATOR:
            return kind
        kind = _HOST
    if kind is _HOST and not _is_long(head.dur):
        return None
    return kind if head.ph == _SPAN or kind is _INSTANT else None


def is_old_range(category: str, name: str) -> bool:
    """Whether a record is a user's range as torch wrote it before 1.10: an operator with such a name."""
    return category == OLD_OPERATOR and "#" in name


def picked(records: Records, operators: bool) -> Iterator[RecordBatch]:
    """The wanted records of each block of the file, as text by kind."""
    for raws in records:
        yield batch_of(raws, operators)


def batch_of(raws: Sequence[bytes], operators: bool) -> RecordBatch:
    """The wanted ones of some whole records."""
    batch = RecordBatch()
    for raw, head in zip(raws, _heads_of(raws), strict=True):
        if head.cat in KIND_OF_CATEGORY:
            if (kind := kind_of(head, operators)) is not None:
                batch.texts[kind].append(raw)
            elif head.ph == _BEGIN:
                batch.seen.add(PAIRS)
        elif head.ph in (_SPAN, _BEGIN):
            batch.seen.add(head.cat if head.ph == _SPAN else PAIRS)
    return batch


def _heads_of(records: Sequence[bytes]) -> list[Head]:
    """The heads of whole records: decoded at once, or one by one where some need a repair."""
    try:
        return plainly(_heads, b"[" + b",".join(records) + b"]")
    except msgspec.DecodeError:
        return [decoded(_head, record) for record in records]
