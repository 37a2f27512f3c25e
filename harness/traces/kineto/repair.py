"""Repairs text of the tool that is not quite JSON: nan and inf as numbers, and names cut within a character."""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec

Decoded = TypeVar("Decoded")

# Kineto divides by a copy's duration, which can be 0, and prints the result as the C library does.
_NO_NUMBER = re.compile(rb"(:\s*)-?(?:nan|inf|NaN|Infinity)(?=\s*[,}\]])")


def decoded(decoder: msgspec.json.Decoder[Decoded], text: bytes) -> Decoded:
    """`text` decoded, after a repair where it needs one. Raises msgspec.DecodeError: the repair does not help."""
    try:
        return decoder.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return decoder.decode(_NO_NUMBER.sub(rb"\1null", text.decode("utf-8", "replace").encode()))
