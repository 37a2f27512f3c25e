"""The monitor's error; not a common one: its own command and its readers say it in their own ways."""

from __future__ import annotations

import sys
from collections.abc import Callable


class MonitorError(Exception):
    """What is wrong with the request or with a folder of samples, in one sentence."""


def exit_code_of(act: Callable[[], None]) -> int:
    """0: done; 1: the files cannot be written or read; 2: the request was wrong. The sentence goes to stderr."""
    try:
        act()
    except MonitorError as error:
        print(f"monitor: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"monitor: {error.filename or 'the samples'}: {error.strerror or error}", file=sys.stderr)
        return 1
    return 0
