"""The packages of a Python environment: their versions, what they require, and their files. Asks the environment's own
Python, which imports none of them. Compares nothing and makes nothing."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from harness.common.display.printable import printable
from harness.common.errors import RequestError
from harness.common.system.programs import TOO_LATE, ask
from harness.common.system.training_python import ask_python

_LIMIT_S = 600.0  # a site directory has 100,000 files, on a network file system
# Python 3.8 understands it, too. The path is the training's: with PYTHONPATH and the user's own packages, without the
# current folder. Of distributions with the same name the first on the path counts, as for an import; of what a later
# folder has and an earlier one hides, nothing is a file of no package.
_QUESTION = r"""
import sys
sys.path[:] = [place for place in sys.path if place]
import csv, json, os, platform, re, sysconfig
from importlib import metadata

def listed(text, site):
    files = {}
    for path, checksum, size in ((row + ["", ""])[:3] for row in csv.reader(text.splitlines()) if row):
        place = os.path.join(site, path)
        now = os.path.getsize(place) if os.path.exists(place) else None
        is_edited = checksum and size and size != str(now)
        files[os.path.normpath(path)] = "%s, now of %s bytes" % (checksum, now) if is_edited else checksum
    return files

inside = [os.path.realpath(place) for place in sys.path
          if os.path.basename(place) in ("site-packages", "dist-packages") and os.path.isdir(place)]
sites, packages, unowned, earlier = list(dict.fromkeys(inside)), {}, {}, set()
for site in sites:
    owned, hidden = set(), set(earlier)
    for found in metadata.distributions(path=[site]):
        try:
            name, version, record = found.metadata["Name"], found.metadata["Version"], found.read_text("RECORD")
            files = None if record is None else listed(record, site)
            told = {"version": version, "requires": list(found.requires or []), "files": files, "site": site}
            key = re.sub(r"[-_.]+", "-", name).lower()
        except Exception:
            continue
        if not version:
            continue
        owned.update(files or ())
        if key in packages:
            hidden.add(found._path.name)
        packages.setdefault(key, told)
    for folder, folders, names in os.walk(site):
        names += [each for each in folders if os.path.islink(os.path.join(folder, each))]
        folders[:] = [each for each in folders if each != "__pycache__"]
        for name in names:
            path = os.path.join(folder, name)[len(site) + 1:]
            if path not in owned and path.split("/")[0] not in hidden:
                unowned[path] = site
    earlier.update(os.listdir(site))

full = ".".join(map(str, sys.version_info[:3]))
print(json.dumps({
    "version": full,
    "implementation": sys.implementation.name,
    "platform": sysconfig.get_config_var("SOABI") or sysconfig.get_platform(),
    "prefix": sys.prefix,
    "base": os.path.realpath(getattr(sys, "_base_executable", "") or sys.executable),
    "library": sysconfig.get_path("purelib", "posix_prefix", {"base": ""}).strip("/"),
    "sites": sites,
    "markers": {
        "implementation_name": sys.implementation.name, "implementation_version": full, "os_name": os.name,
        "platform_machine": platform.machine(), "platform_release": platform.release(),
        "platform_system": platform.system(), "platform_version": platform.version(), "python_full_version": full,
        "platform_python_implementation": platform.python_implementation(),
        "python_version": ".".join(map(str, sys.version_info[:2])), "sys_platform": sys.platform,
    },
    "packages": packages,
    "unowned": unowned,
}))
"""


class Package(NamedTuple):
    """One distribution. requires: its Requires-Dist lines. files: the checksum by path, seen from the folder `site`,
    as its RECORD has them (empty: it has none), with the size if that is another one now; None: it has no RECORD."""

    version: str
    requires: tuple[str, ...]
    files: Mapping[str, str] | None
    site: str


class Installed(NamedTuple):
    """An environment. base: the Python that it was made with. library: where below a prefix its packages are. sites:
    where they are, in the order of sys.path. markers: what conditions of a requirement ask. packages: by normalised
    name. unowned: of each file that no package lists its folder of `sites`, by the path in there."""

    version: str
    implementation: str
    platform: str
    prefix: str
    base: str
    library: str
    sites: tuple[str, ...]
    markers: Mapping[str, str]
    packages: Mapping[str, Package]
    unowned: Mapping[str, str]


def installed(python: str) -> Installed:
    """The environment of the Python at this path. Raises RequestError: it is none, or does not say."""
    # -B: also what its .pth files import is not compiled there.
    answer = ask([python, "-B", "-c", _QUESTION], _LIMIT_S, os.environ)
    if answer.code == TOO_LATE:
        raise RequestError(f"{printable(python)} did not list its packages within {_LIMIT_S / 60:g} minutes")
    try:
        told = json.loads(answer.out.strip().splitlines()[-1])
        packages = {name: _package(each) for name, each in told["packages"].items()}
        return Installed(**told | {"sites": tuple(told["sites"]), "packages": packages})
    except (ValueError, IndexError, KeyError, TypeError, AttributeError):
        wrong = ask_python(python)
        reason = wrong if isinstance(wrong, str) else f"cannot list its packages ({printable(answer.reason)})"
        raise RequestError(f"{printable(python)} {reason}") from None


def _package(told: Mapping[str, Any]) -> Package:
    files = told["files"]
    inside = None if files is None else {path: files[path] for path in files if _is_inside(path)}
    return Package(told["version"], tuple(told["requires"]), inside, told["site"])


def _is_inside(path: str) -> bool:
    """Not such as ../../../bin/torchrun, which a RECORD has, too."""
    return not path.startswith("/") and ".." not in PurePosixPath(path).parts


def requirements_of(packages: Mapping[str, str]) -> list[str]:
    """The line of a requirements file for each package, by its name.

    >>> requirements_of({"Torch": "2.13.0", "numpy": "2.4.6"})
    ['numpy==2.4.6', 'torch==2.13.0']
    """
    return sorted(f"{normal_name(name)}=={version}" for name, version in packages.items())


def normal_name(name: str) -> str:
    """The name as indexes compare it.

    >>> normal_name("Nvidia_NCCL.cu12")
    'nvidia-nccl-cu12'
    """
    return re.sub(r"[-_.]+", "-", name).lower()
