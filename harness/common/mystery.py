"""The secret of a mystery run: its faults and a salt, sealed so that no file, script or process list shows them.

Sealing hides a text from a person who opens or searches files. It hides nothing from a person who runs this module:
the key is below. A change of a sealed text is detected.
"""

from __future__ import annotations

import hmac
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from hashlib import sha256, shake_256
from pathlib import Path

from harness.common.bounded_read import BoundedReadError, read_bounded_text

_KEY = b"a mystery is solved from its trace"
_NONCE = 16  # bytes
_TAG = 16
_LENGTH = 4
SECRET_BLOCK = 256  # bytes: a sealed secret's length says nothing of what it holds
LINES_BLOCK = 1 << 16  # as above, of all that a rank recorded
_MOST_BYTES = 64 << 20  # unpacked: what is sealed by us is far less


def seal(content: bytes, nonce: bytes, block: int) -> str:
    """`content` as one word of letters, digits, `-` and `_`; filled up to a multiple of `block` bytes."""
    packed = zlib.compress(content, 9)
    filled = len(packed).to_bytes(_LENGTH, "big") + packed
    filled += bytes(-len(filled) % block)
    hidden = nonce[:_NONCE] + _mixed(filled, nonce[:_NONCE])
    return urlsafe_b64encode(hidden + _tag(hidden)).decode().rstrip("=")


def unseal(word: str) -> bytes:
    """What was sealed. Raises ValueError: it was changed, or is no sealed text."""
    raw = urlsafe_b64decode(word.strip() + "=" * (-len(word.strip()) % 4))
    hidden, tag = raw[:-_TAG], raw[-_TAG:]
    if not hmac.compare_digest(_tag(hidden), tag):
        raise ValueError("it was changed after it was sealed")
    filled = _mixed(hidden[_NONCE:], hidden[:_NONCE])
    length = int.from_bytes(filled[:_LENGTH], "big")
    try:
        return zlib.decompressobj().decompress(filled[_LENGTH : _LENGTH + length], _MOST_BYTES)
    except zlib.error:
        raise ValueError("it was changed after it was sealed") from None


def _mixed(content: bytes, nonce: bytes) -> bytes:
    stream = shake_256(_KEY + nonce).digest(len(content))
    return bytes(a ^ b for a, b in zip(content, stream, strict=True))


def _tag(hidden: bytes) -> bytes:
    return hmac.digest(_KEY, hidden, "sha256")[:_TAG]


@dataclass(frozen=True)
class Secret:
    """faults: each as `--fault` takes it. salt: hexadecimal; with it the commitment does not reveal the faults."""

    faults: tuple[str, ...]
    salt: str

    @property
    def commitment(self) -> str:
        """SHA-256, hexadecimal, of the salt and the faults: it fixes the faults without revealing them."""
        return sha256(self._text()).hexdigest()

    @property
    def sealed(self) -> str:
        """The word that `open` reads; the same for the same secret."""
        return seal(self._text(), sha256(b"nonce" + self._text()).digest(), SECRET_BLOCK)

    def _text(self) -> bytes:
        return "\n".join([self.salt, *self.faults]).encode()

    @classmethod
    def open(cls, sealed: str) -> Secret:
        """Raises ValueError: it was changed."""
        salt, *faults = unseal(sealed).decode().split("\n")
        return cls(tuple(faults), salt)


def sealed_file(run: Path) -> Path:
    """Where a training finds the sealed faults of a mystery."""
    return run / "mystery.sealed"


def hides(run: Path, fault: str) -> bool:
    """Whether the run is a mystery that has a fault of this name, hidden still or not."""
    try:
        faults = Secret.open(read_bounded_text(sealed_file(run))).faults
    except (OSError, ValueError, BoundedReadError):
        return False
    return any(text.split(",")[0] == fault for text in faults)


def sealed_lines_file(run: Path, rank: int) -> Path:
    """Where a rank of a mystery writes what was injected, sealed."""
    return run / "faults" / f"rank{rank}.sealed"
