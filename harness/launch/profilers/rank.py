"""One nsys around one rank: the launcher starts this program in place of the training script. It becomes the nsys that
per_rank.py prepared for the node, which then starts the script. Runs by its path and with the standard library only:
the environment is the training's, and stays unchanged."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

_APART_S = 0.5


def main(argv: list[str]) -> str:
    """`FILE SCRIPT ARGUMENT…`; returns only an error. FILE: as per_rank.py wrote it."""
    told = json.loads(Path(argv[0]).read_text(encoding="utf-8"))
    rank, local = (os.environ.get(name, "0") for name in ("RANK", "LOCAL_RANK"))
    words = [sys.executable if word is None else str(word) for word in told["first" if local == "0" else "others"]]
    words[-1] += rank  # --output
    # Two of nsys 2022.4 that began in one moment: one ended with "sem_open: No such file or directory".
    time.sleep(_APART_S * int(local))
    try:
        os.execvp(words[0], [*words, sys.executable, *argv[1:]])
    except OSError as error:
        return f"{words[0]}: cannot be started ({error.strerror})"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
