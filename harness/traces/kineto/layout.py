"""The wanted records of a text: picked in the exact way, or by the layout of the file's first records."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from harness.traces.kineto.framing import MOST_RECORD_BYTES, Records, decoded, more, plainly
from harness.traces.kineto.records import (
    KIND_OF_CATEGORY,
    LONG_US,
    OLD_OPERATOR,
    Head,
    RecordKind,
    Work,
    carries_message,
)


@dataclass(slots=True)
class RecordBatch:
    """Wanted records: some as text by kind, some decoded already."""

    texts: dict[RecordKind, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    work: list[Work] = field(default_factory=list)
    message_texts: list[bytes] = field(default_factory=list)  # of the records in `work` that carry a message
    calls: list[Work] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)  # of a sample: PAIRS, and categories, at least the unknown ones

    def extend(self, other: RecordBatch) -> None:
        """Append another batch."""
        for kind, texts in other.texts.items():
            self.texts[kind].extend(texts)
        self.work += other.work
        self.message_texts += other.message_texts
        self.calls += other.calls
        self.seen |= other.seen

    def __len__(self) -> int:
        return sum(map(len, self.texts.values())) + len(self.work) + len(self.calls)


_head = msgspec.json.Decoder(Head)
_heads = msgspec.json.Decoder(list[Head])
_SPAN, _BEGIN = "X", "B"
PAIRS = "pairs of begin and end"  # what Kineto does not write
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


_DENSE = 0.4  # share of a text that must be wanted for decoding all of it to be faster
_BETWEEN = b" \t\r\n,"
_work = msgspec.json.Decoder(list[Work])
_WORK_KINDS = (RecordKind.DEVICE, RecordKind.CALL)
_COMMON_KINDS = (*_WORK_KINDS, RecordKind.HOST)
_UNDECODED = tuple(b'"%s"' % c.encode() for c, k in KIND_OF_CATEGORY.items() if k not in _COMMON_KINDS)
_INDENTATION = re.compile(rb"\s*(\n[ \t]*)\{")
_OLD_OPERATOR, _OLD_CALL = b'"%s"' % OLD_OPERATOR.encode(), b'"Runtime"'
_COLLECTIVE_KEY = b'"Collective name"'
_MESSAGE = b'"%s"' % MESSAGE_OPERATOR.encode()
_ANY_CATEGORY, _ANY_PAIR = re.compile(rb'"cat"\s*:\s*"([^"]*)"'), re.compile(rb'"ph"\s*:\s*"B"')
_SAMPLED_WHOLE, _SAMPLED_BYTES = 128 << 10, 4 << 10  # of a file's text, and of each later block
_LONG_DURATION = re.compile(rb'"dur"\s*:\s*' + LONG_US)


class OtherLayout(Exception):
    """The text is laid out in another way than assumed."""


def picked_by_layout(records: Records, operators: bool) -> Iterator[RecordBatch]:
    """The wanted records of each block, as `pick.picked` gives them.

    Raises:
        OtherLayout: the text is laid out differently, which may show only at its end.
    """
    picker = Picker(records.rest, operators)
    yield from picker.to_the_end(records.blocks())
    records.footer, records.truncated = picker.footer, records.broken


class Picker:
    """Picks records out of text that is laid out like `text`, the beginning of a file's events."""

    def __init__(self, text: bytes, operators: bool) -> None:
        indentation = _INDENTATION.match(text)
        if indentation is None:
            raise OtherLayout
        self.footer = b""  # the text after the events, once they have ended
        self.begin, self._end = indentation[1] + b"{", indentation[1] + b"}"
        self._array_end = re.compile(re.escape(self._end) + rb"\s*\]")
        self._operators = operators
        self._sampled = 0  # bytes of which the categories were looked at
        self._dense = False  # whether most of the last text was wanted
        self._old = _OLD_OPERATOR in text
        unless_long = {RecordKind.HOST} if operators else {RecordKind.HOST, RecordKind.OPERATOR}
        self._kinds = [kind for kind in RecordKind if kind not in unless_long]
        self._category = _category(*([kind] for kind in self._kinds))
        self._host = _category(unless_long)

    def to_the_end(self, blocks: Iterable[bytes]) -> Iterator[RecordBatch]:
        """The records of blocks; the first block begins, and the last one ends, between records."""
        text, enough, stream = b"", 1, iter(blocks)
        while block := more(stream, enough):
            text += block
            cut = text.rfind(self.begin)
            if cut > 0:
                yield self.batch(text[:cut])
                text = text[cut:]
            enough = 1 if cut > 0 else _waiting(text)
        end = self._array_end.search(text)
        if end is None:
            raise OtherLayout
        self.footer = text[end.end() :]
        yield self.batch(text[: end.end()])

    def up_to(self, blocks: Iterable[bytes], size: int) -> Iterator[RecordBatch]:
        """The records of blocks that begin between records, up to the last one that begins within `size` bytes."""
        text, before, enough, stream = b"", 0, 1, iter(blocks)
        while block := more(stream, enough):
            text += block
            past = text.find(self.begin, max(0, size - before))
            if past >= 0:
                yield self.batch(text[:past])
                return
            cut = text.rfind(self.begin)
            if cut > 0:
                yield self.batch(text[:cut])
                text, before = text[cut:], before + cut
            enough = 1 if cut > 0 else _waiting(text)
        raise OtherLayout

    def batch(self, text: bytes) -> RecordBatch:
        """The wanted records of a text that begins and ends between records."""
        batch = self._batch(text)
        sample = text if self._sampled < _SAMPLED_WHOLE else text[:_SAMPLED_BYTES]
        self._sampled += len(sample)
        batch.seen = {category.decode("utf-8", "replace") for category in {*_ANY_CATEGORY.findall(sample)}}
        if _ANY_PAIR.search(sample):
            batch.seen.add(PAIRS)
        return batch

    def _batch(self, text: bytes) -> RecordBatch:
        if self._dense:
            batch = self._all_decoded(text)
            if batch is not None:
                return batch
        batch = self._wanted_cut_out(text)
        wanted = sum(len(record) for kind in _WORK_KINDS for record in batch.texts[kind])
        self._dense = not self._operators and wanted > _DENSE * len(text)
        return batch

    def _all_decoded(self, text: bytes) -> RecordBatch | None:
        """All records of a text, decoded at once; None where the exact shapes of some are needed."""
        if any(category in text for category in _UNDECODED):
            return None
        try:
            records = plainly(_work, b"[" + text.rstrip(_BETWEEN) + b"]")
        except msgspec.DecodeError:
            return None
        kinds = {category: KIND_OF_CATEGORY.get(category) for category in {r.cat for r in records}}
        if not set(kinds.values()) <= {None, *_WORK_KINDS}:
            return None
        batch = RecordBatch(calls=[r for r in records if kinds[r.cat] is RecordKind.CALL])
        batch.work = [r for r in records if kinds[r.cat] is RecordKind.DEVICE]
        messages = sum(map(carries_message, batch.work))
        batch.message_texts = list(self._records_with(_COLLECTIVE_KEY, text)) if messages else []
        return batch if len(batch.message_texts) == messages else None

    def _wanted_cut_out(self, text: bytes) -> RecordBatch:
        found: list[list[bytes]] = [[] for _ in range(len(self._kinds) + 1)]
        begin, end, find, rfind = self.begin, self._end, text.find, text.rfind
        width = len(end)
        for match in self._category.finditer(text):
            at = match.start()
            first, last = rfind(begin, 0, at), find(end, at)
            if first < 0 or last < 0:
                raise OtherLayout
            found[match.lastindex or 0].append(text[first : last + width])
        batch = RecordBatch(dict(zip(self._kinds, found[1:], strict=True)))
        batch.texts[RecordKind.HOST] = list(self._long_spans(text))
        self._judge_operators(batch.texts, text)
        return batch

    def _long_spans(self, text: bytes) -> Iterator[bytes]:
        """The records of the host that are not short, found by their durations: most of its records are short."""
        begin, end, find, rfind, of_host = self.begin, self._end, text.find, text.rfind, self._host.search
        width, before = len(end), -1
        for match in _LONG_DURATION.finditer(text):
            first, last = rfind(begin, 0, match.start()), find(end, match.end())
            if first < 0 or last < 0:
                raise OtherLayout
            if first != before and of_host(text, first, last):
                yield text[first : last + width]
            before = first

    def _judge_operators(self, texts: dict[RecordKind, list[bytes]], text: bytes) -> None:
        """Sort operators by their names; only records that can hold such a name are decoded for it."""
        if self._operators:
            maybe = [record for record in texts[RecordKind.OPERATOR] if b"#" in record]
            texts[RecordKind.OPERATOR] = [record for record in texts[RecordKind.OPERATOR] if b"#" not in record]
        else:
            maybe = list(self._records_with(_MESSAGE, text))
            if self._is_old(texts[RecordKind.CALL]):
                maybe += self._records_with(b"#", text)
        for record in maybe:
            head = decoded(_head, record)
            is_operator = KIND_OF_CATEGORY.get(head.cat) is RecordKind.OPERATOR
            if is_operator and (kind := kind_of(head, self._operators)) not in (None, RecordKind.HOST):
                texts.setdefault(kind, []).append(record)

    def _is_old(self, calls: list[bytes]) -> bool:
        """Whether ranges are operators, as until torch 1.9; the file's first records show it."""
        if not self._old and any(record.find(_OLD_CALL) >= 0 for record in calls[:1]):
            raise OtherLayout  # the records before these were read as if they were new
        return self._old

    def _records_with(self, needle: bytes, text: bytes) -> Iterator[bytes]:
        at = text.find(needle)
        while at >= 0:
            first, last = text.rfind(self.begin, 0, at), text.find(self._end, at)
            if first < 0 or last < 0:
                raise OtherLayout
            yield text[first : last + len(self._end)]
            at = text.find(needle, last)


def _waiting(text: bytes) -> int:
    """How many more bytes to read after a text in which no record ends. Raises OtherLayout: it is too long."""
    if len(text) > MOST_RECORD_BYTES:
        raise OtherLayout
    return len(text)


def _category(*groups: Iterable[RecordKind]) -> re.Pattern[bytes]:
    """A pattern with a group for each of `groups`: the categories of every era that mean one of its kinds."""
    words = ("|".join(c for c, kind in KIND_OF_CATEGORY.items() if kind in group) for group in groups)
    return re.compile(rb'"cat"\s*:\s*"(?:%s)"' % "|".join(f"({some})" for some in words).encode())
