"""Lets nsys see into a container: the files that nsys loads into its child must have the same path inside.

nsys starts this program in place of the container, and this program becomes the container. So it reads the variables
that the nsys of this node set, also behind a module or a wrapper. Where each rank starts its own nsys, inside, there is
none yet: HARNESS_NSYS is the path of the program then. Runs by its path and with the standard library only:
the environment is the training's, and stays unchanged.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path

LIBRARIES = re.compile(r"LD_PRELOAD|\w+_INJECTION(32|64)_PATH|HARNESS_NSYS")
# Where nsys leaves files for what it loads.
SESSION = re.compile(r"TMPDIR|NSYS_AGENT_TMP_DIR|QUADD_\w+_CONFIG")


def main(argv: list[str]) -> str:
    """`COUNT WORD…`: run the words, with a bind for each folder after the first COUNT; returns only an error."""
    before, words = int(argv[0]), argv[1:]
    own = os.environ.get("HARNESS_NSYS", "")
    if own and "/target-linux-" not in own:
        return (
            f"nsys: {own} does not show where nsys is installed, so it cannot be bound into each rank's "
            "container: put the folder of the nsys program first on PATH (`setup` of the site), or use --nsys-per node"
        )
    folders = unbound(needed(os.environ), words[:before])
    unwritable = [folder for folder in folders if set(folder) & set(",:")]
    if unwritable:
        return (
            f"nsys: {words[0]} cannot bind {unwritable[0]}, because its name has a comma or a colon, and without it "
            "nsys records nothing inside: use another nsys or TMPDIR, or --profiler torch"
        )
    binds = [word for folder in folders for word in ("--bind", folder)]
    try:
        os.execvp(words[0], [*words[:before], *binds, *words[before:]])
    except OSError as error:
        return f"{words[0]}: cannot be started ({error.strerror})"


def needed(environ: Mapping[str, str]) -> list[str]:
    """The folders in nsys's variables, each once."""
    return list(dict.fromkeys([*_installations(environ), *_session_folders(environ)]))


def unbound(folders: list[str], words: list[str]) -> list[str]:
    """The folders that no bind among the container's words shows inside by the same name."""
    binds = (value.split(":") for flag, value in pairwise(words) if flag in ("--bind", "-B"))
    shown = [Path(parts[0]) for parts in binds if parts[1:2] in ([], [""], [parts[0]])]
    return [folder for folder in folders if not any(Path(folder).is_relative_to(place) for place in shown)]


def _installations(environ: Mapping[str, str]) -> Iterator[str]:
    """The folder that holds `target-linux-…`, with all that its libraries load."""
    for name, value in environ.items():
        if LIBRARIES.fullmatch(name):
            for path in re.split(r"[: ]", value) if name == "LD_PRELOAD" else [value]:
                root, found, _ = path.partition("/target-linux-")
                if found and root.startswith("/"):
                    yield root
                    yield from _linked_from(Path(root))


def _linked_from(root: Path) -> Iterator[str]:
    """Where the installation's links lead, as packages of distributions put nsys's importer into a folder elsewhere."""
    for path in root.glob("*-linux-*"):
        target = path.resolve()
        if path.is_symlink() and target.is_dir() and not target.is_relative_to(root.resolve()):
            yield str(target)


def _session_folders(environ: Mapping[str, str]) -> Iterator[str]:
    for name, value in environ.items():
        path = Path(value)
        if SESSION.fullmatch(name) and path.is_absolute() and path.exists():
            yield str(path if path.is_dir() else path.parent)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
