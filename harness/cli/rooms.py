"""The rooms around the core: folders of the harness that a copy of it may lack. Imports none of them.

A room is the folder harness/ROOM with its commands in harness/cli/ROOM, its page in docs, and its line in `ROOMS`. The
command of `plan` is the flag --plan of a launch; the room `study` needs it, since each of its runs keeps its plan.
"""

from __future__ import annotations

from pkgutil import resolve_name
from typing import Any

ROOMS = {  # and the page of each
    "study": "docs/studies.md",
    "live": "docs/watch.md",
    "doctor": "docs/course.md",
    "export": "docs/timelines.md",
    "plan": "docs/theory.md",
}
# What commands of the core and of other rooms ask a room, if it is there: `module:name`.
COURSE_EXPERIMENTS = "harness.study.lessons:course_experiments"
PLAN_OF_LAUNCH = "harness.cli.plan.plan:announced"
SHOW_PLAN = "harness.cli.plan.plan:show_plan"


def of_room(name: str) -> Any:
    """What has this name; None if its room is not in this copy of the harness."""
    try:
        return resolve_name(name)
    except ModuleNotFoundError as error:
        if not f"{name.partition(':')[0]}.".startswith(f"{error.name}."):
            raise
        return None


def lacking_room(error: ModuleNotFoundError) -> str | None:
    """The room whose module was not found; None: it is no module of a room.

    >>> lacking_room(ModuleNotFoundError(name="harness.cli.study")), lacking_room(ModuleNotFoundError(name="numpy"))
    ('study', None)
    """
    package, *folders = (error.name or "").split(".")
    room = next((folder for folder in folders if folder != "cli"), None)
    return room if package == "harness" and room in ROOMS else None


def lacking_sentence(room: str) -> str:
    """What to do about a command whose room is not there."""
    folders = f"harness/{room} and harness/cli/{room}"
    return f"this copy of the harness is without {folders}, which this command needs: put them back"
