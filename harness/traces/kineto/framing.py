"""A Kineto file as blocks of text and whole records, also of a file that is packed, cut off or in need of a repair."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from contextlib import suppress
from io import FileIO
from itertools import chain
from pathlib import Path
from typing import TypeVar

import msgspec
from isal import isal_zlib

from harness.common.system.bounded_read import GZIP_MAGIC, json_encoding
from harness.traces.errors import TraceError, unpacks_to_too_much
from harness.traces.progress import OnProgress, silent

BLOCK_BYTES = 256 << 10  # fits the cache of one core; larger blocks read slower
MOST_RECORD_BYTES = 64 << 20  # of text in which no record ends
_PACKED_BYTES = 64 << 10
_GZIP_WBITS = 31  # zlib's number for "with a gzip header"
_DAMAGE: type[Exception] = isal_zlib.error  # type: ignore[assignment]

# Kineto divides by a copy's duration, which can be 0, and prints the result as the C library does.
_NO_NUMBER = re.compile(rb"(:\s*)-?(?:nan|inf|NaN|Infinity)(?=\s*[,}\]])")
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_PAIR = rb"u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_ODD = re.compile(
    rb'(?P<right>\\(?:["\\/bfnrt]|' + _PAIR + rb"|u(?![dD][89a-fA-F])[0-9a-fA-F]{4}))"
    rb"|(?P<half>\\u[dD][89a-fA-F][0-9a-fA-F]{2})|[\x00-\x1f\\]"
)
_TO_A_KEY = re.compile(rb'(:\s*")(.*?)("(?=\s*,\s*"[^"]*"\s*:|\s*\}))', re.DOTALL)
_QUOTE = re.compile(rb'(?<!\\)"|\\$')
_CUT_OFF = "the file ends in the middle of its events"
# Between two records, or at the end of all: the keys after them or the end of the file follow.
_NO_MORE = b"\0"
_BOUNDARY = re.compile(rb'\}\s*(?:(,)\s*(?=\{)|(\])\s*(?:,\s*"[^"]*"\s*:|\}\s*\0|\0))')
_PHASE = b'"ph"'  # which each record has
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[|\A\s*\[')
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|[][{}]', re.DOTALL)
_SPACE = b" \t\r\n"
_BETWEEN = _SPACE + b","  # may stand before the first record of a text
_MOST_HEADER_BYTES = 64 << 20
_LONG_BYTES = 4 << 20  # of text without the usual boundary; from here the structure is parsed
_MOST_DEPTH = 1000
_MOST_TRIED = 8  # ends of a record that is damaged or holds others; then its brackets tell the end
_KEY_BYTES = 1024  # more than the events' key and its bracket need, with white space


class NotJson(TraceError):
    """The text of a trace's events is no JSON."""


class Blocks:
    """The blocks of one file. After iteration, `broken` says why it ended early; None: it did not."""

    def __init__(self, path: Path, progress: OnProgress = silent) -> None:
        self.path = path
        self.broken: str | None = None
        self._progress = progress

    def __iter__(self) -> Iterator[bytes]:
        try:
            with self.path.open("rb", buffering=0) as file:
                size = self.path.stat().st_size
                for block in _in_utf8(_worthwhile(self._unpacked(file)) if _is_packed(file) else _plain(file)):
                    self._progress(file.tell(), size)
                    yield block
        except OSError as error:
            raise TraceError(self.path, f"cannot be read: {error.strerror or error}") from error

    def _unpacked(self, open_file: FileIO) -> Iterator[bytes]:
        """Everything that can be unpacked, also of a file that ends in the middle."""
        engine, unpacked = isal_zlib.decompressobj(wbits=_GZIP_WBITS), 0
        try:
            while packed := open_file.read(_PACKED_BYTES):
                while packed:
                    if engine.eof:
                        engine = isal_zlib.decompressobj(wbits=_GZIP_WBITS)
                    block = engine.decompress(packed, BLOCK_BYTES)
                    unpacked += len(block)
                    if too_much := unpacks_to_too_much(open_file.tell(), unpacked):
                        raise TraceError(self.path, too_much)
                    yield block
                    packed = engine.unused_data.lstrip(b"\0") if engine.eof else engine.unconsumed_tail
        except _DAMAGE as error:
            self.broken = f"the compressed data is damaged ({error})"
            return
        if not engine.eof:
            self.broken = "the compressed file ends in the middle"


def _in_utf8(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """The same text without a byte order mark, in UTF-8 also if the file is in UTF-16 or UTF-32."""
    first = next(blocks, b"")
    encoding = json_encoding(first[:4])
    if encoding is None:
        yield first
        yield from blocks
        return
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    for block in chain([first], blocks):
        yield decoder.decode(block).encode("utf-8", "replace")


def _worthwhile(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The same bytes without small pieces, which a file of many compressed parts would be."""
    held: list[bytes] = []
    size = 0
    for piece in pieces:
        held.append(piece)
        size += len(piece)
        if size >= _PACKED_BYTES:
            yield b"".join(held) if len(held) > 1 else piece
            held, size = [], 0
    if size:
        yield b"".join(held)


def more(blocks: Iterator[bytes], size: int) -> bytes:
    """The next blocks of a stream as one text of at least `size` bytes, or as many as there are; b"" at its end.

    A reader that found nothing in its text asks for as many bytes again: the text doubles, so the reader searches each
    byte only a few times.
    """
    taken: list[bytes] = []
    while size > 0 and (block := next(blocks, None)) is not None:
        taken.append(block)
        size -= len(block)
    return taken[0] if len(taken) == 1 else b"".join(taken)


def _plain(open_file: FileIO) -> Iterator[bytes]:
    while block := open_file.read(BLOCK_BYTES):
        yield block


def _is_packed(open_file: FileIO) -> bool:
    open_file.seek(0)
    magic = open_file.read(len(GZIP_MAGIC))
    open_file.seek(0)
    return magic == GZIP_MAGIC


Decoded = TypeVar("Decoded")


def plainly(decoder: msgspec.json.Decoder[Decoded], text: bytes | msgspec.Raw) -> Decoded:
    """`text` decoded as it is. Raises msgspec.DecodeError: it cannot be."""
    try:
        return decoder.decode(text)
    except RecursionError:
        raise msgspec.DecodeError("JSON is nested too deeply") from None
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(f"bytes that are no text: {error.reason}") from None


def decoded(decoder: msgspec.json.Decoder[Decoded], text: bytes | msgspec.Raw) -> Decoded:
    """`text` decoded, after a repair where it needs one. Raises msgspec.DecodeError: the repair does not help."""
    try:
        return plainly(decoder, text)
    except msgspec.DecodeError:
        return plainly(decoder, _repaired(bytes(text)))


def _repaired(text: bytes) -> bytes:
    """What tools write and JSON does not allow, as JSON: numbers that are none, and in strings control characters,
    backslashes that escape nothing, halves of surrogate pairs, and bytes of another encoding."""
    return _STRING.sub(lambda string: _ODD.sub(_escaped, _as_utf8(string[0])), _NO_NUMBER.sub(rb"\1null", text))


def _escaped(match: re.Match[bytes]) -> bytes:
    """As JSON has it: what stands in a string, or begins as if it escaped something."""
    if match["half"]:
        return b"\\ufffd"
    return match["right"] or (b"\\\\" if match[0] == b"\\" else b"\\u%04x" % match[0][0])


def _as_utf8(text: bytes) -> bytes:
    try:
        text.decode()
    except UnicodeDecodeError:
        whole, latin = text.decode("utf-8", "replace"), text.decode("latin-1")
        multibyte = any(character > "\x7f" and character != "\ufffd" for character in whole)
        controls = any("\x7f" < character < "\xa0" for character in latin)  # which no text in Latin-1 has
        return (whole if multibyte or controls else latin).encode()
    return text


def _requoted(text: bytes) -> bytes:
    """A record in which a string holds quotes that are not escaped: each string ends before a key or the end."""
    return _TO_A_KEY.sub(lambda value: value[1] + _QUOTE.sub(rb"\\\g<0>", value[2]) + value[3], text)


_records = msgspec.json.Decoder(list[msgspec.Raw])
_record = msgspec.json.Decoder(msgspec.Raw)


class Records:
    """The records of one trace file, block by block; `header` and `footer` are the JSON text around them."""

    def __init__(self, blocks: Blocks, salvage: bool = False) -> None:
        self.path = blocks.path
        self.unreadable = 0  # records that are not valid JSON: with `salvage` they are left out, else they are an error
        self.readable = 0  # records read with `salvage`
        self._salvage = salvage
        self.header = b""
        self.footer = b""
        self.truncated: str | None = None
        self._blocks = blocks
        self._ended = False
        self._stream = iter(blocks)
        self._rest = self._after_header()

    def __iter__(self) -> Iterator[list[msgspec.Raw]]:
        """Lists of whole records. Raises TraceError: the text is not JSON."""
        text, enough = self._rest, 1
        while block := more(self._stream, enough):
            records, rest = self._cut(text)
            yield records
            if self._ended:
                self.footer += b"".join([block, *self._stream])
                self.truncated = self.broken
                return
            enough = 1 if len(rest) < len(text) else max(1, len(text))
            text = rest + block
            if len(rest) > MOST_RECORD_BYTES:
                mega = MOST_RECORD_BYTES >> 20
                raise NotJson(self.path, f"is damaged: in {mega} MB of its events no record ends")
        yield self._last(text)

    @property
    def broken(self) -> str | None:
        """Why the compressed file ended early, once it was read; its events may be whole all the same."""
        return self._blocks.broken

    def _after_header(self) -> bytes:
        text, searched = bytearray(), 0
        for block in self._stream:
            text += block
            if bytes(text[:64]).lstrip()[:1] not in (b"{", b"[", b""):
                break  # such as an archive, in which events may be found too
            found = _EVENTS.search(text, max(0, searched - _KEY_BYTES))
            if found:
                self.header = bytes(text[: found.start()])
                return bytes(text[found.end() :]) + next(self._stream, b"")
            searched = len(text)
            if searched > _MOST_HEADER_BYTES:
                break
        raise TraceError(self.path, self._blocks.broken or _why_no_trace(bytes(text[:64])))

    def _cut(self, text: bytes) -> tuple[list[msgspec.Raw], bytes]:
        """The whole records that certainly end in `text`, and the text after them."""
        cut = _last_boundary(text)
        if cut is None and len(text) < _LONG_BYTES:
            return [], text
        try:
            if cut is not None:
                return _decode(text[: cut[0]]), text[cut[1] :]
        except msgspec.DecodeError:
            pass
        if self._salvage:
            return self._salvaged(text)
        end, array_end = _structure(text)
        if array_end is not None:
            return self._finished(text, array_end), b""
        return self._checked(text[:end]), text[end:]

    def _last(self, text: bytes) -> list[msgspec.Raw]:
        """The last records; sets `footer`, or `truncated` where the array never ends."""
        bracket = text.rfind(b"]")
        if bracket >= 0 and text[:bracket].rstrip(_SPACE)[-1:] in (b"}", b""):
            try:
                records = _decode(text[:bracket])
                self.footer, self.truncated = text[bracket + 1 :], self.broken
                return records
            except msgspec.DecodeError:
                pass
        if self._salvage:
            return self._last_salvaged(text)
        end, array_end = _structure(text)
        if array_end is not None:
            self.truncated = self.broken
            return self._finished(text, array_end)
        self.truncated = self._blocks.broken or _CUT_OFF
        if _BOUNDARY.search(text, end + 1):  # more than the record in which a file was cut off
            raise NotJson(self.path, f"is damaged: its events are not valid JSON after byte {end} of the last text")
        return self._checked(text[:end])

    def _salvaged(self, text: bytes) -> tuple[list[msgspec.Raw], bytes]:
        """The records of a text that can be read, each by itself, and the text after them."""
        records, begin, inner, tried = list[msgspec.Raw](), 0, 0, 0
        closes: int | None = None
        for boundary in _BOUNDARY.finditer(text):
            end = boundary.start() + 1
            if tried == _MOST_TRIED:
                closes = _end_of_record(text, begin)
            raw = _alone(text[begin:end]) if tried < _MOST_TRIED or end == closes else None
            tried += 1
            if raw is None and inner > begin and _PHASE in text[inner:end]:
                raw = _alone(text[inner:end])  # what is before it is no record that holds others
                self.unreadable += raw is not None
            if raw is not None:
                records.append(raw)
                self.readable += 1
                begin, tried, closes = end, 0, None
                if boundary[2]:
                    self._end_at(text, boundary)
                    return records, b""
            inner = end
        return records, text[begin:]

    def _end_at(self, text: bytes, boundary: re.Match[bytes]) -> None:
        self._ended, self.footer = True, text[boundary.end(2) :].removesuffix(_NO_MORE)

    def _last_salvaged(self, text: bytes) -> list[msgspec.Raw]:
        records, rest = self._salvaged(text + _NO_MORE)
        if not self._ended and (end := next((found for found in _BOUNDARY.finditer(rest) if found[2]), None)):
            self.unreadable += 1
            self._end_at(rest, end)
        self.truncated = self._blocks.broken or (None if self._ended else _CUT_OFF)
        return records

    def _finished(self, text: bytes, array_end: int) -> list[msgspec.Raw]:
        """The records of a text in which the array of records ends."""
        self._ended = True
        self.footer = text[array_end + 1 :]
        return self._checked(text[:array_end])

    def _checked(self, text: bytes) -> list[msgspec.Raw]:
        try:
            return decoded(_records, _array(text))
        except msgspec.DecodeError as error:
            raise NotJson(self.path, f"is damaged: its events are not valid JSON ({error})") from error


def _decode(text: bytes) -> list[msgspec.Raw]:
    return plainly(_records, _array(text))


def _array(text: bytes) -> bytes:
    return b"[" + text.lstrip(_BETWEEN) + b"]"


def _alone(text: bytes) -> msgspec.Raw | None:
    """One record by itself; None: it cannot be read."""
    record = text.lstrip(_BETWEEN)
    for attempt in (record, _requoted(record)):
        with suppress(msgspec.DecodeError):
            return decoded(_record, attempt)
    return None


def _last_boundary(text: bytes) -> tuple[int, int] | None:
    """Where one record ends and the next begins, at the last place that looks like `} , {`."""
    brace = text.rfind(b"{")
    while brace >= 0:
        before = text[max(0, brace - 256) : brace].rstrip(_SPACE)
        if before.endswith(b",") and (record := before[:-1].rstrip(_SPACE)).endswith(b"}"):
            return max(0, brace - 256) + len(record), brace
        brace = text.rfind(b"{", 0, brace)
    return None


def _end_of_record(text: bytes, begin: int) -> int | None:
    """Where the brackets of the record that begins here close; None: not within a record's most bytes."""
    depth = 0
    for token in _TOKEN.finditer(text, begin, begin + MOST_RECORD_BYTES):
        character = text[token.start()]
        depth += (character in b"{[") - (character in b"}]")
        if depth <= 0 and character in b"}]":
            return token.end()
    return None


def _structure(text: bytes) -> tuple[int, int | None]:
    """Where the last whole record ends, and where the array of records ends (None: not in this text).

    Raises:
        msgspec.DecodeError: it is nested more deeply than any record.
    """
    depth, end = 0, 0
    for token in _TOKEN.finditer(text):
        character = text[token.start()]
        if character in b"{[":
            depth += 1
            if depth > _MOST_DEPTH:
                raise msgspec.DecodeError("JSON is nested too deeply")
        elif character in b"}]":
            if depth == 0:
                return end, token.start()
            depth -= 1
            if depth == 0:
                end = token.end()
    return end, None


def _why_no_trace(text: bytes) -> str:
    if not text:
        return "is empty"
    if text.lstrip()[:1] != b"{":
        return "is not a profiler trace: it does not start as JSON; an archive must be unpacked first"
    return "is JSON, but not a profiler trace: it has no traceEvents"
