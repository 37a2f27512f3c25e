"""The options of an sbatch command line, from a script's directives. Starts nothing; knows no run."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path


def options_of(workdir: Path, lines: list[str], log: str = "slurm-%j.out") -> list[str]:
    """The script's directives again, for the command line, where SBATCH_ variables cannot overrule them.

    Split and unquoted as sbatch reads them in the script. Only the log's path is absolute, as sbatch would read a `%`
    in a folder's name as a pattern.
    """
    return [f"--chdir={workdir}", *words_of(lines), log_option(workdir / "logs" / log)]


def words_of(lines: list[str]) -> Iterator[str]:
    """The words of these lines, split and unquoted as sbatch reads them in a script."""
    return (word for line in lines for word in shlex.split(line, comments=True))


def log_option(path: Path) -> str:
    """The option for a log whose name holds the job's id as `%j`, in a folder of any name."""
    return f"--output={str(path.parent).replace('%', '%%')}/{path.name}"
