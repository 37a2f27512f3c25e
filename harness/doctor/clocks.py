"""Whether the nodes of a job reach each other as a training's ranks do, and how far apart their clocks are.

The first node answers with its time, as an NTP server does; of several questions the one with the quickest answer
counts.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from contextlib import suppress

from harness.common.programs import Answer
from harness.doctor.result import Result, ok, problem, unseen, warning
from harness.doctor.surroundings import Surroundings
from harness.format.format import duration

MEETING_S = 25.0  # the nodes' Pythons start seconds apart on a cold file system
QUESTIONS = 8
APART_NS = (
    100_000_000  # the analysis aligns clocks by the ends of collectives; logs and monitors are not aligned
)
_TIME = struct.Struct("!q")


def meeting(around: Surroundings) -> Iterator[Result]:
    """The first node waits for the others at the training's own address; each other one compares clocks with it."""
    environ = around.environ
    if around.nodes < 2 or "MASTER_ADDR" not in environ:
        return
    host, port = environ["MASTER_ADDR"], int(environ["MASTER_PORT"])
    if environ.get("SLURM_NODEID") == "0":
        yield reached_verdict(f"{host}:{port}", serve(port, around.nodes - 1, MEETING_S), around.nodes - 1)
    else:
        yield from _compared(host, port)


def _compared(host: str, port: int) -> Iterator[Result]:
    try:
        offset_ns, round_trip_ns = offset_from(host, port, MEETING_S)
    except OSError as error:
        why = f"cannot be reached from this node ({error.strerror or error}): no training on several nodes can start"
        remedy = f"getent hosts {host} && ip -brief address   # then network: in the site file"
        yield problem(f"first node at {host}:{port}", why, remedy)
    else:
        yield ok(f"first node at {host}:{port}", "is reached")
        yield offset_verdict(offset_ns, round_trip_ns)


def reached_verdict(where: str, came: int, expected: int) -> Result:
    """Whether all other nodes reached the first one."""
    what = where
    if came < expected:
        remedy = "ip -brief address   # on the nodes; then network.interface and network.host_suffix in the site file"
        return problem(what, f"{came} of {expected} other nodes reached it", remedy)
    return ok(what, "is reached by all other nodes")


def offset_verdict(offset_ns: int, round_trip_ns: int) -> Result:
    """Whether this node's clock agrees with the first one's. Both in ns; the offset is known to half a round trip."""
    side = "behind" if offset_ns < 0 else "ahead of"
    found = f"{duration(abs(offset_ns))} {side} the first node's, ± {duration(round_trip_ns / 2)}"
    if abs(offset_ns) - round_trip_ns // 2 > APART_NS:
        remedy = "chronyc tracking   # on the nodes; administrators"
        return warning("clock", f"{found}: lines of two nodes' logs and monitors do not match", remedy)
    return ok("clock", found)


def serve(port: int, expected: int, limit_s: float) -> int:
    """Tell the time to this many others; returns how many came within the limit."""
    came, end_s = 0, time.monotonic() + limit_s
    with socket.create_server(("", port)) as server:
        while came < expected and (left_s := end_s - time.monotonic()) > 0:
            server.settimeout(left_s)
            with suppress(OSError):  # one that goes away is not counted
                link, _ = server.accept()
                with link:
                    link.settimeout(5)
                    for _ in range(QUESTIONS):
                        if link.recv(1) == b"":
                            raise ConnectionResetError
                        link.sendall(_TIME.pack(time.time_ns()))
                came += 1
    return came


def offset_from(host: str, port: int, limit_s: float) -> tuple[int, int]:
    """Our clock minus the other's, and the round trip of that question, in ns.

    Raises OSError: nobody answers there within the limit.
    """
    with _connected(host, port, limit_s) as link:
        asked = [_question(link) for _ in range(QUESTIONS)]
    return min(asked, key=lambda pair: pair[1])


def _question(link: socket.socket) -> tuple[int, int]:
    began_ns = time.time_ns()
    link.sendall(b"?")
    said = link.recv(_TIME.size, socket.MSG_WAITALL)
    ended_ns = time.time_ns()
    if len(said) < _TIME.size:
        raise ConnectionResetError(0, "the first node went away")
    return (began_ns + ended_ns) // 2 - int(_TIME.unpack(said)[0]), ended_ns - began_ns


def _connected(host: str, port: int, limit_s: float) -> socket.socket:
    end_s = time.monotonic() + limit_s
    while True:
        try:
            return socket.create_connection((host, port), timeout=5)
        except OSError:
            if time.monotonic() > end_s:
                raise
            time.sleep(0.1)


def synchronised(around: Surroundings) -> Iterator[Result]:
    """Whether this node's clock is synchronised."""
    for argv in (("chronyc", "-n", "tracking"), ("timedatectl", "show", "--property=NTPSynchronized")):
        if around.which(argv[0]) is not None:
            found = synchronised_verdict(argv[0], around.ask(*argv, limit_s=5))
            if found is not None:
                yield found
                return
    yield unseen("time service", "neither chronyc nor timedatectl answers here")


def synchronised_verdict(program: str, answer: Answer) -> Result | None:
    """Whether the clock is synchronised; None if the program cannot say it, as in a container."""
    if answer.code:
        return None
    said = [line.strip() for line in answer.out.splitlines() if line.startswith(("Leap status", "NTPSync"))]
    if not said:
        return None
    if said[0] == "NTPSynchronized=no" or "Not synchronised" in said[0]:
        remedy = "sudo timedatectl set-ntp true   # administrators"
        return warning(program, "the clock is not synchronised with any other", remedy)
    return ok(program, "the clock is synchronised")
