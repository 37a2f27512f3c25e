"""What the command says without a checkout: its help, and that launching needs one. Knows what does not launch."""

from __future__ import annotations

from harness.cli.commands import COMMANDS
from harness.common.errors import RequestError
from harness.common.paths import PROGRAM


def answer_without_launch(argv: list[str]) -> int:
    """The help page for `--help` or nothing. Raises RequestError for every word that would launch."""
    if not argv or argv[0] in ("-h", "--help"):
        print(commands_help())
        return 0
    raise RequestError(
        f"{argv[0]}: launching needs the checkout, and this is the installed analysis only: "
        "run `bash slurm.sh` there"
    )


def commands_help() -> str:
    """The commands that work on runs and traces wherever they came from."""
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
