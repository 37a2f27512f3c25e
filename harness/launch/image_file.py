"""Whether a file or folder is an image that Apptainer can start, as far as its first bytes tell. Starts nothing.

A SIF's header: https://github.com/apptainer/sif, pkg/sif/sif.go.
"""

from __future__ import annotations

import platform
import struct
from pathlib import Path

from harness.format.format import amount

_SIF = b"SIF_MAGIC\0"
_SIF_AT = 32
_ARCHITECTURE_AT = 45
_DATA_AT = 112  # where the data begin, and their size, as two int64
_HEADER = 128
_SQUASHFS = b"hsqs"
_EXT, _EXT_AT = b"\x53\xef", 1080
# Of a header's number, what the kernel calls such a machine; those of 64 bits, which start no other's programs.
_MACHINES = {"02": "x86_64", "04": "aarch64", "06": "ppc64le"}
COPY = "copy it again, or build it (containers/README.md)"


def why_no_image(path: Path, starts_here: bool) -> str:
    """What is wrong with an image that exists, as the rest of a sentence; empty if nothing is.

    starts_here: on this machine, which may have another architecture than a compute node.
    """
    if path.is_dir():
        is_root = (path / "usr").is_dir() or (path / "bin").is_dir()
        return "" if is_root else f"is a folder without bin and usr, so it is no sandbox of Apptainer: {COPY}"
    try:
        with path.open("rb") as file:
            head = file.read(_EXT_AT + len(_EXT))
    except OSError as error:
        return f"cannot be read ({error.strerror}): its owner types chmod a+r {path}"
    if not head:
        return f"is an empty file: {COPY}"
    if head[_SIF_AT : _SIF_AT + len(_SIF)] == _SIF and len(head) >= _HEADER:
        return _wrong_sif(head, path.stat().st_size, starts_here)
    if head.startswith(_SQUASHFS) or head[_EXT_AT:] == _EXT:
        return ""
    return f"is no image of Apptainer or Singularity: {COPY}"


def _wrong_sif(head: bytes, size: int, starts_here: bool) -> str:
    start, length = struct.unpack_from("<qq", head, _DATA_AT)
    if size < start + length:
        return f"is incomplete ({amount(size)} of {amount(start + length)}): {COPY}"
    built_for = _MACHINES.get(head[_ARCHITECTURE_AT : _ARCHITECTURE_AT + 2].decode("ascii", "replace"))
    here = platform.machine()
    if starts_here and built_for not in (None, here):
        return f"was built for {built_for}, and this machine is {here}: build it on such a machine"
    return ""
