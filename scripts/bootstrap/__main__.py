"""Makes and refreshes the virtual environment that slurm.sh hands over to.

Runs on the bare Python that slurm.sh found, so it imports the standard library only.
It prints one sentence per line to stderr: stdout belongs to the command that runs next.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

from lock import locked
from refresh import Venv, refresh
from say import BootstrapError, say


def main() -> int:
    """Bring the environment up to date; returns 0, or 1 after one sentence with the reason."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    # -I keeps them from this Python; pip and the venv module start others.
    for name in [name for name in os.environ if name.startswith("PYTHON") and name != "PYTHONPATH"]:
        del os.environ[name]
    arguments = _parse()
    venv = Venv(arguments.venv, arguments.root, tuple(arguments.container or ()), arguments.library_path)
    try:
        with locked(venv.path):
            refresh(venv, arguments.parts)
    except BootstrapError as error:
        say(str(error))
    except OSError as error:
        say(f"{error.filename or venv.path}: {error.strerror or error}; HARNESS_VENV names another place for .venv.")
    except KeyboardInterrupt:
        say("Interrupted; the next start installs what is missing.")
        return 130
    else:
        return 0
    return 1


def _interrupt(number: int, _frame: object) -> None:
    # Ctrl-C, scancel and a lost terminal end in the same way: the lock and an unfinished venv must not remain.
    raise KeyboardInterrupt(number)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="slurm.sh")
    parser.add_argument("--root", type=Path, required=True, help="the checkout")
    parser.add_argument("--venv", type=Path, required=True, help="where the environment belongs")
    parser.add_argument("--container", nargs=2, metavar=("COMMAND", "IMAGE"), help="Python lives in here")
    parser.add_argument("--library-path", default="", help="LD_LIBRARY_PATH that this Python needs to start")
    parser.add_argument("parts", nargs="+", help="launcher, or names of extras in pyproject.toml")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
