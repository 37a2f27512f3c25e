"""A folder with what fuzzed command lines find, which is as it was after each of them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path


class Box:
    """A folder with what the command lines find. It is as it was before each of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.work = self.folder / "a/b/c/work"  # deep: `..` stays inside
        self.runs = self.work / "runs"
        for each in (self.runs, self.folder / "home", self.folder / "tmp"):
            each.mkdir(parents=True)
        self._kept: dict[str, bytes] = {}
        self._folders: set[str] = set()
        self._there = self._listing()

    def keep(self) -> None:
        """What is in it now is what each command line finds."""
        self._kept = {str(p.relative_to(self.folder)): p.read_bytes() for p in self.folder.rglob("*") if p.is_file()}
        self._folders = {str(p) for p in (self.folder, *self.folder.rglob("*")) if p.is_dir()}
        self._there = self._listing()

    def _listing(self) -> dict[str, tuple[int, int]]:
        found = {}
        for folder, _, names in os.walk(self.folder):
            found[folder] = (0, 0)
            for name in names:
                about = os.lstat(os.path.join(folder, name))  # noqa: PTH118 - for each of millions
                found[f"{folder}/{name}"] = (about.st_size, about.st_mtime_ns)
        return found

    def changed(self) -> list[str]:
        """The paths that are not as they were kept."""
        now = self._listing()
        return sorted(p for p in {*now, *self._there} if now.get(p) != self._there.get(p))

    def restore(self) -> None:
        """As it was kept."""
        for place in sorted(self.changed(), key=len):
            path, name = Path(place), os.path.relpath(place, self.folder)
            if place in self._folders or name in self._kept:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.mkdir(exist_ok=True) if place in self._folders else path.write_bytes(self._kept[name])
            elif path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        self._there = self._listing()

    @contextmanager
    def holding(self, files: Mapping[str, bytes]) -> Iterator[None]:
        """With these files beside its own, in the folder where command lines run."""
        for name, content in files.items():
            path = self.work / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        if not files:
            yield
            return
        kept, self._there = self._there, self._listing()
        try:
            yield
        finally:
            self._there = kept
            self.restore()
