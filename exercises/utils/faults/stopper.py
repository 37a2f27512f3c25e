"""The side process of `pause`: stops another process for some time. Standard library only, so that it starts at once.

Each line on standard input is `DELAY_NS STOP_NS`; after each stop it writes `BEGIN_NS NS UNIX_NS`, the start by the
monotonic clock. An empty line ends it. A next line that comes before a stop has begun lets that stop begin.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time


def stop_for(pid: int, stop_ns: int) -> str:
    """Stop the process; returns the line that says when and how long."""
    begin_ns, unix_ns = time.monotonic_ns(), time.time_ns()
    os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(stop_ns / 1e9)
    finally:
        os.kill(pid, signal.SIGCONT)
    return f"{begin_ns} {time.monotonic_ns() - begin_ns} {unix_ns}\n"


def serve(pid: int) -> None:
    """Do as the lines on standard input say, until an empty one."""
    line = _next_line()
    while line:
        delay_ns, stop_ns = map(int, line.split())
        following = _next_line() if select.select([0], [], [], delay_ns / 1e9)[0] else None
        if following == "":
            return  # the training has ended
        os.write(1, stop_for(pid, stop_ns).encode())
        line = _next_line() if following is None else following


def _next_line() -> str:
    """The next line of the input, byte by byte: a buffer would hide from `select` what it holds."""
    line = bytearray()
    while (byte := os.read(0, 1)) not in (b"\n", b""):
        line += byte
    return line.decode()


if __name__ == "__main__":
    serve(int(sys.argv[1]))
