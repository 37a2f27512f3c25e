"""Objects with numpy arrays as bytes: MessagePack, compressed."""

from __future__ import annotations

import zlib
from collections import Counter
from typing import Any, TypeVar, get_origin

import msgspec
import numpy as np

T = TypeVar("T")


def serialize(value: object) -> bytes:
    """A dataclass, a NamedTuple or a struct, of these and of arrays; zlib adds a checksum."""
    return zlib.compress(msgspec.msgpack.encode(value, enc_hook=_encoded), 1)


def deserialize(data: bytes, kind: type[T]) -> T:
    """The inverse of `serialize`. Raises ValueError: the bytes are damaged."""
    try:
        return msgspec.msgpack.decode(zlib.decompress(data), type=kind, dec_hook=_decoded)
    except (zlib.error, msgspec.MsgspecError) as error:
        raise ValueError(f"damaged: {error}") from None


def _encoded(value: Any) -> Any:
    # Times grow along a row: their differences are shorter when compressed.
    return value.dtype.str, value.shape, np.diff(value.ravel(), prepend=value.dtype.type(0)).tobytes()


def _decoded(kind: Any, value: Any) -> Any:
    if get_origin(kind) is Counter:
        return Counter(value)
    dtype, shape, differences = value
    return np.cumsum(np.frombuffer(differences, dtype), dtype=dtype).reshape(shape)
