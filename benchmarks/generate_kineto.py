"""Enlarges a Kineto trace by repeating its records later and later, in the very layout the tool wrote.

    python benchmarks/generate_kineto.py SOURCE TARGET --megabytes 100

Times move on by the trace's length per copy; correlations, external ids and ProfilerStep numbers stay distinct.
Knows nothing of the reader that is measured with it.
"""

from __future__ import annotations

import argparse
import gzip
import re
from collections.abc import Iterator
from pathlib import Path

_EVENTS = re.compile(rb'"traceEvents":\s*\[')
_TIME = re.compile(rb'"ts": (\d+)(\.\d+)?')
_DURATION = re.compile(rb'"dur": (\d+)')
_NUMBER = re.compile(rb'"(correlation|External id|external id|id|Ev Idx)": (\d+)')
_STEP = re.compile(rb"ProfilerStep#(\d+)")


def parts(source: Path) -> tuple[bytes, bytes, bytes]:
    """Header, records and footer of a trace in torch's own layout."""
    text = source.read_bytes()
    text = gzip.decompress(text) if source.name.endswith(".gz") else text
    found = _EVENTS.search(text)
    if found is None:
        raise SystemExit(f"{source} has no traceEvents")
    end = text.rindex(b"\n  }", 0, text.rindex(b"]")) + 4
    return text[: found.end()], text[found.end() : end], text[end:]


def copies(records: bytes) -> Iterator[bytes]:
    """The records again and again, each time later and with numbers of its own."""
    starts = [int(time) for time, _ in _TIME.findall(records)]
    length = max(starts) - min(starts) + max(map(int, _DURATION.findall(records)), default=0) + 1000
    highest = max((int(number) for _, number in _NUMBER.findall(records)), default=0) + 1
    steps = len(set(_STEP.findall(records)))
    yield records
    number = 0
    while True:
        number += 1
        yield _moved(records, number * length, number * highest, number * steps)


def _moved(records: bytes, later: int, higher: int, steps: int) -> bytes:
    """The records at later times, with higher numbers and later steps."""
    text = _TIME.sub(lambda m: b'"ts": %d%s' % (int(m[1]) + later, m[2] or b""), records)
    text = _NUMBER.sub(lambda m: b'"%s": %d' % (m[1], int(m[2]) + higher), text)
    return _STEP.sub(lambda m: b"ProfilerStep#%d" % (int(m[1]) + steps), text)


def enlarge(source: Path, target: Path, megabytes: float) -> int:
    """Write at least `megabytes` of trace; returns how many copies it took."""
    header, records, footer = parts(source)
    written = made = 0
    with target.open("wb") as out:
        written += out.write(header)
        for copy in copies(records):
            written += out.write(copy)
            made += 1
            if written >= megabytes * 1e6:
                break
            written += out.write(b",")
        out.write(footer)
    return made


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--megabytes", type=float, default=100)
    given = parser.parse_args()
    made = enlarge(given.source, given.target, given.megabytes)
    print(f"{given.target}: {given.target.stat().st_size / 1e6:.0f} MB, {made} copies")


if __name__ == "__main__":
    main()
