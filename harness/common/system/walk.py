"""All files below a folder, of which some may vanish or may not be read while it is searched."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

_OF_THE_KERNEL = ("proc", "sys", "dev")  # below /: their files have no end, or none at all


@dataclass
class Walk:
    """One walk. on_entry: called with the walk at each file and folder; what it raises ends the walk.

    looked_at: files and folders so far. left_out: "FOLDER: why" of those that could not be read. links: to folders,
    which are not followed.
    """

    top: Path
    on_entry: Callable[[Walk], object] = lambda walk: None
    looked_at: int = 0
    left_out: list[str] = field(default_factory=list)
    links: int = 0

    def files(self) -> Iterator[Path]:
        """What is no folder, in no order; also pipes and links to nothing."""
        at_root = str(self.top.absolute()) == "/"
        waiting = [os.fspath(self.top)]
        while waiting:
            folder = waiting.pop()
            hidden = _OF_THE_KERNEL if at_root and folder == os.fspath(self.top) else ()
            try:
                with os.scandir(folder) as entries:
                    for entry in entries:
                        self.looked_at += 1
                        self.on_entry(self)
                        if entry.is_dir(follow_symlinks=False):
                            waiting += [entry.path] * (entry.name not in hidden)
                        elif _links_to_folder(entry):
                            self.links += 1
                        else:
                            yield Path(entry.path)
            except (FileNotFoundError, NotADirectoryError):
                self.left_out.append(f"{folder}: vanished while it was searched")
            except OSError as error:
                self.left_out.append(f"{folder}: {error.strerror}")


def _links_to_folder(dir_entry: os.DirEntry[str]) -> bool:
    try:
        return dir_entry.is_symlink() and dir_entry.is_dir()
    except OSError:  # a link to itself
        return False
