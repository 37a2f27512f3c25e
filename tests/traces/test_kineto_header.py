"""Whatever bytes stand before and after a Kineto file's events: they say less, and stop nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.traces import open_trace
from harness.traces.kineto.fill import About, read_about
from tests.synthetic import kineto

HEADER = b'{"schemaVersion": 1, "host_name": "node7", "distributedInfo": {"backend": "nccl", "rank": 3}'


def test_no_flipped_byte_of_a_header_is_an_error() -> None:
    for place in range(len(HEADER)):
        for bit in range(8):
            flipped = bytearray(HEADER)
            flipped[place] ^= 1 << bit
            assert isinstance(read_about(bytes(flipped), b""), About)


@pytest.mark.parametrize("inside", [b'"a": "\xff"', b'"a": ' + b"[" * 100_000, b'"a": "\\ud800"', b"\0"])
def test_a_header_that_cannot_be_read_is_doubted(inside: bytes) -> None:
    assert not read_about(b"{" + inside, b"").whole


def test_a_trace_with_a_broken_header_still_has_its_events(tmp_path: Path) -> None:
    path = kineto.kineto(tmp_path / "rank3.json", kineto.gpu_step(), header={"host_name": "node7"}, footer={})
    text = path.read_bytes()
    path.write_bytes(text.replace(b"node7", b"node\xff"))
    trace = open_trace(path)
    assert trace.identity.rank == 3
    assert len(trace.events) > 0
