"""The environment of a training: its Python, the packages that are installed and those that it loads, variables that
libraries read, modules, kernel and image. One process of each node writes it, `environment/<host>-<node>.json`.

A thread writes what is known at the training's begin; `used` follows at its end, and stays null if it is killed. Reads
names of folders, and of a package's own files only those that say which files it has, at the end.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from harness.common.run_folder.run_files import ENVIRONMENT
from harness.common.system.bounded_read import BoundedReadError, open_regular, read_bounded_json, read_bounded_text
from harness.common.system.files import write_whole_text
from harness.common.system.inherited import read_by_libraries
from harness.common.system.secrets import is_secret

_CHECKOUT = Path(__file__).resolve().parents[2]
_METADATA = re.compile(r"(.+?)(?:-(\d[^-]*)(?:-py[\d.]+)?)?\.(?:dist|egg)-info")  # NAME-VERSION.dist-info
_VERSION = re.compile(r"^Version: *(\S+)", re.MULTILINE)
_OF_SLURM = re.compile(r"SLURM_((CPU|MEM|GPU|TRES)_BIND\w*|DISTRIBUTION|HINT|THREADS_PER_CORE|(CPUS|GPUS|MEM)_PER_\w+)")
# A launcher sets them anew for each run or rank, and a batch system says by them which devices are free.
_OF_ONE_RUN = re.compile(
    r"TORCHELASTIC_.*|PET_(RDZV_.*|NODE_RANK|MASTER_.*)|OMPI_(?!MCA_(?:btl|pml|mtl|osc|coll|opal)).*|PRTE_.*"
    r"|PMIX_MCA_.*|MPI_LOCAL.*|MV2_COMM_WORLD_.*|I_MPI_HYDRA_.*|.*_(VISIBLE_DEVICES|ORDINAL|RANK|URI|ADDR|PORT)"
)
_GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
_LABELS = Path("/.singularity.d/labels.json")
_MAPPED = Path("/proc/self/maps")
_MOST_BYTES = 1 << 16  # of a small file; of a list of files 64 times as many


class Package(NamedTuple):
    """An installed package. folder: that of sys.path in which it lies; about: its .dist-info there."""

    version: str
    folder: str
    about: str


class EnvironmentRecorder:
    """The record of one node. known: what the training's other records know already."""

    def __init__(self, run_dir: Path, host: str, node: int, known: Mapping[str, str | None]) -> None:
        self._path = ENVIRONMENT.path(run_dir, f"{host}-{node}")
        self._environ = dict(os.environ)
        self._content: dict[str, Any] = {"host": host, "node": node, "system": known}
        self._packages: dict[str, Package] = {}
        self._thread = threading.Thread(target=self._try, args=(self._begin,), name="observer environment", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """The training ends: say which packages it has loaded."""
        self._thread.join(1.0)
        if self._packages:
            self._try(self._end)

    def _try(self, act: Any) -> None:
        try:
            act()
        except Exception as error:  # noqa: BLE001 - the edge between the observer and somebody's training
            print(f"observer: does not record the environment, because {error!r}", file=sys.stderr)

    def _begin(self) -> None:
        packages = installed(sys.path)
        system = {
            "python": platform.python_version(),
            "executable": sys.executable,
            "kernel": platform.release(),
            **self._content["system"],
            "governor": _text(_GOVERNOR).strip(),
            **_image(self._environ),
        }
        self._content.update(
            packages={name: package.version for name, package in packages.items()},
            used=None,
            variables=variables(self._environ, self._path.parents[1]),
            modules=[name for name in self._environ.get("LOADEDMODULES", "").split(":") if name],
            system={name: text for name, text in system.items() if text},
        )
        self._write()
        self._packages = packages

    def _end(self) -> None:
        self._content["used"] = used(self._packages, dict(sys.modules), _mapped())
        self._write()

    def _write(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_whole_text(self._path, json.dumps(self._content, indent=1) + "\n")


def installed(folders: Sequence[str]) -> dict[str, Package]:
    """The packages in these folders of sys.path, by their normalised names; of two the first is imported."""
    found: dict[str, Package] = {}
    for folder in folders:
        with suppress(OSError):
            names = sorted(name for name in os.listdir(folder or ".") if name.endswith("-info"))  # noqa: PTH208 - fast
            for about in names:
                match = _METADATA.fullmatch(about)
                if match and normalised(match[1]) not in found:
                    version = match[2] or _written_version(Path(folder, about))
                    found[normalised(match[1])] = Package(version, folder, about)
    return dict(sorted(found.items()))


def normalised(name: str) -> str:
    """
    >>> normalised("Flash_Attn.v2")
    'flash-attn-v2'
    """
    return re.sub(r"[-_.]+", "-", name).lower()


def _written_version(about: Path) -> str:
    match = _VERSION.search(_text(about / "PKG-INFO") or _text(about / "METADATA"))
    return match[1] if match else ""


def used(packages: Mapping[str, Package], modules: Mapping[str, object], mapped: Iterable[str]) -> list[str]:
    """Those of which a file is loaded: a module, or a library of the process's memory. A package with the name of the
    top folder or module has it; of the others their lists of files are read."""
    found = {normalised(name.partition(".")[0]) for name in modules} & {*packages}
    files = [getattr(module, "__dict__", {}).get("__file__") for module in modules.values()]
    folders = {package.folder for package in packages.values()}
    roots = {f"{root}{os.sep}": folder for folder in folders for root in (folder, os.path.realpath(folder))}
    inner = sorted(roots, key=len, reverse=True)
    unknown: dict[str, set[str]] = {folder: set() for folder in folders}
    for file in {*mapped, *(file for file in files if isinstance(file, str))}:
        root = next((root for root in inner if file.startswith(root)), None)
        if root is not None:
            inside = file[len(root) :]
            top = normalised(re.split(r"[/.]", inside, maxsplit=1)[0])
            if top in packages:
                found.add(top)
            else:
                unknown[roots[root]].add(inside)
    for name, package in packages.items():
        wanted = unknown[package.folder]
        if name not in found and wanted and not wanted.isdisjoint(_files_of(package)):
            found.add(name)
    return sorted(found)


def _files_of(package: Package) -> Iterator[str]:
    text = _text(Path(package.folder, package.about, "RECORD"), 64 * _MOST_BYTES)
    return (line.partition(",")[0] for line in text.splitlines())


def _mapped() -> Iterator[str]:
    """The files that the process has in its memory."""
    text = _text(_MAPPED, 1 << 28)
    return (line[line.index("/") :] for line in text.splitlines() if "/" in line)


def variables(environ: Mapping[str, str], run_dir: Path) -> dict[str, str]:
    """Those that change how a training computes or communicates, as it has them; equal in two runs of one command, and
    without secrets."""
    names = {*read_by_libraries(environ), *filter(_OF_SLURM.fullmatch, environ)}
    found = {name: environ[name] for name in sorted(names) if not _OF_ONE_RUN.fullmatch(name)}
    if "PYTHONPATH" in found:
        found["PYTHONPATH"] = os.pathsep.join(filter(_is_users, found["PYTHONPATH"].split(os.pathsep)))
    return {
        name: text for name, text in found.items() if text and str(run_dir) not in text and not is_secret(name, text)
    }


def _is_users(folder: str) -> bool:
    """Whether a folder of PYTHONPATH is none of those that a run of ours adds."""
    path = Path(folder).resolve()
    return bool(folder) and path != _CHECKOUT and _CHECKOUT / "harness" not in path.parents


def _image(environ: Mapping[str, str]) -> dict[str, str]:
    """The image of Apptainer or Singularity that the process runs in: where it is, its labels, and of a .sif file the
    id and the unix time that its header has."""
    found = {"image": environ.get("APPTAINER_CONTAINER") or environ.get("SINGULARITY_CONTAINER") or ""}
    if found["image"]:
        with suppress(OSError, ValueError), open_regular(Path(found["image"])) as file:
            header = file.read(72)
            if header[32:41] == b"SIF_MAGIC":
                found.update(
                    {"image id": header[48:64].hex(), "image built": str(int.from_bytes(header[64:], "little"))}
                )
        with suppress(OSError, ValueError, AttributeError):  # the last: labels that are no object
            labels = read_bounded_json(_LABELS, _MOST_BYTES)
            found.update({f"image label {name}": str(text) for name, text in labels.items()})
    return found


def _text(path: Path, most_bytes: int = _MOST_BYTES) -> str:
    """The text of a file; empty where it cannot be read."""
    try:
        return read_bounded_text(path, most_bytes, errors="replace")
    except (OSError, BoundedReadError):
        return ""
