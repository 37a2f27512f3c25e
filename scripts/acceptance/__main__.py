"""`scripts/gpu-acceptance`: parse the arguments, make the folders and the Python, run the steps."""

from __future__ import annotations

import argparse
import hashlib
import sys
import tempfile
import time
from pathlib import Path

from failures import AcceptanceError
from interpreter import make_python
from place import Place
from runner import Runner, do_step
from steps import STEPS, chosen

BUDGET_S = 480.0
LEAST_BUDGET_S = 5.0


def main() -> int:
    """0: every step is done or named what is missing; 1: a step failed or is not done yet; 2: the request is wrong."""
    arguments = _parser().parse_args()
    try:
        return _run(arguments)
    except AcceptanceError as error:
        print(f"gpu-acceptance: {error}", file=sys.stderr)
        return 2


def _run(arguments: argparse.Namespace) -> int:
    if arguments.list:
        for step in STEPS:
            print(f"{step.name:10} {step.title}")
        return 0
    steps = chosen(arguments.only if arguments.step is None else arguments.step)
    if arguments.step is None and arguments.budget < LEAST_BUDGET_S:
        raise AcceptanceError(f"--budget {arguments.budget:g}: give at least {LEAST_BUDGET_S:g} seconds")
    place = _place(arguments)
    if arguments.step is not None:
        return do_step(steps[0], place)
    make_python(place.python.parents[1])
    return Runner(place, _say).run(steps, arguments.again)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/gpu-acceptance",
        description="Everything that only a GPU can show, in about eight minutes, without network.",
    )
    parser.add_argument("out", nargs="?", type=Path, metavar="OUT", help="folder for the results")
    parser.add_argument("--budget", type=float, default=BUDGET_S, metavar="SECONDS", help="for all (default 480)")
    parser.add_argument("--only", metavar="STEP[,STEP]", help="only these steps")
    parser.add_argument("--list", action="store_true", help="list the steps, and do nothing")
    parser.add_argument("--again", action="store_true", help="repeat steps that are done")
    parser.add_argument("--work", type=Path, metavar="DIR", help="runs and traces (default: a temporary folder)")
    parser.add_argument("--step", help=argparse.SUPPRESS)  # how the command starts each of its steps
    return parser


def _place(arguments: argparse.Namespace) -> Place:
    """Make the folders. Raises AcceptanceError: a folder cannot be made."""
    if arguments.out is None:
        raise AcceptanceError("name the folder for the results: scripts/gpu-acceptance OUT")
    out: Path = arguments.out.absolute()
    work: Path = (arguments.work or _default_work(out)).absolute()
    for folder in (out, work):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise AcceptanceError(f"{folder}: cannot be made ({error.strerror})") from None
    return Place(out, work, work / "python" / "bin" / "python", time.monotonic() + arguments.budget)


def _default_work(out: Path) -> Path:
    """The same folder for the same OUT, so that a second start finds the runs; not inside OUT, which is taken home."""
    return Path(tempfile.gettempdir()) / f"gpu-acceptance-{hashlib.sha256(str(out).encode()).hexdigest()[:12]}"


def _say(sentence: str) -> None:
    print(sentence, flush=True)


if __name__ == "__main__":
    sys.exit(main())
