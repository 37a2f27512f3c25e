"""Which files of a folder of runs the table of a run's files does not name."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

from harness.common.run_folder.run_files import FILES


def unlisted_files(root: Path) -> list[str]:
    """The files below the runs and logs of an exercise's folders, relative to run or logs, that no entry names."""
    places = [("run", folder) for folder in root.glob("*/profiler/[!.]*")]
    places += [("log", folder) for folder in root.glob("*/logs/*") if folder.is_dir()]
    assert places, f"{root} has no run"
    named = {kept_in: [each.name for each in FILES if each.kept_in == kept_in] for kept_in, _ in places}
    return [
        name
        for kept_in, folder in places
        for name in (str(path.relative_to(folder)) for path in sorted(folder.rglob("*")) if path.is_file())
        if not any(fnmatchcase(name, pattern) for pattern in named[kept_in])
    ]
