#!/usr/bin/env python3
"""Fuzz for a night: command lines, site files and traces, as many as fit into the time, from all cores.

The inputs are those of tests/fuzz, each from one seed. Printed: how many ended how, the rate, memory, the slowest; each
new failure is made smaller and saved with what it needs. docs/development/fuzzing.md says what is a failure.
"""

from __future__ import annotations

import argparse
import faulthandler
import multiprocessing
import multiprocessing.connection
import os
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.fuzz.box import Box
from tests.fuzz.fence import HANG_S, WAIT_S, Case, Ended, fenced, run_case
from tests.fuzz.inputs import KINDS, numbers

MOST_BYTES = 4 << 30  # of a worker's address space
SHARES = {"commands": 90, "sites": 2, "kineto": 2, "nsys": 2, "rocpd": 2}  # of all kinds
STUCK_S = 2 * WAIT_S  # a loop in C is not interrupted by the alarm; then the worker ends
REPORT_S = 30.0
SCRIPTS = 10  # bash really parses the script of every tenth command line


@dataclass
class Told:
    """What the workers found so far."""

    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    inputs: Counter[str] = field(default_factory=Counter)
    slowest: tuple[float, str] = (0.0, "")
    peak_bytes: int = 0

    def add(self, other: Told) -> None:
        """Count another worker's findings too."""
        self.outcomes += other.outcomes
        self.failures += other.failures
        self.inputs += other.inputs
        self.slowest = max(self.slowest, other.slowest)
        self.peak_bytes = max(self.peak_bytes, other.peak_bytes)


@dataclass(frozen=True)
class Failure:
    """One defect: the first input that showed it, made smaller."""

    token: str
    where: str
    case: Case
    ended: Ended


def main() -> int:
    """Fuzz as asked; 1 where a failure was found."""
    asked = _asked()
    if asked.replay:
        return _replay(asked.replay, asked.out)
    began = time.monotonic()
    until = began + 60 * asked.minutes if asked.minutes else float("inf")
    told, known = Told(), set[str]()
    for found in _found(asked, until):
        if isinstance(found, Failure):
            if found.where not in known:
                known.add(found.where)
                _save(found, asked.out)
            continue
        told.add(found)
        _print(told, time.monotonic() - began, last=False)
    _print(told, time.monotonic() - began, last=True)
    return 1 if told.failures else 0


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, help="how long")
    parser.add_argument("--count", type=int, help="how many inputs, instead of --minutes")
    parser.add_argument("--only", choices=list(KINDS), action="append", help="this kind; several: repeat it")
    parser.add_argument("--seed", type=int, default=0, help="of the first input; the next have the next")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--replay", metavar="KIND:SEED", help="one input, with all that it printed")
    parser.add_argument("--out", type=Path, default=Path("fuzz-failures"), help="folder for failing inputs")
    asked = parser.parse_args()
    if not (asked.minutes or asked.count or asked.replay):
        parser.error("say how long (--minutes) or how many (--count)")
    return asked


def _found(asked: argparse.Namespace, until: float) -> Iterator[Told | Failure]:
    """What the workers send, until all of them have ended, which Ctrl-C asks for. One that dies is a failure, and
    another goes on."""
    methods = multiprocessing.get_context("fork")
    stop = methods.Event()
    signal.signal(signal.SIGINT, lambda *_: stop.set())
    last = asked.seed + asked.count if asked.count else sys.maxsize
    live: dict[Connection, tuple[Any, Any, int]] = {}

    def start(first: int) -> None:
        ours, theirs = methods.Pipe(duplex=False)
        at = methods.Value("q", first)
        todo = (first, last, asked.processes, until, asked.only or list(KINDS))
        worker = methods.Process(target=_work, args=(todo, at, stop, theirs))
        worker.start()
        theirs.close()
        live[ours] = (worker, at, first)

    for number in range(asked.processes):
        start(asked.seed + number)
    while live:
        multiprocessing.connection.wait(list(live))
        for ours in filter(Connection.poll, list(live)):
            try:
                yield ours.recv()
            except EOFError:
                worker, at, _ = live.pop(ours)
                worker.join()
                if worker.exitcode:
                    token = f"{_kind(at.value, asked.only or list(KINDS))}:{at.value}"
                    where = f"the process died ({worker.exitcode})"
                    yield Failure(token, where, Case([]), Ended([], "died", fault=where, where=where))
                    yield Told(failures=Counter({where: 1}))
                    start(at.value + asked.processes)


def _kind(seed: int, kinds: list[str]) -> str:
    """The kind of the input of this seed: the shares repeat."""
    turn = [kind for kind in kinds for _ in range(SHARES[kind])]
    return turn[seed % len(turn)]


def _work(todo: tuple[int, int, int, float, list[str]], at: Any, stop: Any, pipe: Connection) -> None:
    first, last, stride, until, kinds = todo
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    told, said, armed, seen = Told(), time.monotonic(), 0.0, set[str]()
    with TemporaryDirectory(prefix="fuzz-") as folder:
        from tests.fuzz.sandbox import furnished

        box = furnished(Path(folder) / "box")
        with fenced(box):
            for seed in range(first, last, stride):
                now = time.monotonic()
                if now > until or stop.is_set():
                    break
                if now > said + REPORT_S / 2 or seed == first:
                    pipe.send(told)
                    told, said = Told(), now
                if now > armed + HANG_S:  # each time it starts a thread
                    armed = now
                    faulthandler.dump_traceback_later(STUCK_S, exit=True)
                at.value = seed
                kind = _kind(seed, kinds)
                failed = _one(box, kind, seed, told)
                if failed is not None and failed.where not in seen:
                    seen.add(failed.where)
                    faulthandler.dump_traceback_later(20 * STUCK_S, exit=True)
                    pipe.send(_smaller(box, kind, seed, failed))
            faulthandler.cancel_dump_traceback_later()
    pipe.send(told)
    pipe.close()


def _one(box: Box, kind: str, seed: int, told: Told) -> Ended | None:
    """Run the input of this seed and count how it ended; returns what failed of it."""
    case = KINDS[kind](*numbers(kind, seed))
    told.inputs[kind] += 1
    failed = None
    for each in run_case(box, case, parses=kind != "commands" or seed % SCRIPTS == 0):
        told.outcomes[kind, each.outcome] += 1
        told.slowest = max(told.slowest, (each.seconds, f"{kind}:{seed}"))
        if each.fault:
            told.failures[each.where] += 1
            failed = failed or each
    told.peak_bytes = max(told.peak_bytes, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10)
    return failed


def _smaller(box: Box, kind: str, seed: int, failed: Ended) -> Failure:
    """The same failure from fewer parts, and for a command line from fewer words."""
    head, parts = numbers(kind, seed)
    fails = failed.where

    def still(case: Case) -> Ended | None:
        return next((each for each in run_case(box, case) if each.where == fails), None)

    best = KINDS[kind](head, parts)
    for number in reversed(range(len(parts))):
        fewer = [*parts[:number], *parts[number + 1 :]]
        if (found := still(KINDS[kind](head, fewer))) is not None:
            parts, failed, best = fewer, found, KINDS[kind](head, fewer)
    words = failed.argv
    for number in reversed(range(len(words) if not best.files else 0)):
        case = best._replace(lines=[[*words[:number], *words[number + 1 :]]])
        if (found := still(case)) is not None:
            words, failed, best = case.lines[0], found, case
    return Failure(f"{kind}:{seed}", fails, best._replace(lines=[words]), failed)


def _save(found: Failure, out: Path) -> None:
    """Write the input and what it did into a folder of its own, and print where."""
    folder = out / found.token.replace(":", "-")
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in found.case.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    words = "\n".join(map(ascii, found.ended.argv))
    text = f"{found.where}\n\nwords:\n{words}\n\n{found.ended.fault}\n\nit printed:\n{found.ended.err}{found.ended.out}"
    (folder / "failure.txt").write_bytes(text.encode("utf-8", "backslashreplace"))
    print(f"NEW {found.where}\n    --replay {found.token}; smaller: {folder}", flush=True)


def _replay(token: str, out: Path) -> int:
    kind, _, seed = token.partition(":")
    with TemporaryDirectory(prefix="fuzz-") as folder:
        from tests.fuzz.sandbox import furnished

        box = furnished(Path(folder) / "box")
        with fenced(box):
            case = KINDS[kind](*numbers(kind, int(seed)))
            all_of = run_case(box, case)
            failed = next((each for each in all_of if each.fault), None)
            smaller = None if failed is None else _smaller(box, kind, int(seed), failed)
    for each in all_of:
        print(f"{each.argv!r}\n  {each.outcome}, {each.seconds:.2f} s\n{each.err}{each.out[-4000:]}{each.fault}")
    if smaller is not None:
        _save(smaller, out)
    return 0 if smaller is None else 1


_printed = [0.0]


def _print(told: Told, seconds: float, last: bool) -> None:
    if not last and seconds < _printed[0] + REPORT_S:
        return
    _printed[0] = seconds
    total = sum(told.inputs.values())
    rate, peak = total / max(seconds, 1e-9), told.peak_bytes / 2**20
    print(f"{total} inputs in {seconds:.0f} s, {rate:.0f}/s; memory at most {peak:.0f} MiB; ", end="")
    print(
        f"slowest {told.slowest[0]:.1f} s of CPU ({told.slowest[1]}); failures {sum(told.failures.values())}",
        flush=True,
    )
    if not last:
        return
    for kind in told.inputs:
        ended = ", ".join(f"{n} {how}" for (of, how), n in sorted(told.outcomes.items()) if of == kind)
        print(f"  {kind:<9} {told.inputs[kind]:>8} inputs; command lines: {ended}")
    for where, count in told.failures.most_common():
        print(f"  FAILED {count} times: {where}")


if __name__ == "__main__":
    sys.exit(main())
