"""Pack the results into two archives: the small traces, and the reports of the runs."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

from place import Place
from runs import all_runs

MOST_BYTES = 14_000_000  # of an archive; a page is a megabyte packed


def pack_outputs(place: Place) -> None:
    """Write traces.tar.gz and reports.tar.gz, where there is something to put into them."""
    small = sorted((place.work / "traces").glob("*.json*"))
    _archive(place.out / "traces.tar.gz", [(path, path.name) for path in small])
    pages = [(run.path, run.name) for run in all_runs(place)]
    wanted = [
        (path / name, f"{case}/{name}")
        for name in ("summary.json", "run.json", "metrics/rank0.jsonl", "report.html")
        for path, case in pages
    ]
    monitor = sorted((place.work / "monitor").glob("*"))
    _archive(place.out / "reports.tar.gz", [*wanted, *((path, f"monitor/{path.name}") for path in monitor)])


def _archive(path: Path, members: list[tuple[Path, str]]) -> None:
    """Pack the members that exist, in order, until the archive reaches its limit."""
    there = [(source, name) for source, name in members if source.is_file()]
    if not there:
        return
    left_out: list[str] = []
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=6) as archive:
        for source, name in there:
            if buffer.tell() + source.stat().st_size // 2 > MOST_BYTES:
                left_out.append(name)
                continue
            archive.add(source, arcname=name, filter=_anonymous)
        if left_out:
            _add_text(archive, "left-out.txt", "\n".join(left_out) + "\n")
    path.write_bytes(buffer.getvalue())


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def _add_text(archive: tarfile.TarFile, name: str, text: str) -> None:
    data = text.encode()
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))
