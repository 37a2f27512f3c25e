"""Archives and packed files that traces come in: known by their content, not read, and said with what unpacks them."""

from __future__ import annotations

import re
import shlex
import zlib
from pathlib import Path
from typing import BinaryIO, NamedTuple

from harness.common.bounded_read import BoundedReadError, open_regular
from harness.common.printable import printable

NAMES = re.compile(r"\.(?:tar(?:\.\w{1,4})?|tgz|tbz2?|txz|tzst|zip|7z|rar|xz|bz2|zst|lz4|Z)$")
_PROBE_BYTES = 1 << 20
_TAR_HEADER_BYTES = 512
_MOST_BYTES = 64 << 20  # unpacked, while the files of an archive are counted
_TAR, _ZIP, _7Z, _RAR, _TWICE = "tar xf {}", "unzip {}", "7z x {}", "unrar x {}", "gunzip -k {}"
_SEVERAL = (_TAR, _ZIP, _7Z, _RAR)
_GZIP, _BZIP, _XZ = b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0"
_COMMANDS = {
    **{b"PK\x03\x04": _ZIP, b"PK\x05\x06": _ZIP, b"7z\xbc\xaf\x27\x1c": _7Z, b"Rar!\x1a\x07": _RAR},
    **{_XZ: "xz -dk {}", _BZIP: "bzip2 -dk {}", b"\x28\xb5\x2f\xfd": "zstd -d {}"},
    **{b"\x04\x22\x4d\x18": "lz4 -dk {}", b"\x1f\x9d": "uncompress -k {}"},
}
_CHECKSUM = slice(148, 156)  # of a tar's header
_CHECKSUM_BLANK = 8 * ord(" ")  # it counts as blanks in itself


class Archive(NamedTuple):
    """An archive, or one packed file. files: the names inside; None: not known. whole: these are all."""

    path: Path
    command: str
    files: list[str] | None
    whole: bool

    @property
    def sentence(self) -> str:
        """What it is, and what to type."""
        if self.command == _TWICE:
            what = "is packed twice"
        elif self.command not in _SEVERAL:
            what = "is packed by another program than gzip"
        else:
            count = len(self.files or [])
            least = "" if self.whole else "at least "
            what = "is an archive" + (f" of {least}{count:,} file{'s' * (count != 1)}" if count else "")
        command = self.command.format(printable(shlex.quote(str(self.path))))
        return f"{what}: unpack it (`{command}`), and give what it held"


def archive_at(path: Path) -> Archive | None:
    """What a file is, if it is an archive, or packed otherwise than once by gzip; None also for one that cannot be
    read."""
    try:
        with open_regular(path) as stream:
            command = _command(path.name, stream.read(_PROBE_BYTES))
            if command is None:
                return None
            stream.seek(0)
            if command in _SEVERAL:
                return Archive(path, command, *_files(stream, command))
    except (OSError, BoundedReadError):
        return None
    return Archive(path, command, [path.stem], whole=True)


def _command(name: str, start: bytes) -> str | None:
    inner = _unpacked(start)
    if _is_tar(start) or _is_tar(inner):
        return _TAR
    if start.startswith(_GZIP):
        return _TWICE if inner.startswith((_GZIP, *_COMMANDS)) else None
    found = next((command for magic, command in _COMMANDS.items() if start.startswith(magic)), None)
    is_packed_tar = found not in (None, *_SEVERAL) and re.search(r"\.(?:tar\.\w+|tzst)$", name)
    return _TAR if is_packed_tar else found


def _unpacked(start: bytes) -> bytes:
    """As much as a tar's header has; empty if the beginning is not packed, or damaged, or this Python lacks its
    packer."""
    try:
        if start.startswith(_GZIP):
            return zlib.decompressobj(wbits=31).decompress(start, _TAR_HEADER_BYTES)
        if start.startswith(_BZIP):
            from bz2 import BZ2Decompressor

            return BZ2Decompressor().decompress(start, _TAR_HEADER_BYTES)
        if start.startswith(_XZ):
            from lzma import LZMADecompressor, LZMAError

            try:
                return LZMADecompressor().decompress(start, _TAR_HEADER_BYTES)
            except LZMAError:
                return b""
    except (OSError, zlib.error, ImportError):
        pass
    return b""


def _is_tar(start: bytes) -> bool:
    header = start[:_TAR_HEADER_BYTES]
    try:
        checksum = int(header[_CHECKSUM].strip(b" \0"), 8)
    except ValueError:
        return False
    return checksum == sum(header) - sum(header[_CHECKSUM]) + _CHECKSUM_BLANK


def _files(stream: BinaryIO, command: str) -> tuple[list[str] | None, bool]:
    """The names of an archive's files, and whether these are all; of what is damaged as many as can be read."""
    if command not in (_TAR, _ZIP):
        return None, False
    import tarfile
    import zipfile

    found: list[str] = []
    try:
        if command == _ZIP:
            with zipfile.ZipFile(stream) as packed:
                return [each.filename for each in packed.infolist() if not each.is_dir()], True
        with tarfile.open(fileobj=stream, mode="r|*") as members:
            for member in members:
                found += [member.name] * member.isfile()
                if member.offset_data + member.size > _MOST_BYTES:
                    return found, False
    except (OSError, EOFError, ValueError, NotImplementedError, zlib.error, tarfile.TarError, zipfile.BadZipFile):
        return found or None, False
    return found, True
