"""A request for a report carried out: names to paths, measuring, summary.json written and read."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from harness.analysis.summary import SCHEMA_VERSION, Problem, Summary, Window
from harness.analysis.summary.base import why_invalid
from harness.common.display.printable import printable, printable_json
from harness.common.display.text import how_many
from harness.common.errors import RequestError, WorkError
from harness.common.paths import COMMAND, expanded
from harness.common.run_folder.run_files import SUMMARY
from harness.common.run_folder.run_store import UnreadFileError
from harness.common.system.bounded_read import BoundedReadError, parse_json
from harness.measure.jobs import summarise
from harness.measure.page_data import MOST_TRACKS, PageData, page_data_of
from harness.measure.paths import is_run, look_for_traces, measure_files, run_directories, run_of
from harness.run import Run, find_run, write_atomically
from harness.traces.progress import ProgressLine

MOST_LISTED = 20
MOST_NAMELESS = 16  # folders without ranks in their names: their traces, read at once, say whether they are one job
_RANK = re.compile(r"(?:rank|worker|process|proc)[-_.]?(\d+)", re.IGNORECASE)

Folders = Mapping[Path, Sequence[Path]]
"""The folder of some traces, or the run that they are of -> the traces."""

MOST_NAMED = 5


def refuse_several_jobs(path: Path, files: Sequence[Path]) -> None:
    """Raises RequestError: the traces below `path` are of several jobs; with the command for each of them."""
    if is_run(path) or not path.is_dir():
        return
    folders: dict[Path, list[Path]] = {}
    for file in files:
        if file.is_relative_to(path):
            folders.setdefault(Path(run_of(file) or file.parent), []).append(file)
    if may_be_one_job(folders):
        return
    holds = f"{len(files)} traces of several jobs, in {len(folders)} folders"
    each = "file" if any(_holds_another(folder, folders) for folder in folders) else "folder"
    raise RequestError(
        f"{printable(str(path))}: holds {holds}: choose one of them\n"
        + "\n".join(_commands(folders))
        + f"\nif all of them are of one job, name each {each}: {_command('A B')} …"
    )


def may_be_one_job(folders: Folders) -> bool:
    """Whether the traces of these folders may be the ranks of one job: not those of several runs, nor of folders that
    are not beside each other or have the same rank. Without ranks in the names, of few folders only."""
    if len(folders) < 2:
        return True
    if any(map(is_run, folders)) or len({folder.parent for folder in folders}) > 1:
        return False
    ranks = [{_rank(file) for file in files} for files in folders.values()]
    named = Counter(rank for each in ranks for rank in each if rank is not None)
    if named and max(named.values()) > 1:
        return False
    return not any(None in each for each in ranks) or len(folders) <= MOST_NAMELESS


def _rank(file: Path) -> int | None:
    """The rank in a file's name, else in its folder's."""
    found = _RANK.search(file.name) or _RANK.search(file.parent.name)
    return int(found[1]) if found else None


def _commands(folders: Folders) -> Iterator[str]:
    """A command for each folder, those with most traces first, and how many it would read."""
    most_first = sorted(folders.items(), key=lambda pair: (-len(pair[1]), pair[0]))
    for folder, files in most_first[:MOST_LISTED]:
        words = _traces_in(folder, files) if _holds_another(folder, folders) else _quoted(folder)
        yield f"  {_command(words)}  # {how_many(len(files), 'trace')}"
    if len(folders) > MOST_LISTED:
        yield f"and {len(folders) - MOST_LISTED} more folders"


def _holds_another(folder: Path, folders: Folders) -> bool:
    """Whether a folder's traces cannot be named by the folder, because those of another one are below it."""
    return any(folder in other.parents for other in folders)


def _traces_in(folder: Path, files: Sequence[Path]) -> str:
    """The traces of a folder itself: each one, or of many all of their endings."""
    if len(files) <= MOST_NAMED:
        return " ".join(map(_quoted, files))
    return " ".join(f"{_quoted(folder)}/*{ending}" for ending in sorted({file.suffix for file in files}))


def _quoted(path: Path) -> str:
    return shlex.quote(printable(str(path)))


def _command(words: str) -> str:
    return f"{COMMAND} report {words}"


@dataclass(frozen=True)
class ReportRequest:
    """What to report on. `page`: keep the columns that a page draws, so that few traces are read again."""

    tokens: list[str]
    window: str = Window.STEPS.value
    workers: int | None = None
    page: bool = False


class Measurement(NamedTuple):
    """The summaries of a request, and the columns that their pages draw."""

    summaries: list[Summary]
    page_data: list[PageData]


def measure_request(request: ReportRequest) -> Measurement:
    """Carry out a request. The summary of a run is also written into its directory.

    Raises:
        RequestError: a name is neither a path nor a run, or the paths hold no trace.
        WorkError: nothing could be measured.
    """
    paths = [resolve_path(token) for token in request.tokens]
    with ProgressLine("looking for traces") as progress:
        files, left_out = look_for_traces(paths, progress.say)
    if not files and not run_directories(paths):
        where = ", ".join(map(str, paths))
        lines = [f"no trace was found in {where}: give a run, a trace file or a folder of them"]
        lines += [f"not searched: {each.evidence}" for each in left_out[:MOST_NAMED]]
        raise RequestError("\n".join(lines))
    for path in paths:
        refuse_several_jobs(path, files)
    window = Window(request.window)
    summaries, page_data = _measured(files, window, request, left_out, run_directories(paths))
    if window is Window.STEPS and len(paths) == 1 and len(summaries) == 1:
        _keep(paths[0], summaries[0])
    return Measurement(summaries, page_data)


def resolve_path(token: str) -> Path:
    """The path, if it exists, else the directory of the run with that name."""
    path = expanded(token)
    return path if path.exists() else find_run(token).path


def _measured(
    files: list[Path], window: Window, request: ReportRequest, left_out: list[Problem], run_folders: list[Path]
) -> tuple[list[Summary], list[PageData]]:
    ranks = frozenset[int]() if len(files) > MOST_TRACKS else None
    keep = partial(page_data_of, ranks=ranks) if request.page else None
    with ProgressLine("reading traces") as progress:
        read = measure_files(files, window, request.workers, progress, page_data_of=keep)
    return summarise(read.parts, [*left_out, *read.broken], run_folders), read.page_data


def _keep(path: Path, summary: Summary) -> None:
    """Write summary.json into a run; not into other folders, nor on a read-only disk."""
    if is_run(path):
        with suppress(WorkError):
            write_atomically(Run(path).summary, summary.model_dump_json(indent=1) + "\n")


def load_summary(token: str) -> tuple[str, Summary]:
    """(name, summary) of a summary.json, or of a run or traces, which are measured now without a stored summary.

    Raises RequestError: there is no such path or run, or the file is not a summary.
    """
    path = resolve_path(token)
    stored = path if path.suffix == ".json" and path.name.startswith("summary") else Run(path).summary
    if not stored.is_file():
        measured = measure_request(ReportRequest(tokens=[token])).summaries
        if len(measured) != 1:
            raise RequestError(f"{token}: holds the traces of {len(measured)} jobs: name one of them")
        return path.name, measured[0]
    name = stored.parent.name if stored == Run(stored.parent).summary else stored.name
    return name, _found_again(_read(stored), stored.parent)


def _read(file: Path) -> Summary:
    try:
        return SUMMARY_FILE.read(file)
    except UnreadFileError as error:
        raise RequestError(
            f"{file}: is not a summary of this program ({error.reason}): "
            f"`{COMMAND} report RUN` writes it anew from the traces"
        ) from None


def _of_this_version(text: str) -> Summary:
    content = parse_json(text)
    version = content.get("schema_version") if isinstance(content, dict) else None
    if version != SCHEMA_VERSION:
        raise BoundedReadError("it has no version" if version is None else f"version {version}, not {SCHEMA_VERSION}")
    try:
        return Summary.model_validate_json(printable_json(text))
    except msgspec.MsgspecError as error:
        raise BoundedReadError(why_invalid(error)) from None


SUMMARY_FILE = SUMMARY.holding(_of_this_version)


def _found_again(summary: Summary, folder: Path) -> Summary:
    """The summary with the present paths of the traces, if the run was moved after the summary was written."""
    sources = []
    for source in summary.sources:
        before = Path(source.path)
        now = folder / before.parent.name / before.name
        is_moved = not before.exists() and now.is_file()
        sources.append(source.model_copy(update={"path": str(now)}) if is_moved else source)
    return summary.model_copy(update={"sources": sources})
