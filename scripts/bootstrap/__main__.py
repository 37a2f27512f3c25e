"""Makes and refreshes the virtual environment that slurm.sh hands over to.

Runs on the bare Python that slurm.sh found, so it imports the standard library only.
It prints one sentence per line to stderr: stdout belongs to the command that runs next.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from lock import locked
from refresh import Venv, refresh
from say import BootstrapError, say


def main(root: str, path: str, library_path: str, command: str, image: str, *parts: str) -> int:
    """Bring the environment up to date; returns 0, or 1 after one sentence with the reason.

    root: the checkout. library_path: the LD_LIBRARY_PATH that this Python needs to start. command, image: of the
    container that this Python is in. Each may be empty. parts: launcher, and names of extras in pyproject.toml.
    """
    # Ctrl-C, scancel and a lost terminal end in the same way: the lock and an unfinished venv must not remain.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    # -I keeps them from this Python; pip and the venv module start others.
    for name in [name for name in os.environ if name.startswith("PYTHON") and name != "PYTHONPATH"]:
        del os.environ[name]
    venv = Venv(Path(path), Path(root), (command, image) if command else (), library_path)
    try:
        with locked(venv.path):
            refresh(venv, parts)
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


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
