"""Whose a file is, by which name people know that user, and whom to ask where permission is missing.

Standard library only; knows no file's content.
"""

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

    Raises OSError: the file is missing, or its folder may not be entered.
    """
    owner = path.stat().st_uid
    return None if owner == os.geteuid() else user_name(owner)


def whose(path: Path) -> str:
    """Which other user denies access to a path, as the end of a sentence: `: it belongs to anna; ask anna for access`.

    Empty if no other user does: the path is this user's own, or does not exist.
    """
    place = _in_the_way(path)
    try:
        owner = owner_of(place)
    except OSError:
        return ""
    what = "it" if place == path else str(place)
    return "" if owner is None else f": {what} belongs to {owner}; ask {owner} for access"


def _in_the_way(path: Path) -> Path:
    """The first folder above that may not be entered; else the path, or the folder that it would be made in."""
    above = list(reversed(path.absolute().parents))
    for outer, folder in zip([above[0], *above], above, strict=False):
        if not os.access(folder, os.X_OK):
            return folder if os.access(folder, os.F_OK) else outer
    return path if os.path.lexists(path) else path.parent
