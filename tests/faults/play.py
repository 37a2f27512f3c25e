"""Plays many faults at once: each run waits most of its time. What is said of them is asked later, one by one."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from tests.faults.fault import Fault, Place
from tests.faults.scene import Scene
from tests.leftovers import remove_at_the_end
from tests.slurm.slurm_cluster import Slurm, start
from tests.waiting import limit_s

AT_ONCE = 6  # two cores load six PyTorches in twenty seconds


class Case(NamedTuple):
    """A fault at a place."""

    fault: Fault
    place: Place

    @property
    def name(self) -> str:
        return f"{self.place}-{self.fault.name}"

    @property
    def quick(self) -> bool:
        return self.place in self.fault.quick


class Stage:
    """The clusters and disks of the faults that are played; a context manager, which ends all of them.

    common: the cluster of the session, for all that need none of their own.
    """

    def __init__(self, common: Callable[[], Slurm]) -> None:
        self.common = common
        self._open = ExitStack()
        # Not pytest's own folder: unix sockets allow some hundred characters of path.
        self.folder = Path(self._open.enter_context(tempfile.TemporaryDirectory(prefix="faults-")))
        remove_at_the_end(self.folder)
        self.scenes: list[Scene] = []

    def __enter__(self) -> Stage:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        for scene in self.scenes:
            for action in reversed(scene.at_the_end):
                action()
            scene.clean_up()
        self._open.__exit__(kind, error, where)

    def cluster(self) -> Slurm:
        """A cluster, which ends with the stage. Raises NotPossibleHereError."""
        folder = Path(tempfile.mkdtemp(prefix="c", dir=self.folder))
        slurm, keeper = start(folder / "c")
        self._open.callback(keeper.close)
        return slurm

    def disk(self, folder: Path, mib: int) -> None:
        """Put a disk of this size at the folder. Raises CalledProcessError: this machine does not allow it."""
        folder.mkdir(parents=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", folder], check=True, timeout=limit_s())
        self._open.callback(subprocess.run, ["umount", "--lazy", str(folder)], check=False, timeout=limit_s())

    def play(self, cases: Iterable[Case]) -> dict[str, Scene]:
        """Every case to its end, by its name."""
        made = {case.name: self._scene(number, case) for number, case in enumerate(cases)}
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(_play, made.values()))
        return made

    def _scene(self, number: int, case: Case) -> Scene:
        scene = Scene(case.fault, case.place, self.folder / f"{number}")
        scene.folder.mkdir()
        scene.marks.mkdir()
        setting = case.fault.setting
        if setting.disk_mib:  # before its cluster: nodes see what was there when they started
            self.disk(scene.runs, setting.disk_mib)
        else:
            scene.runs.mkdir()
        if case.place == "slurm":
            scene.slurm = self.cluster() if setting.own or setting.disk_mib else self.common()
        self.scenes.append(scene)
        return scene


def _play(scene: Scene) -> None:
    try:
        if scene.fault.prepare is not None:
            scene.fault.prepare(scene)
        scene.launch()
        scene.fault.inject(scene)
        scene.wait_for_end()
        for action in reversed(scene.at_the_end):
            action()
        scene.at_the_end.clear()
    except BaseException as error:  # noqa: BLE001  # of a thread: the fault's own test raises it
        scene.broken = error
