"""Decodes the tool's JSON, and repairs what is not quite JSON: nan and inf as numbers, names cut within a character.

Whatever is wrong with a text is a msgspec.DecodeError here, also bytes that are no text and nesting without end.
"""

from __future__ import annotations

import re
from typing import Protocol, TypeVar

import msgspec

Decoded_co = TypeVar("Decoded_co", covariant=True)


class Decoder(Protocol[Decoded_co]):
    """What is used of a decoder."""

    def decode(self, buf: bytes | msgspec.Raw, /) -> Decoded_co:
        """The value of a text."""


# Kineto divides by a copy's duration, which can be 0, and prints the result as the C library does.
_NO_NUMBER = re.compile(rb"(:\s*)-?(?:nan|inf|NaN|Infinity)(?=\s*[,}\]])")


def plainly(decoder: Decoder[Decoded_co], text: bytes | msgspec.Raw) -> Decoded_co:
    """`text` decoded as it is. Raises msgspec.DecodeError: it cannot be."""
    try:
        return decoder.decode(text)
    except RecursionError:
        raise msgspec.DecodeError("JSON is nested too deeply") from None
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(f"bytes that are no text: {error.reason}") from None


def decoded(decoder: Decoder[Decoded_co], text: bytes | msgspec.Raw) -> Decoded_co:
    """`text` decoded, after a repair where it needs one. Raises msgspec.DecodeError: the repair does not help."""
    try:
        return plainly(decoder, text)
    except msgspec.DecodeError:
        repaired = bytes(text).decode("utf-8", "replace").encode()
        return plainly(decoder, _NO_NUMBER.sub(rb"\1null", repaired))
