"""Which site this machine is, and which GPUs it lets us use."""

from __future__ import annotations

import fnmatch
import os
import re
import shutil
import socket
from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from harness.common.errors import RequestError
from harness.experiment.yaml_file import parse_yaml
from harness.site.site import SITES, Detect, Site, load_site, site_names
from harness.site.slurm_commands import controller_answers

_NAMES_GPU = re.compile(r"\d+|(GPU|MIG)-\S+")


class SiteChoice(NamedTuple):
    site: Site
    reason: str


def choose_site(asked: str | None, environ: Mapping[str, str] = os.environ) -> SiteChoice:
    """The site to use: `--site`, then HARNESS_SITE (empty is unset), then detection, else `local`. Raises RequestError:
    the site named does not exist, or its file is wrong."""
    if asked is not None:
        return SiteChoice(site=load_site(asked), reason="--site")
    if environ.get("HARNESS_SITE"):
        # slurm.sh lists in HARNESS_COURSE what it took from the file.
        shared = "HARNESS_SITE" in environ.get("HARNESS_COURSE", "").split()
        source = "HARNESS_SITE in configs/course.env" if shared else "HARNESS_SITE"
        return SiteChoice(site=load_site(environ["HARNESS_SITE"], source), reason=source)
    return _detected(environ)


def site_to_show() -> tuple[SiteChoice, str | None]:
    """The site for a page that only informs, and what is wrong with HARNESS_SITE."""
    try:
        return choose_site(None), None
    except RequestError as error:
        return _detected(os.environ), str(error)


def _detected(environ: Mapping[str, str]) -> SiteChoice:
    host, cluster = socket.gethostname(), environ.get("SLURM_CLUSTER_NAME")
    has_slurm = shutil.which("sbatch") is not None  # another machine may have such a host name
    for name in site_names():
        # Only the `detect` block of a site file: reading all files in full costs a tenth of a dry run.
        text = (SITES / f"{name}.yaml").read_text(encoding="utf-8")
        block = re.search(r"^detect:\n((?: .*\n)+)", text, re.MULTILINE)
        detect = Detect(**parse_yaml(block[1])) if block else Detect()
        if cluster and cluster in detect.clusters:
            return SiteChoice(site=load_site(name), reason=f"SLURM_CLUSTER_NAME is {cluster}")
        if has_slurm and any(fnmatch.fnmatch(host, pattern) for pattern in detect.hosts):
            return SiteChoice(site=load_site(name), reason=f"this host is {host}")
    if controller_answers():
        return SiteChoice(site=load_site("slurm"), reason="sbatch is here and its controller answers")
    why = "sbatch is here but its controller does not answer" if has_slurm else "no sbatch on this machine"
    return SiteChoice(site=load_site("local"), reason=why)


def visible_gpus(environ: Mapping[str, str] = os.environ) -> list[str]:
    """The GPUs a run may use, as CUDA_VISIBLE_DEVICES names them: by number or UUID, up to the first wrong name."""
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return list(takewhile(_NAMES_GPU.fullmatch, map(str.strip, visible.split(","))))
    gpus = Path("/proc/driver/nvidia/gpus")
    found = gpus.iterdir() if gpus.is_dir() else Path("/dev").glob("nvidia[0-9]*")
    return [str(number) for number, _ in enumerate(found)]
