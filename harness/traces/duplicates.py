"""Which files hold the same recording: unpacked beside its packed file, copied, or linked. By content, not by name."""

from __future__ import annotations

import mmap
import zlib
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from harness.common.system.bounded_read import GZIP_MAGIC, BoundedReadError, open_regular
from harness.traces.find import TRACE_NAME

_MOST_BYTES = 1 << 32  # as a packed file counts


def duplicates(files: Iterable[Path]) -> dict[Path, Path]:
    """The files that hold what another one holds, each with that one: of several it is the file itself and not a link
    to it, with a name as traces have, and the shortest path."""
    by_size: dict[int, list[tuple[Path, int | None]]] = defaultdict(list)
    for file in files:
        with suppress(OSError, BoundedReadError):
            size, checksum = _size_and_checksum(file)
            by_size[size].append((file, checksum))
    alike: dict[tuple[int, int], list[Path]] = defaultdict(list)
    for size, same_size in by_size.items():
        for file, checksum in same_size if size and len(same_size) > 1 else ():
            with suppress(OSError, BoundedReadError):
                alike[size, _checksum(file) if checksum is None else checksum].append(file)
    ordered = [sorted(group, key=_less_original) for group in alike.values()]
    return {file: first for first, *others in ordered for file in others}


def _size_and_checksum(file: Path) -> tuple[int, int | None]:
    """Of the content; of a packed file they are its last eight bytes (RFC 1952)."""
    with open_regular(file) as stream:
        if stream.read(len(GZIP_MAGIC)) != GZIP_MAGIC:
            return file.stat().st_size % _MOST_BYTES, None
        stream.seek(-8, 2)
        checksum, size = stream.read(4), stream.read(4)
    return int.from_bytes(size, "little"), int.from_bytes(checksum, "little")


def _checksum(file: Path) -> int:
    with open_regular(file) as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return zlib.crc32(content)


def _less_original(file: Path) -> tuple[object, ...]:
    return file.is_symlink(), not TRACE_NAME.search(file.name), len(file.parts), len(file.name), str(file)
