"""One nsys for each rank of a node: what rank.py, which the launcher starts, has to become. Runs on the compute node,
just before the training and outside its container (`python -m harness.launch.profilers.per_rank`), as nsys.py does for
one nsys of all ranks."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from harness.common.errors import HarnessError
from harness.launch.profilers.nsys import WHOLE_NODE, Options, Prepared, prepare, say

# What a rank's own Python replaces: it may be another one in a container.
_PYTHON = None


def program(named: Path) -> Path:
    """The program itself, in `target-linux-…`: what PATH names may be a link to it or a script that looks for it. Where
    it cannot be told, what PATH names."""
    real = named.resolve()
    if "/target-linux-" in str(real):
        return real
    folder = real.parent.parent
    patterns = ("target-linux-*/nsys", "nsight-systems-*/target-linux-*/nsys")
    found = {path.resolve() for pattern in patterns for path in folder.glob(pattern)}
    return found.pop() if len(found) == 1 else named


def words_of(asked: Prepared, nsys: str, output: str) -> dict[str, list[str | None]]:
    """The argv of the first rank of a node, and of its others, who leave the node's own metrics to the first.

    The last word wants the rank's number; None stands for the Python that trains. Each records once: asked again, those
    of 2022.4 mostly ended after the first step (configs/nsys/README.md).
    """
    asked = asked._replace(nsys=asked.nsys._replace(of_start=frozenset()))
    alone: Options = {name: value for name, value in asked.options.items() if name not in WHOLE_NODE}
    return {"first": _words(asked, nsys, output), "others": _words(asked._replace(options=alone), nsys, output)}


def _words(asked: Prepared, nsys: str, output: str) -> list[str | None]:
    argv, _ = asked.argv(f"{output}_rank")
    replaced = {"nsys": nsys, sys.executable: _PYTHON}
    return [replaced.get(word, word) for word in argv]


def main(argv: list[str]) -> int:
    """`FILE CONFIG OUTPUT gpu|cpu WORD…`: write the argvs to FILE, print the path of nsys; warnings to stderr."""
    file, config, output, device, *words = argv
    try:
        asked = prepare(config, device, words)
        say(asked.argv(output)[1])
    except HarnessError as error:
        print(f"nsys: {error}", file=sys.stderr)
        return error.exit_code
    nsys = str(program(Path(shutil.which("nsys") or "nsys")))
    Path(file).write_text(json.dumps(words_of(asked, nsys, output), indent=1) + "\n", encoding="utf-8")
    print(nsys)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
