"""Whose a file is, and by which name people know that user. Standard library only; knows no file's content."""

from __future__ import annotations

import os
import pwd
from pathlib import Path


def user_name(number: int) -> str:
    """The user's name; the number in digits where it has none here, as in a container."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def this_user() -> str:
    """The name of the user who runs this program."""
    return user_name(os.getuid())


def owner_of(path: Path) -> str | None:
    """The name of the file's owner where it is another user than this one; None: it is this one's.

    Raises:
        OSError: the file is missing, or its folder may not be entered.
    """
    owner = path.stat().st_uid
    return None if owner == os.geteuid() else user_name(owner)
