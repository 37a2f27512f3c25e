"""What the kernel and the C library say of memory, beside what was allocated here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the observer is loaded beside PyTorch")

from harness.observe.memory_use import OwnMemory, RareLook
from tests.waiting import limit_s

ROOT = Path(__file__).resolve().parents[2]
PIECE, COUNT = 1 << 16, 400
# A forked process shares the pages of 64 MB, until the other one writes to them.
SHARES = """
import multiprocessing, sys
from harness.observe.memory_use import workers_memory
held = bytearray(b"x" * (64 << 20))
context = multiprocessing.get_context("fork")
ours, theirs = context.Pipe()
def work():
    theirs.recv(); kept = b"y" * (32 << 20); theirs.send(1); theirs.recv()
child = context.Process(target=work)
child.start()
at_first = workers_memory()
held[:] = b"z" * len(held)
written = workers_memory()
ours.send(1); ours.recv()
allocated = workers_memory()
print(*[(each - at_first[number]) >> 20 for found in (written, allocated) for number, each in enumerate(found)])
child.terminate()
"""


def test_what_is_freed_between_pieces_that_are_kept_is_free() -> None:
    pieces = [bytearray(PIECE) for _ in range(COUNT)]
    own = OwnMemory()
    if (before := own.free_bytes()) is None:
        pytest.skip("this C library does not say it: mallinfo2 is of glibc 2.33")
    del pieces[::2]
    after = OwnMemory().free_bytes()
    assert after is not None and after - before > 0.9 * PIECE * COUNT / 2 - PIECE
    assert own.free_bytes() is None, "it was looked at just now"


def test_workers_grow_by_what_they_allocate() -> None:
    argv = [sys.executable, "-c", SHARES]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True, timeout=limit_s())
    share, mapped, share_later, mapped_later = map(int, done.stdout.split())
    assert share > 28 and abs(mapped) < 4, "pages that the rank writes are shared no more"
    assert share_later - share > 28 and mapped_later - mapped > 28


@pytest.mark.parametrize(("takes_s", "looks"), [(0.01, 16 + 8), (0.05, 2)])
def test_a_look_that_takes_long_is_rare(monkeypatch: pytest.MonkeyPatch, takes_s: float, looks: int) -> None:
    """Of a hundredth of the time: the first 16 at once, if they are quick, then one in a second."""
    clock = {"now": 100.0, "used": 0.0}
    monkeypatch.setattr("time.monotonic", lambda: clock["now"])
    monkeypatch.setattr("time.thread_time", lambda: clock["used"])

    def look() -> int:
        clock["used"] += takes_s
        return 1

    rare, seen = RareLook(1 / 100), 0
    for _ in range(100):
        clock["now"] += 0.1
        seen += rare.now(look) is not None
    assert seen == looks
