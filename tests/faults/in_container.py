"""Faults of a real container: its image, its binds, what it inherits, the program that starts it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.container.images import container, sif
from tests.faults.fault import BOTH, LOCAL, SLURM, End, Fault, Place, Setting, nothing
from tests.faults.in_job import LONG, in_window
from tests.faults.in_queue import cancelled
from tests.faults.in_ranks import METRICS, TRACES
from tests.faults.scene import Scene

WHOLE = (METRICS, TRACES, "status.json")
NOTHING = "nothing was started, and nothing is left"
ITS_SCRIPT = "its script and logs"
REPORT = "slurm.sh report RUN"
USERNS = ["exec", "--nv", "--userns"]
TWO = Setting(nodes=2)
# One of each way in which it can end, and what the product does itself.
QUICK = {
    "image-truncated", "image-on-one-node", "odd-paths", "no-setuid", "bind-missing",
    "variables-for-the-inside", "python-without-torch", "cancelled",
}  # fmt: skip
Prepare = Callable[[Scene], None]


def boxed(change: Prepare = nothing, **changes: Any) -> Prepare:
    """The run is in a container, whose section of the site has these changes; then the fault's own preparation."""

    def prepare(scene: Scene) -> None:
        binds = [str(scene.folder), *changes.get("binds", [])]
        scene.container = container(**{**changes, "binds": binds})
        change(scene)

    return prepare


def section(scene: Scene) -> dict[str, Any]:
    assert scene.container is not None
    return scene.container


# --- images -------------------------------------------------------------------------------------------------------


def own_image(change: Callable[[Path], object]) -> Prepare:
    """A copy of the image, changed."""

    def prepare(scene: Scene) -> None:
        copy = scene.folder / "training.sif"
        shutil.copy(sif(), copy)
        change(copy)
        section(scene)["image"] = str(copy)

    return boxed(prepare)


def truncated(image: Path) -> None:
    os.truncate(image, image.stat().st_size // 2)


def a_web_page(image: Path) -> None:
    image.write_text("<html>404 Not Found</html>\n" * 99)


def hidden_on_the_second_node(scene: Scene) -> None:
    folder = scene.folder / "images"
    folder.mkdir()
    shutil.copy(sif(), folder)
    section(scene)["image"] = str(folder / "training.sif")
    assert scene.slurm is not None
    there = f"--target={scene.daemon('slurmd-node2')}"
    scene.slurm.run("nsenter", there, "--mount", "mount", "-t", "tmpfs", "tmpfs", folder)
    scene.at_the_end.append(lambda: scene.slurm.run("nsenter", there, "--mount", "umount", folder))


def odd_paths(scene: Scene) -> None:
    folder = scene.folder / "the \"images\"\nof 'Ana' & Bo; 50% *"
    folder.mkdir()
    shutil.copy(sif(), folder)
    section(scene).update(image=str(folder / "training.sif"), binds=[*section(scene)["binds"], str(folder)])


# --- the shell, and the program -------------------------------------------------------------------------------------


def environment(**variables: str) -> Prepare:
    return lambda scene: scene.env.update(variables)


# --- rows ---------------------------------------------------------------------------------------------------------


def row(  # noqa: PLR0917  # a row of a table
    name: str, what: str, prepare: Prepare, state: End, tells: str, kept: str, then: str, *,
    where: tuple[Place, ...] = LOCAL, **more: Any,
) -> Fault:  # fmt: skip
    """A row of the table. In every run of the tests are those of QUICK, in one place."""
    given = {"inject": nothing, "told_by": "launch" if state == "refused" else "status", **more}
    return Fault(
        name=f"container-{name}", what=what, prepare=prepare, state=state, tells=tells, kept=kept, then=then,
        where=where, quick=where[-1:] if name in QUICK else (), **given,
    )  # fmt: skip


def refused(name: str, what: str, prepare: Prepare, tells: str, then: str, **more: Any) -> Fault:
    return row(name, what, prepare, "refused", tells, NOTHING, then, **more)


def failed(name: str, what: str, prepare: Prepare, tells: str, then: str, **more: Any) -> Fault:
    return row(name, what, prepare, "failed", tells, ITS_SCRIPT, then, **more)


def completed(name: str, what: str, prepare: Prepare, tells: str = "completed, exit 0", **more: Any) -> Fault:
    return row(name, what, prepare, "completed", tells, "everything", REPORT, keeps=WHOLE, exit_code=0, **more)


FAULTS = (
    refused("image-truncated", "the image is incomplete, as after an interrupted copy", own_image(truncated),
            "is incomplete (… MB of … MB): copy it again", "the copy again", where=BOTH),
    failed("image-is-none", "the image is another file, as a web page that says 404", own_image(a_web_page),
           "is no image of Apptainer or Singularity: copy it again", "the copy again"),
    failed("image-on-one-node", "the image is on the first node only", boxed(hidden_on_the_second_node),
           "training.sif does not exist on node2: put it on a file system that all nodes share",
           "the path of the image in the site file", where=SLURM, setting=TWO),
    completed("odd-paths", "the paths of image and binds have blanks, quotation marks, a line break",
              boxed(odd_paths)),
    completed("no-setuid", "Apptainer is installed without setuid, and mounts the image by squashfuse",
              boxed(arguments=USERNS)),
    failed("bind-missing", "a folder of `container.binds` does not exist", boxed(binds=["/nowhere/data"]),
           "/nowhere/data, which is bound into the container, does not exist on …: make it, or take it out of "
           "container.binds",
           "the site file", where=BOTH, setting=TWO),
    failed("bind-of-the-shell-missing", "`SINGULARITY_BIND` of the shell names a folder that does not exist",
           boxed(environment(SINGULARITY_BIND="/nowhere/else")),
           "/nowhere/else, which is bound into the container, does not exist on …: make it, or take it out of "
           "container.binds, or of a variable that names it",
           "`unset SINGULARITY_BIND`, and the same command again"),
    completed("variables-for-the-inside", "`APPTAINERENV_PYTHONPATH` and `SINGULARITYENV_RUN_DIR` are set in the shell",
              boxed(environment(APPTAINERENV_PYTHONPATH="/nowhere", SINGULARITYENV_RUN_DIR="/nowhere")),
              "APPTAINERENV_PYTHONPATH of your shell is not passed to the job", told_by="launch"),
    failed("python-without-torch", "the container's Python has neither accelerate nor PyTorch", boxed(),
           "the container's Python (python3) has no accelerate: name another one in container.python",
           "the site file, or the build of the image", setting=Setting(launcher="accelerate")),
    failed("python-too-old", "the container's Python is older than 3.10", boxed(python="python3.9"),
           "is Python 3.9, and the exercises need 3.10 or newer: name another one in container.python",
           "the site file"),
    failed("python-missing", "the container has no Python of that name", boxed(python="python4"),
           "the container has no program python4: name its Python in container.python", "the site file"),
    row("cancelled", "a run in a container is cancelled", boxed(), "cancelled", "cancelled",
        "metrics and whole traces of the steps so far", REPORT, where=BOTH, inject=in_window(cancelled),
        keeps=(METRICS, TRACES), setting=LONG),
)  # fmt: skip
