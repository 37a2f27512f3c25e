"""Reports from what nsys recorded and could not import itself, as in a container without its importer's libraries. Runs
on the compute node after the training, outside of the container (`python -m harness.launch.profilers.importer`)."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from harness.launch.profilers.per_rank import program


def left(prefix: Path) -> list[Path]:
    """The recordings without a report whose paths begin with the prefix."""
    found = (path for path in prefix.parent.glob("*.qdstrm") if path.name.startswith(prefix.name))
    return sorted(path for path in found if not path.with_suffix(".nsys-rep").exists())


def imported(importer: Path, recording: Path) -> str:
    """Make the report; the reason if that failed. What was recorded goes away only with a report."""
    unfinished = recording.with_name(f".unfinished-{recording.stem}.nsys-rep")
    argv: list[str | Path] = [importer, "--force-overwrite", "--input-file", recording, "--output-file", unfinished]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, errors="replace")
    if done.returncode or not unfinished.is_file():
        unfinished.unlink(missing_ok=True)
        said = (done.stderr or done.stdout).strip().splitlines()
        return said[-1] if said else f"exit {done.returncode}"
    unfinished.replace(recording.with_suffix(".nsys-rep"))
    recording.unlink()
    return ""


def main(argv: list[str]) -> int:
    """`PREFIX`: import what is left there, and say so in a line each."""
    beside = program(Path(shutil.which("nsys") or "nsys")).parent.parent  # its own importer lies beside its recorder
    importer = next(iter(sorted(beside.glob("host-linux-*/QdstrmImporter"))), None)
    for recording in left(Path(argv[0])):
        why = imported(importer, recording) if importer else "this nsys has no importer beside it"
        made = recording.with_suffix(".nsys-rep").name
        told = f"could not be turned into a report: {why}" if why else f"became {made}"
        print(f"nsys: {recording.name}, which nsys itself could not import, {told}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
