"""Lets nsys see into a container: what nsys tells its child to load has to be there by the same name inside.

nsys starts this in the container's place, and it becomes the container; so it reads what the nsys of this very node
set, wherever a module or a wrapper hides it. Run by its path, with nothing but the standard library: the environment is
the training's, and stays so.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path

LIBRARIES = re.compile(r"LD_PRELOAD|\w+_INJECTION(32|64)_PATH")
SESSION = re.compile(
    r"TMPDIR|NSYS_AGENT_TMP_DIR|QUADD_\w+_CONFIG"
)  # where nsys leaves word for what it loads


def main(argv: list[str]) -> str:
    """`COUNT WORD…`: run the words, with a bind for each folder after the first COUNT; returns only what went wrong."""
    before, words = int(argv[0]), argv[1:]
    folders = unbound(needed(os.environ), words[:before])
    unwritable = [folder for folder in folders if set(folder) & set(",:")]
    if unwritable:
        return (
            f"nsys: {words[0]} cannot bind {unwritable[0]}, as its name has a comma or a colon, and without it nsys "
            "records nothing inside: use another nsys or TMPDIR, or --profiler torch"
        )
    binds = [word for folder in folders for word in ("--bind", folder)]
    try:
        os.execvp(words[0], [*words[:before], *binds, *words[before:]])
    except OSError as error:
        return f"{words[0]}: cannot be started ({error.strerror})"


def needed(environ: Mapping[str, str]) -> list[str]:
    """The folders that nsys's variables speak of, each once."""
    return list(dict.fromkeys([*_installations(environ), *_session_folders(environ)]))


def unbound(folders: list[str], words: list[str]) -> list[str]:
    """Those of `folders` that no bind among the container's words shows already, by the same name."""
    said = (value.split(":") for flag, value in pairwise(words) if flag in ("--bind", "-B"))
    shown = [Path(parts[0]) for parts in said if parts[1:2] in ([], [""], [parts[0]])]
    return [folder for folder in folders if not any(Path(folder).is_relative_to(place) for place in shown)]


def _installations(environ: Mapping[str, str]) -> Iterator[str]:
    """The folder that holds `target-linux-…`, with all that its libraries load in their turn."""
    for name, value in environ.items():
        if LIBRARIES.fullmatch(name):
            for path in re.split(r"[: ]", value) if name == "LD_PRELOAD" else [value]:
                root, found, _ = path.partition("/target-linux-")
                if found and root.startswith("/"):
                    yield root


def _session_folders(environ: Mapping[str, str]) -> Iterator[str]:
    for name, value in environ.items():
        path = Path(value)
        if SESSION.fullmatch(name) and path.is_absolute() and path.exists():
            yield str(path if path.is_dir() else path.parent)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
