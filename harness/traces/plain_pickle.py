"""Reads a pickle of plain data from anywhere, without running what is in it. Must not know what the data are.

A pickle can build anything; here, whatever would need a class or a function is refused. Plain data can do harm, too: a
crafted file fills the memory, or crashes Python by keys nested deeply. So the file is read, and what is wanted of it
computed, in a process of its own with limited memory and time.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import pickle
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from harness.common.display.printable import printable, printable_name
from harness.common.errors import RequestError
from harness.common.system.bounded_read import BoundedReadError, open_regular
from harness.traces.errors import TraceError
from harness.traces.open import beginning, checked_beginning
from harness.traces.pool import process_pool

SUFFIXES = (".pickle", ".pkl")
MOST_FILE_BYTES = 1 << 30
_NEWEST_PROTOCOL = 5
_ZIP_MAGIC = b"PK\x03\x04"
_ALLOWED = "of a pickle only lists, dicts, tuples, sets, numbers, text and bytes are read"
# Of the process. A snapshot of 450 000 events took 6 times the size of its file, and 0.04 s for each MB.
_BASE_BYTES, _BYTES_PER_BYTE = 1 << 30, 40
_BASE_S, _S_PER_MIB = 20, 2

Result = TypeVar("Result")


class UnfitError(ValueError):
    """The content is not what it should be; the sentence does not name the file."""


def is_pickle(path: Path) -> bool:
    """Whether a file is one by its name or its first bytes; no trace begins with them."""
    try:
        start = beginning(path) if path.is_file() else b""
    except TraceError:
        return False
    begins = len(start) > 1 and start[:1] == pickle.PROTO and start[1] <= _NEWEST_PROTOCOL
    return path.is_file() and (path.name.endswith(SUFFIXES) or begins)


def map_pickle(path: Path, function: Callable[[object, int], Result]) -> Result:
    """`function` of the plain data in a pickle and the size of its file. Both are done in a worker process, so the
    function must be importable there; it raises UnfitError if the data are not what it expects.

    Raises RequestError: the file cannot be read, is no pickle of plain data, or is not what the function expects.
    """
    from concurrent.futures.process import BrokenProcessPool

    try:
        with process_pool(1) as pool:
            return pool.submit(_apply, path, function).result()
    except BrokenProcessPool:
        why = "was not read: what it holds took too much time or memory, or crashed the process that read it"
    except MemoryError:
        why = "was not read: what it holds takes more memory than plain data of its size do"
    except TraceError as error:
        why = error.why
    except (UnfitError, BoundedReadError) as error:
        why = str(error)
    raise RequestError(f"{printable(str(path))}: {why}")


def _apply(path: Path, function: Callable[[object, int], Result]) -> Result:
    faulthandler.disable()  # of a crash the parent gives the sentence
    gc.disable()  # it would walk through all the plain data again and again, and the process ends soon
    if checked_beginning(path, "pickle").startswith(_ZIP_MAGIC):
        raise UnfitError("is a zip archive, as torch.save writes weights, not a memory snapshot")
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > MOST_FILE_BYTES:
            raise UnfitError(f"is longer than {MOST_FILE_BYTES >> 30} GiB, the limit for a file of this kind")
        _limit_this_process(size)
        try:
            data = _PlainUnpickler(file).load()
        except (UnfitError, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001 - a damaged pickle raises any error, as Python's documentation says
            is_cut = isinstance(error, EOFError) or "truncated" in str(error)
            how = "is cut off: it ends before its content does" if is_cut else "is not a pickle, or is damaged"
            raise UnfitError(how) from None
    return function(data, size)


class _PlainUnpickler(pickle.Unpickler):
    """Builds no object of any class and calls nothing: whatever could goes through these two."""

    def find_class(self, module: str, name: str) -> NoReturn:
        """Refuses."""
        raise UnfitError(f"wants to build {printable_name(f'{module}.{name}')[:200]}, which is refused: {_ALLOWED}")

    def persistent_load(self, pid: Any) -> NoReturn:
        """Refuses."""
        raise UnfitError(f"wants to load an object from elsewhere, which is refused: {_ALLOWED}")


def _limit_this_process(file_bytes: int) -> None:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    most_bytes = pages * resource.getpagesize() + _BASE_BYTES + _BYTES_PER_BYTE * file_bytes
    seconds = _BASE_S + _S_PER_MIB * (file_bytes >> 20)
    for kind, limit in ((resource.RLIMIT_AS, most_bytes), (resource.RLIMIT_CPU, seconds), (resource.RLIMIT_CORE, 0)):
        hard = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
