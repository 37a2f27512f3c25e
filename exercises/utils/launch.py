"""accelerate or torchrun, with the training's own exit status.

Both launchers turn every failure into exit status 1 and so hide that of the failed rank. Start this module instead of
them: `python -m exercises.utils.launch accelerate|torchrun ARGUMENTS…`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

from exercises.utils.announce import announce


def _accelerate(arguments: list[str]) -> None:
    if os.environ.get("ACCELERATE_USE_CPU") == "true":
        # Otherwise DeepSpeed looks for GPUs and warns about their absence in each process, also in this one.
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    from accelerate.commands.launch import launch_command, launch_command_parser

    launch_command(launch_command_parser().parse_args(arguments))


def _torchrun(arguments: list[str]) -> None:
    from torch.distributed import run

    run.run(run.parse_args(arguments))  # type: ignore[no-untyped-call]


LAUNCHERS: dict[str, Callable[[list[str]], None]] = {"accelerate": _accelerate, "torchrun": _torchrun}


def shell_status(code: int) -> int:
    """An exit status as a shell reports it: 128 + n for signal n."""
    return 128 - code if code < 0 else code


def launch(launcher: str, arguments: list[str]) -> int:
    """Run the launcher; returns 0, or the exit status of the first rank that failed."""
    announce(f"starting {launcher}, which imports PyTorch")
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    announce("starting the ranks, each of which imports PyTorch")
    try:
        LAUNCHERS[launcher](arguments)
    except ChildFailedError as error:
        return shell_status(error.get_first_failure()[1].exitcode)
    except subprocess.CalledProcessError as error:  # accelerate with a single process
        return shell_status(error.returncode)
    except SignalException as error:
        return 128 + error.sigval
    return 0


if __name__ == "__main__":
    sys.exit(launch(sys.argv[1], sys.argv[2:]))
