"""What ranks, nodes and the job of a run recorded of their times, as the job's time. Malformed lines are left out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TypeVar

import msgspec

from harness.analysis.summary import CodeLocation, JobTime, LineShare
from harness.common.display.printable import printable_name
from harness.common.run_folder.job_folder import BACKEND
from harness.common.run_folder.job_parts import COMPILATION, FIRST_STEP, FROM_OBSERVER, IMPORTS, STEPS
from harness.common.run_folder.run_files import JOB_TIME, METRICS
from harness.common.system.bounded_read import parse_json
from harness.heartbeats.read import stuck_to_its_end
from harness.measure.job_time.time_lines import JobRecord, RankRecord, Stretch, TimedStep, job_time
from harness.run import Run

_MOST_LINES, _MOST_BYTES = 1 << 20, 1 << 15
_FIRST_LINES = 2000  # of a metrics file
_LATEST_NS = 1 << 62
_MOST_RANKS = 1 << 16
_MOST_PLACES = 64
_Read = TypeVar("_Read")


class _JobTimeLine(msgspec.Struct):
    event: str
    unix_ns: int = 0
    began_ns: int = 0
    rank: int = -1
    node: int = 0
    part: str = ""
    what: list[str] = []
    id: int = -1
    file: str = ""
    line: int = 0
    function: str = ""
    callers: list[tuple[str, int, str]] = []
    ns: int = 0
    places: list[tuple[int, int]] = []


class _StepLine(msgspec.Struct):
    event: str
    unix_ns: int = 0
    step_ns: int = 0
    data_ns: int = 0


def read_job_time(run: Run) -> JobTime | None:
    """Where the time of a run went; None: no rank recorded it, as in a test of communication."""
    found = (rank_record(run.path, path) for path in JOB_TIME.paths(run.path)[:_MOST_RANKS])
    records = [each for each in found if each is not None]
    return job_time(_job(run), records)


def _job(run: Run) -> JobRecord:
    status, record, hang = run.status(), run.known_record, stuck_to_its_end(run.path)
    return JobRecord(
        begin_ns=status.started_ns if status else None,
        end_ns=status.ended_ns if status else None,
        # A run that was only observed was written when its job had already begun.
        submitted_ns=record.created_ns if record and record.backend != BACKEND else None,
        allocated_ns=status.allocated_ns if status else None,
        nodes={node.node: (node.started_ns, node.ended_ns) for node in run.started_nodes()},
        stuck_ns=hang.since_ns if hang else None,
    )


def rank_record(run: Path, path: Path) -> RankRecord | None:
    """What one rank recorded; None: the file cannot be read, says of no rank, or not where it was."""
    lines = list(_decoded(islice(JOB_TIME.known_lines(path, _MOST_BYTES), _MOST_LINES), _JobTimeLine))
    about = next((line for line in lines if line.event == "process"), None)
    if about is None or not 0 <= about.rank < _MOST_RANKS or not 0 < about.unix_ns < _LATEST_NS:
        return None
    changes = [line for line in lines if line.event == "at" and 0 < line.unix_ns < _LATEST_NS]
    if not changes:
        return None
    changes.sort(key=lambda line: line.unix_ns)  # a piece of a stretch is told when it is over
    places = {line.id: _place(line) for line in lines if line.event == "place"}
    owners = _Owners(lines)
    end = next((line.unix_ns for line in lines if line.event == "end" and 0 < line.unix_ns < _LATEST_NS), None)
    until = [line.unix_ns for line in changes[1:]] + [end or _LATEST_NS]
    return RankRecord(
        rank=about.rank,
        node=about.node,
        began_ns=about.began_ns if 0 < about.began_ns <= about.unix_ns else about.unix_ns,
        begun_ns=about.unix_ns,
        changes=[
            Stretch(
                line.unix_ns,
                max(stop, line.unix_ns),
                owners.part_of(line) if line.part in FROM_OBSERVER else "",
                places.get(line.id),
                tuple(printable_name(name) for name in line.what[:8]),
            )
            for line, stop in zip(changes, until, strict=True)
        ],
        steps=_steps(METRICS.path(run, about.rank)),
        end_ns=end,
        between=_between(lines, places),
    )


def _between(lines: Sequence[_JobTimeLine], code_locations: Mapping[int, CodeLocation]) -> list[LineShare]:
    """By the last sums, since each has all before it."""
    last = next((line for line in reversed(lines) if line.event == "between" and 0 < line.ns < _LATEST_NS), None)
    if last is None:
        return []
    spent: dict[tuple[str, int | None], int] = defaultdict(int)
    known: dict[tuple[str, int | None], CodeLocation] = {}
    for number, ns in last.places[:_MOST_PLACES]:
        if (place := code_locations.get(number)) is not None and ns > 0:
            known.setdefault((place.file, place.line), place)
            spent[place.file, place.line] += ns
    largest = sorted(spent, key=lambda key: -spent[key])
    return [LineShare(where=known[key], share=min(spent[key] / last.ns, 1.0)) for key in largest]


class _Owners:
    """Which functions of the user's do what belongs to one part alone: what they do otherwise belongs to it too."""

    def __init__(self, lines: Sequence[_JobTimeLine]) -> None:
        self._stacks = {
            line.id: [(line.file, line.function), *((file, name) for file, _, name in line.callers)]
            for line in lines
            if line.event == "place"
        }
        seen: dict[tuple[str, str], set[str]] = defaultdict(set)
        for line in lines:
            if line.event == "belongs":
                seen[line.file, line.function].add(line.part)
            elif line.event == "at" and line.part:
                for function in self._stacks.get(line.id, []):
                    seen[function].add(line.part)
        self._parts = {of: next(iter(found)) for of, found in seen.items() if len(found) == 1}

    def part_of(self, line: _JobTimeLine) -> str:
        """The part of a change; of one that is in no known part, by the innermost function that belongs to one."""
        if line.part:
            return line.part
        found = (self._parts.get(function, "") for function in self._stacks.get(line.id, []))
        return next((part for part in found if part and part not in (STEPS, IMPORTS, COMPILATION, FIRST_STEP)), "")


def _place(line: _JobTimeLine) -> CodeLocation:
    return CodeLocation(file=printable_name(line.file), line=line.line, function=printable_name(line.function))


def _steps(path: Path) -> list[TimedStep]:
    """The first steps and the last one: a long training has millions."""
    first = _valid(_decoded(islice(METRICS.known_lines(path, _MOST_BYTES), _FIRST_LINES), _StepLine))
    end = METRICS.end_text(path, _MOST_BYTES).splitlines()
    return sorted({*first, *_valid(_decoded(end, _StepLine))})


def _valid(lines: Iterable[_StepLine]) -> Iterator[TimedStep]:
    for line in lines:
        if line.event == "step" and 0 < line.unix_ns < _LATEST_NS and 0 < line.step_ns < _LATEST_NS:
            yield TimedStep(line.unix_ns, line.step_ns, max(line.data_ns, 0))


def _decoded(texts: Iterable[str], kind: type[_Read]) -> Iterator[_Read]:
    for text in texts:
        try:
            yield msgspec.convert(parse_json(text), kind)
        except (ValueError, msgspec.ValidationError, RecursionError):  # a loss may be NaN, which msgspec does not read
            continue
