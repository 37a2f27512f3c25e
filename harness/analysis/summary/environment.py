"""With what a run's training ran. Fields only."""

from __future__ import annotations

from typing import Annotated

import msgspec

from harness.analysis.summary.base import SummaryPart


class ContainerImage(SummaryPart, kw_only=True):
    """The image of Apptainer or Singularity in which the training ran."""

    path: str
    """As the container's program says it."""
    id: str | None = None
    """Of a .sif file, the number that was drawn when it was built, in hexadecimal. Null for a folder, or if the
    container does not see the file."""
    created_unix_s: Annotated[int, msgspec.Meta(ge=0, lt=1 << 60)] | None = None
    """When it was built, by the same header."""
    labels: dict[str, str] = {}
    """Of the image."""


class RunEnvironment(SummaryPart, kw_only=True):
    """Python, packages, variables and system of the training on some nodes: `environment/*.json`, written by one
    process of each node. Nodes on which all of it is equal are one entry."""

    nodes: list[str]
    """Their hosts."""
    python: str | None = None
    """Version of Python."""
    executable: str | None = None
    """The Python that ran."""
    prefix: str | None = None
    """The folder of its environment."""
    packages: dict[str, str] = {}
    """All that are installed, with their versions. Names are normalised: `flash-attn`."""
    used: list[str] | None = None
    """Packages of which a module or library was loaded when the training ended. Null if it did not end by itself."""
    variables: dict[str, str] = {}
    """Those that libraries of a training read, and Slurm's binding, as the training had them. Without secrets, and
    without what differs in each run."""
    modules: list[str] = []
    """Environment modules that were loaded."""
    kernel: str | None = None
    """Release of Linux."""
    cpu: str | None = None
    """Name of the host's processor."""
    governor: str | None = None
    """By which the clock of the first core is chosen. Null if Linux does not say."""
    driver: str | None = None
    """Version of the GPU's driver. Null without a GPU."""
    cuda: str | None = None
    """Version with which PyTorch was built."""
    nccl: str | None = None
    """Version that PyTorch uses."""
    image: ContainerImage | None = None
    """Null outside of a container."""
