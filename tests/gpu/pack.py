"""Packs what is taken home into two archives without names of this machine: small traces, and reports of the runs."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

from tests.gpu.scrub import clean_text, secrets
from tests.gpu.work import Work

MOST_BYTES = 14_000_000  # of an archive; a page is a megabyte packed
OF_A_RUN = ("summary.json", "run.json", "metrics/rank0.jsonl", "report.html")


def pack(work: Work, out: Path) -> None:
    """Write traces.tar.gz and reports.tar.gz, where there is something to put into them."""
    _archive(out / "traces.tar.gz", [(p, p.name) for p in sorted((work.folder / "traces").glob("*.json*"))])
    runs = work.all_runs()
    reports = [(run.path / name, f"{run.name}/{name}") for name in OF_A_RUN for run in runs]
    samples = [(path, f"monitor/{path.name}") for path in sorted((work.folder / "monitor").glob("*"))]
    _archive(out / "reports.tar.gz", [*reports, *samples])


def _archive(path: Path, members: list[tuple[Path, str]]) -> None:
    """Pack the members that exist, in order, until the archive reaches its limit; left-out.txt names the others."""
    members = [(source, name) for source, name in members if source.is_file()]
    if not members:
        return
    left_out: list[str] = []
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=6) as archive:
        for source, name in members:
            if buffer.tell() + source.stat().st_size // 2 > MOST_BYTES:
                left_out.append(name)
            else:
                _add(archive, name, _anonymous(source))
        if left_out:
            _add(archive, "left-out.txt", "\n".join([*left_out, ""]).encode())
    path.write_bytes(buffer.getvalue())


def _anonymous(source: Path) -> bytes:
    """The file without names of this machine and its user; what is packed already was made so."""
    if source.suffix not in (".json", ".jsonl", ".html", ".csv"):
        return source.read_bytes()
    text = source.read_text(encoding="utf-8", errors="replace")
    return clean_text(text, secrets(), paths=source.suffix != ".html").encode()


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))
