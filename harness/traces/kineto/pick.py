"""Records by kind: which records a reader wants, picked from the text in the exact way."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from harness.traces.kineto.records import KIND_OF_CATEGORY, Head, Kind, Work
from harness.traces.kineto.repair import decoded
from harness.traces.kineto.split import Records


@dataclass(slots=True)
class Batch:
    """Wanted records: some as text by kind, some decoded already."""

    texts: dict[Kind, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    work: list[Work] = field(default_factory=list)
    told: list[bytes] = field(default_factory=list)  # text of those in `work` that tell of a collective
    calls: list[Work] = field(default_factory=list)

    def extend(self, other: Batch) -> None:
        """Append another batch."""
        for kind, texts in other.texts.items():
            self.texts[kind].extend(texts)
        self.work += other.work
        self.told += other.told
        self.calls += other.calls

    def __len__(self) -> int:
        return sum(map(len, self.texts.values())) + len(self.work) + len(self.calls)


_head = msgspec.json.Decoder(Head)


def head_of(record: bytes | msgspec.Raw) -> Head:
    """What a record says of its category and name."""
    try:
        return _head.decode(record)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return decoded(_head, bytes(record))


_SPAN = "X"
MESSAGE_OPERATOR = "record_param_comms"


def kind_of(head: Head, operators: bool) -> Kind | None:
    """What a record is to the reader; None: not wanted. `operators`: every operator is, not only messages.

    Before torch 1.10 a user's range was an operator too; only its `#` tells ("ProfilerStep#3").
    """
    kind = KIND_OF_CATEGORY.get(head.cat)
    if kind is not Kind.OPERATOR:
        return kind if head.ph == _SPAN or kind is Kind.INSTANT else None
    if head.cat == "Operator" and "#" in head.name:
        return Kind.RANGE
    return kind if operators or head.name == MESSAGE_OPERATOR else None


def picked(records: Records, operators: bool) -> Iterator[Batch]:
    """The wanted records of each block of the file, as text by kind."""
    for raws in records:
        batch = Batch()
        for raw in raws:
            kind = kind_of(head_of(raw), operators)
            if kind is not None:
                batch.texts[kind].append(raw)
        yield batch
