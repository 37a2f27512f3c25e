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
from string import Template
from typing import Any, NamedTuple

from harness.common.errors import RequestError
from harness.experiment.yaml_file import parse_yaml
from harness.site.site import SITES, Detect, Site, load_site, site_names
from harness.site.slurm_commands import controller_answers

_NAMES_GPU = re.compile(r"\d+|(GPU|MIG)-\S+")
COURSE = "HARNESS_COURSE_FOLDER"


class SiteChoice(NamedTuple):
    """flags: those that set a field of the experiment that was asked for in the same line, by field."""

    site: Site
    reason: str
    flags: Mapping[str, str] = {}


def choose_site(name: str | None, environ: Mapping[str, str] = os.environ) -> SiteChoice:
    """The site to use, with the files of its course: `--site`, then HARNESS_SITE (empty is unset), then detection, else
    `local`. Raises RequestError: the site named does not exist, or its file is wrong; or the folder that
    HARNESS_COURSE_FOLDER names cannot be read."""
    return with_course(_chosen(name, environ), environ)


def with_course(choice: SiteChoice, environ: Mapping[str, str]) -> SiteChoice:
    """The site with those files of its course's folder that this user can read. Raises RequestError: the folder that
    HARNESS_COURSE_FOLDER names cannot be read."""
    site, given = choice.site, environ.get(COURSE)
    text = given or site.course.folder
    if site.scheduler == "local" or text is None:
        return choice
    folder = Path(Template(text).safe_substitute(environ)).expanduser()
    if not os.access(folder, os.R_OK | os.X_OK) or not folder.is_dir():
        if not given:
            return choice
        raise RequestError(f"{COURSE}={given}: there is no such folder, or you may not read it: correct or unset it")
    names = ("image", "models_dir", "data", "packages")
    there = {name: path for name in names if os.access(path := str(folder / getattr(site.course, name)), os.R_OK)}
    found: dict[str, Any] = {name: there[name] for name in ("models_dir", "data") if name in there}
    if site.container is None or site.container.in_srun:
        there.pop("image", None)  # pyxis reads no .sif
    if site.container is not None and there:
        binds = {"binds": [*site.container.binds, str(folder)]}
        image = {name: path for name, path in there.items() if name == "image"}
        found["container"] = site.container.model_copy(update=binds | image)
    if "packages" in there:
        path = ":".join(filter(None, [there["packages"], site.env.get("PYTHONPATH")]))
        found["env"] = {**site.env, "PYTHONPATH": path}
    if not there:
        return choice
    words = ", ".join(name.removesuffix("_dir") for name in there)
    return SiteChoice(site.model_copy(update=found), f"{choice.reason}; {words} of {folder}")


def _chosen(name: str | None, environ: Mapping[str, str]) -> SiteChoice:
    if name is not None:
        return SiteChoice(site=load_site(name), reason="--site")
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


def runs_on_cpu(site: Site) -> bool:
    """Whether what runs at the site runs without GPUs."""
    return site.device == "cpu" or (site.device == "auto" and not visible_gpus())


def visible_gpus(environ: Mapping[str, str] = os.environ) -> list[str]:
    """The GPUs a run may use, as CUDA_VISIBLE_DEVICES names them: by number or UUID, up to the first wrong name."""
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return list(takewhile(_NAMES_GPU.fullmatch, map(str.strip, visible.split(","))))
    gpus = Path("/proc/driver/nvidia/gpus")
    found = gpus.iterdir() if gpus.is_dir() else Path("/dev").glob("nvidia[0-9]*")
    return [str(number) for number, _ in enumerate(found)]
