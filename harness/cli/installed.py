"""The command without a checkout: it shows its help, and refuses to launch. Knows which commands do not launch."""

from __future__ import annotations

from harness.cli.commands import COMMANDS
from harness.common.errors import RequestError
from harness.common.paths import PROGRAM


def answer_without_launch(argv: list[str]) -> int:
    """Print the help page for `--help` or no argument.

    Raises:
        RequestError: any other argument would launch.
    """
    if not argv or argv[0] in ("-h", "--help"):
        print(commands_help())
        return 0
    raise RequestError(
        f"{argv[0]}: launching needs the checkout, and this is the installed analysis only: "
        "run `bash slurm.sh` there"
    )


def commands_help() -> str:
    """The help page: the commands that work on runs and traces of any origin."""
    working = {name: entry.help for name, entry in COMMANDS.items() if not entry.launches}
    width = max(map(len, working))
    return "\n".join(
        [
            f"Usage: {PROGRAM} COMMAND RUN|PATH…   (each has its own --help)",
            "",
            *(f"  {name:<{width}}  {text}" for name, text in working.items()),
            "",
            "A run is named by its path, or by its id where HARNESS_RUNS names the folder of the runs; for example",
            f"  {PROGRAM} report traces/ --html report.html",
            "Launching needs the checkout: run `bash slurm.sh --help` there.",
        ]
    )
