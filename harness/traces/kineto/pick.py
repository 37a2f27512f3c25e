"""Records by kind: which records a reader wants, picked from the text in the exact way."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from harness.traces.kineto.framing import Records
from harness.traces.kineto.records import KIND_OF_CATEGORY, LONG_US, OLD_OPERATOR, Head, RecordKind, Work
from harness.traces.kineto.repair import decoded


@dataclass(slots=True)
class RecordBatch:
    """Wanted records: some as text by kind, some decoded already."""

    texts: dict[RecordKind, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    work: list[Work] = field(default_factory=list)
    message_texts: list[bytes] = field(default_factory=list)  # of the records in `work` that carry a message
    calls: list[Work] = field(default_factory=list)

    def extend(self, other: RecordBatch) -> None:
        """Append another batch."""
        for kind, texts in other.texts.items():
            self.texts[kind].extend(texts)
        self.work += other.work
        self.message_texts += other.message_texts
        self.calls += other.calls

    def __len__(self) -> int:
        return sum(map(len, self.texts.values())) + len(self.work) + len(self.calls)


_head = msgspec.json.Decoder(Head)


def head_of(record: bytes | msgspec.Raw) -> Head:
    """A record's phase, category and name."""
    return decoded(_head, record)


_SPAN = "X"
MESSAGE_OPERATOR = "record_param_comms"
_LONG = re.compile(LONG_US)


def kind_of(head: Head, operators: bool) -> RecordKind | None:
    """A record's kind; None: it is not wanted. With `operators` all operators are wanted, else messages and long ones.

    Before torch 1.10 a user's range was an operator too; only the `#` in its name shows it ("ProfilerStep#3").
    """
    kind = KIND_OF_CATEGORY.get(head.cat)
    if kind is RecordKind.OPERATOR:
        if is_old_range(head.cat, head.name):
            return RecordKind.RANGE
        if operators or head.name == MESSAGE_OPERATOR:
            return kind
        kind = RecordKind.HOST
    if kind is RecordKind.HOST and not _LONG.match(head.dur):
        return None
    return kind if head.ph == _SPAN or kind is RecordKind.INSTANT else None


def is_old_range(category: str, name: str) -> bool:
    """Whether a record is a user's range as torch wrote it before 1.10: an operator with such a name."""
    return category == OLD_OPERATOR and "#" in name


def picked(records: Records, operators: bool) -> Iterator[RecordBatch]:
    """The wanted records of each block of the file, as text by kind."""
    for raws in records:
        batch = RecordBatch()
        for raw in raws:
            kind = kind_of(head_of(raw), operators)
            if kind is not None:
                batch.texts[kind].append(raw)
        yield batch
