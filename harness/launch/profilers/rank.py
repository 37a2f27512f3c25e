"""One nsys around one rank: the launcher starts this program in place of the training script. It becomes the nsys that
harness.launch.on_node.node prepared for the node, which then starts the script. Runs by its path and with the standard
library only: the environment is the training's, and stays unchanged."""

from __future__ import annotations

import json
import os
import runpy
import sys
import time
from pathlib import Path

_APART_S = 0.5


def main(argv: list[str]) -> str:
    """`FILE SCRIPT ARGUMENT…`; returns only an error. FILE: nsys's words, for a node's first rank and for others."""
    words_of = json.loads(Path(argv[0]).read_text(encoding="utf-8"))
    rank, local = (os.environ.get(name, "0") for name in ("RANK", "LOCAL_RANK"))
    words = [word.replace("%q{RANK}", rank) for word in words_of["first" if local == "0" else "others"]]
    # Two of nsys 2022.4 that began in one moment: one ended with "sem_open: No such file or directory".
    time.sleep(_APART_S * int(local))
    become = runpy.run_path(str(Path(__file__).with_name("record.py")))["become"]
    error: str = become(words, [sys.executable, *argv[1:]])
    return error


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
