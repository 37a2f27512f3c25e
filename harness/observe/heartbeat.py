"""Leaves in the node's shared memory how far this rank is, twice a second, from a thread of its own.

`<folder>/rank<R>.json`, rewritten: a sign that this process runs Python, and the facts of `Heartbeat.facts`. If the
monitor writes `<folder>/ask`, all threads' stacks and the collectives that have not ended follow, once for each text of
it, in `<folder>/rank<R>.stacks.json`. The training's main thread only sets attributes of `PROGRESS`.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch

from harness.common.run_folder.heartbeats import MEMORY
from harness.common.system.files import write_whole_text
from harness.observe import collectives
from harness.observe.last_words import EXITS, on_failure
from harness.observe.lines import innermost, is_users, looking_at_frames
from harness.observe.memory_use import OwnMemory, device_bytes

BEAT_S = 0.5  # between two writes
LAUNCHES_S = 2.0  # between two looks at PyTorch's record of collectives, which costs milliseconds
LAUNCHES_SHARE = 1 / 400  # of a core, where it takes longer
OWN_S = 3.0  # for which a step that has ended waits for its own time
RECORDED = "384"  # collectives that PyTorch records: a look takes 3 ms, and 16 ms at 2,000, its default
STORED_S = 6.0  # how long a step that has ended is shown: the monitor reads every two seconds
MOST_FRAMES = 60
PATIENCE_S = 5.0  # for a beat, when Python ends


class EndedStep(NamedTuple):
    """A step that has ended. Times in ns."""

    number: int
    unix_ns: int
    step_ns: int
    optimizer_ns: int
    samples: int
    tokens: int


class RankProgress:
    """What the training's main thread is at. calls: how many observed calls have begun. planned: steps in all.
    own_times: of steps, the number and the ns without waiting for other ranks, until the metrics' writer takes them."""

    def __init__(self) -> None:
        self.step = 0
        self.step_unix_ns = 0
        self.phase: str | None = None
        self.calls = 0
        self.planned: int | None = None
        self.loss: float | None = None
        self.bad_loss: dict[str, Any] | None = None  # the first that is not finite
        self.samples = self.tokens = 0  # of all steps so far
        self.ended_ns = 0  # unix time; 0: it trains
        self.error: dict[str, Any] | None = None  # what ends the process: see `last_words.error_of`
        self.done: deque[EndedStep] = deque(maxlen=4096)
        self.own_times: deque[tuple[int, int]] = deque(maxlen=4096)

    def begins(self, step: int) -> None:
        self.step, self.step_unix_ns = step, time.time_ns()

    def enters(self, phase: str | None) -> None:
        """A phase begins; None: it has ended."""
        self.phase = phase
        if phase is not None:
            self.error = None  # a call of sys.exit was caught, and the training went on
        self.calls += phase is not None

    def sees(self, loss: float | None, model: torch.nn.Module | None) -> None:
        """The loss of this step is known. model: with the weights that gave it; None: they are not known any more."""
        if self.bad_loss is None and loss is not None and not math.isfinite(loss):
            parameters = [] if model is None else list(model.parameters())
            finite = all(bool(torch.isfinite(each).all()) for each in parameters) if parameters else None
            self.bad_loss = {"step": self.step, "loss": str(loss), "weights": finite}

    def ends(self, done: EndedStep, loss: float | None) -> None:
        self.done.append(done)
        self.samples += done.samples
        self.tokens += done.tokens
        self.loss = loss
        self.sees(loss, None)
        self.begins(done.number + 1)


PROGRESS = RankProgress()


class Heartbeat:
    """Writes until the process ends. rank: None while there is none yet."""

    def __init__(self, folder: Path, rank: int, world: int, local: int) -> None:
        """Raises OSError: another process writes as this rank, or the folder is not there."""
        self._folder, self._rank = folder, rank
        self._fd = os.open(str(folder / f"rank{rank}.json"), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        self.pid = os.getpid()
        again = os.environ.get("TORCHELASTIC_RESTART_COUNT", "")
        self._known = {"rank": rank, "world": world, "local": local, "pid": self.pid}
        self._known["attempt"] = int(again) if again.isdecimal() else 0
        self._main = threading.main_thread()
        self._question = ""
        self._launches_s = 0.0
        self._memory = OwnMemory()
        self._own_ns: dict[int, int] = {}  # of steps, by their begin: ns without waiting for other ranks
        self._last_own_ns: int | None = None
        self._stop = threading.Event()
        self._writes = threading.Lock()
        os.register_at_fork(after_in_child=self._in_child)
        atexit.register(self._leave)
        self._thread = threading.Thread(target=self._run, name="observer heartbeat", daemon=True)
        self._thread.start()

    def becomes(self, rank: int, world: int, local: int) -> None:
        """This process is another rank than it seemed while it waited for the others."""
        with self._writes, suppress(OSError):  # another process writes as this rank
            if rank != self._rank:
                before = self._folder / f"rank{self._rank}.json"
                os.link(before, self._folder / f"rank{rank}.json")
                before.unlink()
            self._rank = rank
            self._known.update(rank=rank, world=world, local=local)

    def facts(self) -> dict[str, Any]:
        progress = PROGRESS
        return {
            **self._known,
            "tid": self._main.native_id,
            "unix_ns": time.time_ns(),
            "step": progress.step,
            "step_unix_ns": progress.step_unix_ns,
            "phase": progress.phase,
            "calls": progress.calls,
            "collectives": collectives.counted(),
            "samples": progress.samples,
            "tokens": progress.tokens,
            "planned": progress.planned,
            "loss": None if progress.loss is None else f"{progress.loss:.4g}",
            "bad_loss": progress.bad_loss,
            "place": self._place(),
            "memory": device_bytes(),
            "host_memory": self._memory.host_bytes(),
            "ended_ns": 0 if progress.error else progress.ended_ns,
            "error": progress.error,
            "done": self._done(),
        }

    def _done(self) -> list[list[Any]]:
        """The steps that ended lately: number, microseconds, own microseconds.

        A step is shown once its collectives were looked at, and after OWN_S all the same: its own time is then null.
        """
        now_ns = time.time_ns()
        lately = [step for step in _copied(PROGRESS.done) if now_ns - step.unix_ns - step.step_ns <= STORED_S * 1e9]
        self._look_at_launches(lately)
        own_us = {begin: own // 1000 for begin, own in self._own_ns.items()}
        return [
            [step.number, step.step_ns // 1000, own_us.get(step.unix_ns)]
            for step in lately
            if step.unix_ns in own_us or now_ns - step.unix_ns - step.step_ns > OWN_S * 1e9
        ]

    def _look_at_launches(self, lately: list[EndedStep]) -> None:
        begin_s = time.monotonic()
        if begin_s >= self._launches_s:
            before_s = time.thread_time()
            begun = collectives.launches()
            spent_s = time.thread_time() - before_s  # on a busy machine most of the time is other programs'
            self._launches_s = begin_s + max(LAUNCHES_S, spent_s / LAUNCHES_SHARE)
            known = self._own_ns
            self._own_ns = {step.unix_ns: known.get(step.unix_ns) or self._own_of(step, begun) for step in lately}

    def _own_of(self, step: EndedStep, begun: collectives.CollectiveStarts | None) -> int:
        """A step's own time; where it is not known, that of the step before, or all of it."""
        found = step.step_ns if self._known["world"] == 1 else own_ns(step, begun)
        if found is None:
            return min(step.step_ns, self._last_own_ns or step.step_ns)
        PROGRESS.own_times.append((step.number, found))
        self._last_own_ns = found
        return found

    def _place(self) -> list[Any] | None:
        with looking_at_frames() as frames:
            found = innermost(frames.get(self._main.ident or 0))
        return None if found is None else list(found)

    def _run(self) -> None:
        try:
            while True:
                self.beat()
                self._look_for_question()
                if self._stop.wait(BEAT_S):
                    return
        except Exception as error:  # noqa: BLE001 - the edge between the observer and somebody's training
            print(f"observer: no more heartbeats, because {error!r}", file=sys.stderr)

    def beat(self, *, last: bool = False) -> None:
        """Write what is known now. last: of all steps."""
        with self._writes:
            self._launches_s = 0.0 if last else self._launches_s
            text = json.dumps(self.facts()).encode()
            os.pwrite(self._fd, text, 0)
            os.ftruncate(self._fd, len(text))

    def _look_for_question(self) -> None:
        try:
            asked = (self._folder / "ask").read_text(encoding="ascii")
        except OSError:
            return
        if asked != self._question:
            self._question = asked
            with self._writes:
                self._answer(asked)

    def _answer(self, question: str) -> None:
        seen = {"asked": question, "unix_ns": time.time_ns(), "threads": stacks()}
        with looking_at_frames() as frames:
            call = collectives.called(frames.get(self._main.ident or 0))
        answer = {**seen, "call": call, **collectives.open_ones()}
        write_whole_text(self._folder / f"rank{self._rank}.stacks.json", json.dumps(answer))

    def _leave(self) -> None:
        """Python ends, and so does the thread: one that is inside C++ later is ended there, which aborts the process.

        It is there also without a call into PyTorch, when it frees what the training has made: as the last that looked
        at a frame, or when Python collects garbage in it.
        """
        self._stop.set()
        self._thread.join(PATIENCE_S)

    def _in_child(self) -> None:
        self._stop.set()
        atexit.unregister(self._leave)
        os.close(self._fd)


def own_ns(step: EndedStep, begun: collectives.CollectiveStarts | None) -> int | None:
    """A step's time without waiting for other ranks, as far as the starts of its collectives tell; None: not known.

    The wait lies between the start of the last collective and the end of backward, or of the step if the last one is
    in the optimizer's part. Without collectives all time is its own.

    >>> step = EndedStep(3, unix_ns=1000, step_ns=100, optimizer_ns=10, samples=0, tokens=0)
    >>> own_ns(step, collectives.CollectiveStarts([1030, 1050], since_ns=0))
    60
    """
    if begun is None or step.unix_ns < begun.since_ns:
        return None
    end_ns = step.unix_ns + step.step_ns
    inside = [at for at in begun.unix_ns if step.unix_ns <= at < end_ns]
    if not inside:
        return step.step_ns
    until_ns = end_ns if inside[-1] >= end_ns - step.optimizer_ns else end_ns - step.optimizer_ns
    return step.step_ns - (until_ns - inside[-1])


def begin(rank: int, world: int, local: int) -> None:
    """Begin to write, where the job has a folder for it; once in a process, which may be another rank later."""
    folder = os.environ.get(MEMORY)
    if _begun and _begun[0].pid == os.getpid():
        _begun[0].becomes(rank, world, local)
    elif folder and not _begun:
        os.environ.setdefault("TORCH_FR_BUFFER_SIZE", RECORDED)  # read when the first process group is made
        with suppress(OSError):  # a process below the rank, or a container without the node's shared memory
            _make_free(Path(folder), rank)
            _begun.append(Heartbeat(Path(folder), rank, world, local))
            on_failure(_failed, Path(folder) / f"rank{rank}.crash")


def over() -> None:
    """The training is over: what follows is the end of the process."""
    PROGRESS.ended_ns = time.time_ns()
    if _begun and _begun[0].pid == os.getpid():
        _begun[0].beat(last=True)


def _failed(error: dict[str, Any]) -> None:
    """The process is about to end by an error."""
    leaves_at_its_end = PROGRESS.ended_ns and error["type"] in EXITS
    if PROGRESS.error is None and not leaves_at_its_end and os.getpid() == _begun[0].pid:
        PROGRESS.error = error
        _begun[0].beat()


_begun: list[Heartbeat] = []


def _make_free(folder: Path, rank: int) -> None:
    """Forget a process that was this rank before and has ended, as when a launcher starts it again."""
    path = folder / f"rank{rank}.json"
    if path.exists():
        with suppress(ValueError, KeyError):
            pid = json.loads(path.read_text(encoding="utf-8"))["pid"]
            if not Path(f"/proc/{pid}").exists():
                path.unlink()


def stacks() -> dict[str, list[list[Any]]]:
    """The frames of all threads but this one, the innermost first: file, line, function, whether it is the user's."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main, own = threading.main_thread().ident, threading.get_ident()
    with looking_at_frames() as frames:
        return {
            "main" if ident == main else f"{names.get(ident, 'thread')} {ident}": list(_frames(frame))
            for ident, frame in frames.items()
            if ident != own
        }


def _frames(frame: FrameType | None) -> Iterator[list[Any]]:
    for _ in range(MOST_FRAMES):
        if frame is None:
            return
        code = frame.f_code
        line = frame.f_lineno or code.co_firstlineno
        yield [code.co_filename, line, code.co_name, is_users(code.co_filename)]
        frame = frame.f_back


def _copied(done: deque[Any]) -> list[Any]:
    for _ in range(5):
        try:
            return list(done)
        except RuntimeError:  # the main thread has just added one
            continue
    return []
