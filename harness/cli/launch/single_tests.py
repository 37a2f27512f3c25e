"""`slurm.sh overlap-test` and `slurm.sh health`: launches of exercise 0 that run one test."""

from __future__ import annotations

from harness.cli.command_line import declared, read_line
from harness.common.errors import RequestError
from harness.common.printable import printable

_OVERLAP_TEST = """Usage: slurm.sh overlap-test [FLAGS OF A LAUNCH]

  How much communication hides behind computation here: each alone, then both at once, on every rank. It says the
  times, the share that was hidden of what could be, and what each costs the other (exercise 0, part 3).

  bash slurm.sh overlap-test -n 2
"""
_HEALTH = """Usage: slurm.sh health [FLAGS OF A LAUNCH]

  A check of at most two minutes before a long run: matrix products, memory and messages of every GPU (on a CPU machine:
  process), node and pair of neighbouring nodes. It names the place that is slower than its peers, or than half of what
  the site's links allow. Exit code: 0 nothing slow was found (also: cannot tell), 1 fail, 2 the request was wrong.

  bash slurm.sh health -n 4
  bash slurm.sh health -n 3 -g 1 --slow-rank 2     what a failure looks like
"""
_SHARED = """
  -n, -g, -a, -p, -q, --time, --site, --dry-run, --wait, --strict, --json: as in a launch (slurm.sh --help)
"""


def overlap_test(words: list[str]) -> int:
    """Launch the overlap test; returns the exit code. Raises RequestError: the request is not valid."""
    return _launch("overlap-test", _OVERLAP_TEST, words)


def health(words: list[str]) -> int:
    """Launch the health check; returns the exit code. Raises RequestError: the request is not valid."""
    return _launch("health", _HEALTH, words)


def _launch(command: str, usage: str, words: list[str]) -> int:
    if {"-h", "--help"} & set(words):
        print(usage + _SHARED, end="")
        return 0
    if words and not words[0].startswith("-"):
        raise RequestError(
            f"{command}: takes the words of a launch, as in slurm.sh {command} -n 2, and not {words[0]!r}"
        )
    number = read_line(words, declared()).given.get("--exercise", "0")
    if number != "0":
        raise RequestError(f"{command}: is a test of exercise 0: drop -e {printable(str(number))}")
    from harness.cli.launch.launch import launch_argv

    return launch_argv(["-e", "0", f"--{command}", *words])
