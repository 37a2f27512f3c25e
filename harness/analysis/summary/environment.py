"""With what a run's training ran. Fields only."""

from __future__ import annotations

from harness.analysis.summary.base import SummaryPart


class RunEnvironment(SummaryPart, kw_only=True):
    """Packages, variables and system of the training on some nodes: `environment/*.json`, written by one process of
    each node. Nodes on which all of it is equal are one entry."""

    nodes: list[str]
    """Their hosts."""
    packages: dict[str, str] = {}
    """All that are installed, with their versions. Names are normalised: `flash-attn`."""
    used: list[str] | None = None
    """Packages of which a module or library was loaded when the training ended. Null if it did not end by itself."""
    variables: dict[str, str] = {}
    """Those that libraries of a training read, and Slurm's binding, as the training had them. Without secrets, and
    without what differs in each run."""
    modules: list[str] = []
    """Environment modules that were loaded."""
    system: dict[str, str] = {}
    """By name: version of `python`, its `executable`, `kernel`, `host processor`, its `governor`; on a GPU `nvidia
    driver`, `cuda` and `nccl`; in a container of Apptainer or Singularity the `image`, for a .sif file that the
    container sees also its `image id` and time, `image built`, and the image's labels."""
