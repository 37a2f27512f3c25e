"""Why a training in a container did not begin, from what Apptainer, Singularity or its Python wrote into the log."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from harness.common.bounded_read import read_end
from harness.common.printable import printable
from harness.format.format import cut
from harness.launch.image_file import COPY
from harness.site.site import Container

_LOG_BYTES = 1 << 18
_MOST_TOLD = 300
_BINDS = ("APPTAINER_BIND", "APPTAINER_BINDPATH", "SINGULARITY_BIND", "SINGULARITY_BINDPATH")


# As Apptainer and Singularity write it, in a terminal's red; Python's logging puts one blank after its colon.
_SAID = re.compile(r"^(?:\x1b\[\d+m)?(?:FATAL: {3}|ERROR {2}: )(?P<said>.+)$", re.MULTILINE)


class Place(NamedTuple):
    """Where it failed, and how the site has the container."""

    hosts: str
    container: Container
    image: str


_Known = tuple[tuple[str, Callable[[re.Match[str], Place], str]], ...]


def why_not_begun(log: Path, hosts: Sequence[str], container: Container, image: str) -> str:
    """A sentence on what kept the container or its Python from starting; empty if the log says nothing of it.

    log: of a run some ranks of which never wrote a line. hosts: of the nodes that failed.
    """
    try:
        text = read_end(log, _LOG_BYTES).decode(errors="replace")
    except OSError:
        return ""
    where = " and ".join(dict.fromkeys(map(printable, hosts))) or "its node"
    place = Place(where, container, printable(image))
    said = [found["said"] for found in _SAID.finditer(text)]
    sentence = _first(_OF_APPTAINER, "\n".join(said), place) or _first(_OF_PYTHON, text, place)
    if said and not sentence:
        sentence = f"the container did not start on {where}: {printable(said[0])}"
    return cut(sentence, _MOST_TOLD)


def _first(known: _Known, text: str, place: Place) -> str:
    """The sentence of the first pattern that is in the text."""
    for pattern, sentence in known:
        if found := re.search(pattern, text, re.MULTILINE | re.IGNORECASE):
            return sentence(found, place)
    return ""


def _bind(found: re.Match[str], place: Place) -> str:
    """Whose bind it is: the site's, or a variable's that the job inherited. Asked in the job, which has them."""
    path = found["path"]
    binds = (os.path.expandvars(bind).partition(":")[0] for bind in place.container.binds)
    variables = [name for name in _BINDS if path in re.split("[:,]", os.environ.get(name, ""))]
    if path in binds:
        remedy = "make it, or take it out of container.binds of the site file"
    elif variables:
        remedy = (
            f"{variables[0]} of your shell or of a module names it: unset it, or take the folder out of it"
        )
    else:
        remedy = "see what else adds binds there: bash slurm.sh doctor --in-job"
    return f"{printable(path)}, which is bound into the container, does not exist on {place.hosts}: {remedy}"


def _torch(found: re.Match[str], place: Place) -> str:
    return (
        f"the container's Python ({printable(place.container.python)}) has no {printable(found['module'])}: name "
        "another one in container.python, or build the image with it (containers/README.md)"
    )


_OF_APPTAINER: _Known = (
    (
        r"could not open image .*(no such file|does not exist)",
        lambda _, place: (
            f"the image {place.image} does not exist on {place.hosts}: put it on a file system that all "
            "nodes share"
        ),
    ),
    (
        r"could not open image .*(not readable|permission denied)",
        lambda _, place: (
            f"the image {place.image} cannot be read on {place.hosts}: its owner types chmod a+r"
        ),
    ),
    (
        r"image format not recognized",
        lambda _, place: f"{place.image} is no image of Apptainer or Singularity: {COPY}",
    ),
    (
        r"(architecture \(|image targets ')(?P<built>\w+)['\)]?.*(the host's \(|cannot run on ')(?P<here>\w+)",
        lambda found, place: (
            f"the image {place.image} was built for {found['built']}, and {place.hosts} is "
            f"{found['here']}: build it on such a machine"
        ),
    ),
    (r"mount source (?P<path>.+?) doesn't exist", _bind),
    (
        r"user namespace",
        lambda _, place: (
            f"{place.hosts} does not let users make user namespaces, which this "
            f"{place.container.runtime} needs: ask its administrators, or drop --userns if it has setuid"
        ),
    ),
    (
        r"no space left on device",
        lambda _, place: (
            f"a disk is full on {place.hosts}: the container could not be set up; its temporary files go "
            "to APPTAINER_TMPDIR, or TMPDIR"
        ),
    ),
    (
        r"bad superblock|image is corrupted|squashfs.*(error|corrupt)|can't find a (valid )?squashfs",
        lambda _, place: f"the image {place.image} is damaged or incomplete: {COPY}",
    ),
    (
        r'"(?P<program>[^"\n]+)": executable file not found in \$PATH',
        lambda found, place: (
            f"the container has no program {printable(found['program'])}: name its Python in "
            "container.python of the site file"
        ),
    ),
)
_OF_PYTHON: _Known = (  # and of the job's script
    (
        r"^(?P<neither>neither \w+ nor \w+) is on the PATH of ",
        lambda found, place: (
            f"{found['neither']} is on the PATH of {place.hosts}: name the module that brings one in "
            "the site file (modules), or its path (container.command)"
        ),
    ),
    (
        r"SyntaxError: future feature annotations is not defined",
        lambda _, place: (
            f"the container's Python ({printable(place.container.python)}) is older than 3.8: name another "
            "one in container.python"
        ),
    ),
    (
        r"^(?P<said>\S+ is Python [\d.]+, and .*)$",
        lambda found, place: (
            f"in the container, {printable(found['said'])}: name another one in container.python"
        ),
    ),
    (r"ModuleNotFoundError: No module named '(?P<module>torch|accelerate|deepspeed)'", _torch),
)
