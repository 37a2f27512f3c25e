"""`slurm.sh overlap-test` and `slurm.sh health`: launches of exercise 0 that run one test."""

from __future__ import annotations

from functools import partial

from harness.cli.command_line import declared, read_line
from harness.cli.page import Page, as_text
from harness.common.errors import RequestError
from harness.common.printable import printable

_SHARED = [
    ("-n, -g, -a, -p, -q, --time, --site", "as in a launch"),
    ("--dry-run, --explain, --wait, --strict, --json", "as in a launch"),
]
_PAGES = {
    "overlap-test": Page(
        usage=["overlap-test [FLAGS OF A LAUNCH]"],
        about="How much communication overlaps with computation: each alone, then both at the same time, on every "
        "rank. It prints the times, the share of the communication that was hidden, and how much each slows the other "
        "(exercise 0, part 3).",
        flags=_SHARED,
        examples=[("overlap-test -n 2", "two nodes")],
    ),
    "health": Page(
        usage=["health [FLAGS OF A LAUNCH]"],
        about="A check of at most two minutes before a long run: matrix products, memory and messages of each GPU (on "
        "a CPU machine: each process), each node, and each pair of neighbouring nodes. It names a part that is slower "
        "than the others, or slower than half of what the site's links allow.",
        flags=[("--slow-rank N", "slow this rank down, to see what a failure looks like"), *_SHARED],
        exits=[
            ("0", "nothing slow was found, or it cannot tell"),
            ("1", "a slow part was found"),
            ("2", "wrong request"),
        ],
        examples=[("health -n 4", "four nodes"), ("health -n 3 -g 1 --slow-rank 2", "a failure, as an example")],
    ),
}


def page(arguments: list[str]) -> str:
    return as_text(_PAGES[arguments[0]])


def _launch(command: str, arguments: list[str]) -> int:
    """Launch a test; returns the exit code. Raises RequestError: the request is not valid."""
    if arguments and not arguments[0].startswith("-"):
        raise RequestError(
            f"{command}: takes the flags of a launch, as in slurm.sh {command} -n 2, and not {arguments[0]!r}"
        )
    number = read_line(arguments, declared()).given.get("--exercise", "0")
    if number != "0":
        raise RequestError(f"{command}: is a test of exercise 0: leave out -e {printable(str(number))}")
    from harness.cli.launch.launch import launch_argv

    return launch_argv(["-e", "0", f"--{command}", *arguments])


overlap_test = partial(_launch, "overlap-test")
health = partial(_launch, "health")
