"""The site's container: the words that start a program in it, and whether its image is whole as far as its first bytes
tell. A SIF's header: https://github.com/apptainer/sif, pkg/sif/sif.go."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.common.display.format import amount
from harness.common.errors import RequestError
from harness.common.paths import README_OF_IMAGES
from harness.launch.argv import NODE_NAME, Word, concatenated, from_site, read_here, shown
from harness.launch.before.lookup import why_missing
from harness.site.site import Site

_SIF = b"SIF_MAGIC\0"
_SIF_AT = 32
_DATA_AT = 112  # where the data begin, and their size, as two int64
_HEADER = 128


def why_no_image(path: Path) -> str:
    """What is wrong with an image that exists, as the rest of a sentence; empty if nothing is, or only the runtime can
    tell, as of a sandbox."""
    if path.is_dir():
        return ""
    try:
        with path.open("rb") as file:
            head = file.read(_HEADER)
    except OSError as error:
        return f"cannot be read ({error.strerror}): its owner types chmod a+r {path}"
    if head[_SIF_AT : _SIF_AT + len(_SIF)] != _SIF or len(head) < _HEADER:
        return ""
    start, length = struct.unpack_from("<qq", head, _DATA_AT)
    size = path.stat().st_size
    if size >= start + length:
        return ""
    from harness.run.ended import COPY  # here: a dry run reads no run

    return f"is incomplete ({amount(size)} of {amount(start + length)}): {COPY}"


def container_words(
    site: Site, image: Word | None, folders: Sequence[Word], *, folder: str, variables: Sequence[str], cpus: int | None
) -> list[Word]:
    """The words before the program; empty without a container.

    folders: that the program needs, by the same name as outside; the first two are always there. folder: where it
    starts. variables: the names of those that count more than the image's. cpus: of its node, if it is known.

    Raises RequestError: a folder's name cannot be written as a bind, or the site has no Slurm for its runtime.
    """
    container = site.container
    if container is None or image is None:
        return []
    if container.in_srun and site.scheduler not in ("slurm", "allocation"):
        raise RequestError(
            f"site {site.name}: container.runtime is {container.runtime}, which is an option of Slurm's srun, and its "
            f"scheduler is {site.scheduler}: take apptainer or singularity, or none"
        )
    for path in map(shown, folders):
        if set(path) & set(",:"):
            raise RequestError(
                f"{path}: {container.program} cannot bind a path with a comma or a colon in its name: "
                "rename it, or use another place"
            )
    binds = _outermost([*folders[:2], *map(from_site, container.binds), *folders[2:]])
    if not container.in_srun:
        return [container.program, *container.arguments, *(w for bind in binds for w in ("--bind", bind)), image]
    # A step on this node, beside the one that starts it and with all that the job has there. What it is not told it
    # takes from the variables of the step around it: nodes, tasks, the binding to cores. With --mem=0 it shares the
    # job's memory, all of which is the first step's.
    step: list[Word] = ["--overlap", "--mem=0", "--nodes=1", "--ntasks=1", f"--nodelist={NODE_NAME}"]
    step += [f"--cpus-per-task={cpus}"] if cpus else []
    # pyxis passes the job's variables on, but the image's own value of a variable counts more unless it is named.
    names = [*variables, "RUN_DIR", "MASTER_ADDR", "MASTER_PORT"]
    mounts = [word for bind in binds for word in (",", bind)][1:]
    return [
        *(container.program, *step, "--cpu-bind=none", "--export=ALL", *container.arguments),
        f"--container-workdir={folder}",
        concatenated("--container-mounts=", *mounts),
        f"--container-env={','.join(names)}",
        concatenated("--container-image=", image),
    ]


def _outermost(binds: Sequence[Word]) -> list[Word]:
    """The binds without those inside of a folder that is bound by its own name."""
    texts = {shown(bind): bind for bind in binds}
    plain = [text for text in texts if ":" not in text and "/../" not in text]
    inside = (text in plain and any(text.startswith(f"{each}/") for each in plain) for text in texts)
    return [bind for bind, is_inside in zip(texts.values(), inside, strict=True) if not is_inside]


def why_wrong_image(site: Site, image: Word, environ: Mapping[str, str]) -> str:
    """Why the container cannot be started from the image's file, as the rest of a sentence; empty if it can."""
    if why := why_missing(image, environ, "file" if site.in_srun else "image"):
        return f"{why}: build it ({README_OF_IMAGES})"
    if site.in_srun:
        return ""
    why = why_no_image(Path(read_here(image, environ).text))
    return f"{shown(image)} {why}" if why else ""


def of_registry(site: Site, image: Word) -> bool:
    """Whether the image is the name of one that pyxis fetches, and no file."""
    return site.in_srun and isinstance(image, str) and not image.startswith("/")
