"""The words before a program that runs inside the site's container. Knows its runtimes, and no exercise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from harness.common.errors import RequestError
from harness.launch.argv import (
    MASTER_ADDR,
    MASTER_PORT,
    RUN_DIR,
    Var,
    Word,
    comma_joined,
    from_site,
    join,
    prefixed,
    read_here,
    shown,
)
from harness.launch.image_file import why_no_image
from harness.launch.lookup import why_missing
from harness.site.site import Container, Site

SLURM_NODE = Var(var="SLURMD_NODENAME")


class Inside(NamedTuple):
    """What a program finds inside. own: folders that it needs, by the same name as outside; the first two are always
    there. variables: the names of those that count more than the image's. cpus: of its node, if it is known."""

    own: Sequence[Word]
    folder: str
    variables: Sequence[str]
    cpus: int | None


def container_words(site: Site, image: Word | None, inside: Inside) -> list[Word]:
    """The words before the program; empty without a container.

    Raises:
        RequestError: a folder's name cannot be written as a bind, or the site has no Slurm for its runtime.
    """
    container = site.container
    if container is None or image is None:
        return []
    if container.in_srun and site.scheduler != "slurm":
        raise RequestError(
            f"site {site.name}: container.runtime is {container.runtime}, which is an option of Slurm's srun, and its "
            f"scheduler is {site.scheduler}: take apptainer or singularity, or none"
        )
    for path in map(shown, inside.own):
        if set(path) & set(",:"):
            raise RequestError(
                f"{path}: {container.program} cannot bind a path with a comma or a colon in its name: "
                "rename it, or use another place"
            )
    ours = list(inside.own)
    binds = list(dict.fromkeys([*ours[:2], *map(from_site, container.binds), *ours[2:]]))
    if container.in_srun:
        return [container.program, *_step(inside.cpus), *_of_pyxis(container, image, binds, inside)]
    flags = [word for bind in binds for word in ("--bind", bind)]
    return [container.program, *container.arguments, *flags, image]


def _step(cpus: int | None) -> list[Word]:
    """A step on this node, beside the one that starts it and with all that the job has there.

    A step takes what it is not told from the variables of the step around it: nodes, tasks, the binding to cores. With
    --mem=0 it shares the job's memory, all of which is the first step's.
    """
    size = [f"--cpus-per-task={cpus}"] if cpus else []
    place: list[Word] = ["--overlap", "--mem=0", "--nodes=1", "--ntasks=1", join("--nodelist=", SLURM_NODE)]
    return [*place, *size, "--cpu-bind=none", "--export=ALL"]


def _of_pyxis(container: Container, image: Word, binds: Sequence[Word], inside: Inside) -> list[Word]:
    """pyxis passes the job's variables on, but the image's own value of a variable counts more unless it is named."""
    names = [*inside.variables, *(variable.var for variable in (RUN_DIR, MASTER_ADDR, MASTER_PORT))]
    return [
        *container.arguments,
        f"--container-workdir={inside.folder}",
        prefixed("--container-mounts=", comma_joined(binds)),
        prefixed("--container-env=", comma_joined(names)),
        prefixed("--container-image=", image),
    ]


def why_wrong_image(site: Site, image: Word, environ: Mapping[str, str]) -> str:
    """Why the container cannot be started from the image's file, as the rest of a sentence; empty if it can.

    A compute node of a cluster may have another architecture than this machine, which is then not compared.
    """
    in_srun = site.container is not None and site.container.in_srun
    if why := why_missing(image, environ, "file" if in_srun else "image"):
        return f"{why}: build it (containers/README.md)"
    if in_srun:
        return ""
    why = why_no_image(Path(read_here(image, environ).text), starts_here=site.scheduler == "local")
    return f"{shown(image)} {why}" if why else ""


def of_registry(site: Site, image: Word) -> bool:
    """Whether the image is the name of one that pyxis fetches, and no file."""
    in_srun = site.container is not None and site.container.in_srun
    return in_srun and isinstance(image, str) and not image.startswith("/")
