"""What nsys starts in place of the training: it says that the training begins, and lets nsys see into a container.

Of nsys 2022.4 on a busy node, one in some dozens ends within two seconds and has not begun the training, and can be
started again: a file that this program removes tells whether it had begun. And the files that nsys loads into its child
must have the same path inside of a container: this program reads the variables that the nsys of this node set, also
behind a module or a wrapper, and becomes the container with binds for them. Runs by its path and with the standard
library only: the environment is the training's, and stays unchanged.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

LIBRARIES = re.compile(r"LD_PRELOAD|\w+_INJECTION(32|64)_PATH|HARNESS_NSYS")
# Where nsys leaves files for what it loads.
SESSION = re.compile(r"TMPDIR|NSYS_AGENT_TMP_DIR|QUADD_\w+_CONFIG")


def main(argv: list[str]) -> str:
    """`FILE COUNT WORD…`: remove the file and become the words, the first COUNT of which start a container and get a
    bind for each folder; returns only an error."""
    Path(argv[0]).unlink(missing_ok=True)
    count, words = int(argv[1]), argv[2:]
    try:
        words = with_binds(words, count, os.environ) if count else words
        with suppress(OSError):  # a full disk
            Path(f"{argv[0]}.ran").write_text(json.dumps(words), encoding="utf-8")
        os.execvp(words[0], words)
    except ValueError as error:
        return str(error)
    except OSError as error:
        return f"{words[0]}: cannot be started ({error.strerror})"


def with_binds(words: Sequence[str], count: int, environ: Mapping[str, str]) -> list[str]:
    """The words with a bind, after the first `count`, for each folder in nsys's variables. Raises ValueError: it
    is not known where nsys is."""
    own = environ.get("HARNESS_NSYS", "")
    if own and "/target-linux-" not in own:
        raise ValueError(
            f"nsys: {own} does not show where nsys is installed, so it cannot be bound into each rank's "
            "container: put the folder of the nsys program first on PATH (`setup` of the site), or use --nsys-per node"
        )
    folders = unbound(needed(environ), words[:count])
    return [*words[:count], *(word for folder in folders for word in ("--bind", folder)), *words[count:]]


def needed(environ: Mapping[str, str]) -> list[str]:
    """The folders in nsys's variables, each once."""
    return list(dict.fromkeys([*_installations(environ), *_session_folders(environ)]))


def unbound(folders: Sequence[str], words: Sequence[str]) -> list[str]:
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
