"""What a fault is: how it is injected, how its run must end, what the user must be told, what must still be there."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from harness.run.record import State

if TYPE_CHECKING:
    from tests.faults.scene import Scene

Place = Literal["slurm", "local"]
BOTH: tuple[Place, ...] = ("slurm", "local")
SLURM: tuple[Place, ...] = ("slurm",)
LOCAL: tuple[Place, ...] = ("local",)
# refused: there is no run, and nothing of one is left. unknown: the harness says that it cannot tell.
End = State | Literal["refused", "unknown"]
SLURMS_WORD: Mapping[End, str] = {
    "completed": "COMPLETED",
    "failed": "FAILED",
    "cancelled": "CANCELLED",
    "timeout": "TIMEOUT",
    "node_fail": "NODE_FAIL",
}


@dataclass(frozen=True)
class Setting:
    """The run that the fault meets.

    training: lines that a light training's script begins with; "real": the exercise's own trains. launcher: light:
    without PyTorch. disk_mib: its runs folder is a disk of this size. own: it needs a cluster of its own.
    """

    training: str = ""
    launcher: Literal["light", "accelerate"] = "light"
    nodes: int = 1
    ranks: int = 1
    steps: int = 5
    words: tuple[str, ...] = ()
    site: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    disk_mib: int = 0
    own: bool = False


@dataclass(frozen=True)
class Fault:
    """A row of the table.

    what, kept, then: for the page: what happens, what is kept, what to type. state, exit_code: how the run must end.
    tells: what the command `told_by` prints, with … for what varies. keeps: files of the run that must be there and
    whole, as patterns. takes: files that the fault itself takes away. slurm: Slurm's own word, where it is not the
    state's. prepare: what is done before the launch.
    """

    name: str
    what: str
    inject: Callable[[Scene], None]
    state: End
    tells: str
    kept: str
    then: str
    told_by: str = "status"
    keeps: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()
    where: tuple[Place, ...] = BOTH
    quick: tuple[Place, ...] = ()
    setting: Setting = Setting()
    exit_code: int | None = None
    slurm: str = ""
    prepare: Callable[[Scene], None] | None = None

    def is_told_in(self, text: str) -> bool:
        return re.search(re.escape(self.tells).replace("…", ".*"), text) is not None

    @property
    def slurms_word(self) -> str:
        return self.slurm or SLURMS_WORD.get(self.state, "")


def nothing(_scene: Scene) -> None:
    """The fault is in the setting."""
