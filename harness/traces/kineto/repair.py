"""Text that the tool wrote and that is not quite JSON: numbers that are none, and names cut within a character."""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec

Decoded = TypeVar("Decoded")

# Kineto divides by a copy's duration, which can be 0, and prints the C library's words for the result.
_NO_NUMBER = re.compile(rb"(:\s*)-?(?:nan|inf|NaN|Infinity)(?=\s*[,}\]])")


def decoded(decoder: msgspec.json.Decoder[Decoded], text: bytes) -> Decoded:
    """`text` decoded, if need be after mending it. Raises msgspec.DecodeError if that does not help."""
    try:
        return decoder.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return decoder.decode(_mended(text))


def _mended(text: bytes) -> bytes:
    return _NO_NUMBER.sub(rb"\1null", text.decode("utf-8", "replace").encode())
