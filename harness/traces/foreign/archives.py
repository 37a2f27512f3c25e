"""Archives and packed files that traces come in: known by their content, not read, and said with what unpacks them."""

from __future__ import annotations

import re
import shlex
import zlib
from pathlib import Path

from harness.common.display.printable import printable
from harness.common.system.bounded_read import BoundedReadError, open_regular

NAMES = re.compile(r"\.(?:tar(?:\.\w{1,4})?|tgz|tbz2?|txz|tzst|zip|7z|rar|xz|bz2|zst|lz4|Z)$")
_PROBE_BYTES = 1 << 20
_TAR_HEADER_BYTES = 512
_TAR, _TWICE = "tar xf {}", "gunzip -k {}"
_ARCHIVES = (_TAR, "unzip {}", "7z x {}", "unrar x {}")
_GZIP = b"\x1f\x8b"
_COMMANDS = {
    **{b"PK\x03\x04": "unzip {}", b"PK\x05\x06": "unzip {}"},
    **{b"7z\xbc\xaf\x27\x1c": "7z x {}", b"Rar!\x1a\x07": "unrar x {}"},
    **{b"\xfd7zXZ\0": "xz -dk {}", b"BZh": "bzip2 -dk {}", b"\x28\xb5\x2f\xfd": "zstd -d {}"},
    **{b"\x04\x22\x4d\x18": "lz4 -dk {}", b"\x1f\x9d": "uncompress -k {}"},
}
_CHECKSUM = slice(148, 156)  # of a tar's header
_CHECKSUM_BLANK = 8 * ord(" ")  # it counts as blanks in itself


def archive_sentence(path: Path) -> str | None:
    """What a file is, and what to type, if it is an archive, or packed otherwise than once by gzip; None also for one
    that cannot be read."""
    try:
        with open_regular(path) as stream:
            command = _command(path.name, stream.read(_PROBE_BYTES))
    except (OSError, BoundedReadError):
        return None
    if command is None:
        return None
    packed = "is packed twice" if command == _TWICE else "is packed by another program than gzip"
    what = "is an archive" if command in _ARCHIVES else packed
    typed = command.format(printable(shlex.quote(str(path))))
    return f"{what}: unpack it (`{typed}`), and give what it held"


def _command(name: str, start: bytes) -> str | None:
    """What unpacks a file that begins so; None: it is a plain one, or packed once by gzip."""
    inner = _unpacked(start)
    if _is_tar(start) or _is_tar(inner):
        return _TAR
    if start.startswith(_GZIP):
        return _TWICE if inner.startswith((_GZIP, *_COMMANDS)) else None
    found = next((command for magic, command in _COMMANDS.items() if start.startswith(magic)), None)
    is_packed_tar = found not in (None, *_ARCHIVES) and re.search(r"\.(?:tar\.\w+|tzst)$", name)
    return _TAR if is_packed_tar else found


def _unpacked(start: bytes) -> bytes:
    """As much as a tar's header has; empty if the beginning is not packed by gzip, or damaged."""
    try:
        return zlib.decompressobj(wbits=31).decompress(start, _TAR_HEADER_BYTES) if start.startswith(_GZIP) else b""
    except zlib.error:
        return b""


def _is_tar(start: bytes) -> bool:
    header = start[:_TAR_HEADER_BYTES]
    try:
        checksum = int(header[_CHECKSUM].strip(b" \0"), 8)
    except ValueError:
        return False
    return checksum == sum(header) - sum(header[_CHECKSUM]) + _CHECKSUM_BLANK
