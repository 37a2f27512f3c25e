"""A series' own copy of its request, so that it continues as it began. It has the request, not the state."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from harness.common.errors import RequestError, WorkError, nearest_or_list
from harness.common.paths import COMMAND
from harness.common.system.bounded_read import read_bounded_text
from harness.common.system.secrets import holds_secret
from harness.common.system.training_python import active_python
from harness.run import SECRET_MODE, disk_error, make_shared, why_invalid, write_atomically
from harness.site.site import Site
from harness.study.series.folder import NAME, series_folder, series_root
from harness.study.sweeps.axes import OWN, Sweep, is_path, read_sweep, shipped_sweep, sweep_names

_MAY_CHANGE = ("title", "show", "name", "repeats")  # other runs are not asked for, only more or fewer


class StoredSweep(BaseModel):
    """request.json of a series' folder, perhaps of another version. site_word: as given to --site."""

    model_config = ConfigDict(extra="ignore", frozen=True, defer_build=True)

    sweep: Sweep
    site: Site
    site_word: str | None = None


class SweepRequest(NamedTuple):
    """A sweep by name or file. stored: of its series, if that began already."""

    series: str
    sweep: Sweep
    stored: StoredSweep | None


def request_file(series: str) -> Path:
    return series_folder(series) / "request.json"


def stored_request(series: str) -> StoredSweep | None:
    """The request of a series; None if it has none. Raises WorkError: the file cannot be read."""
    path = request_file(series)
    if not NAME.fullmatch(series):  # none that a series can have
        return None
    try:
        return StoredSweep.model_validate_json(read_bounded_text(path))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise WorkError(f"{path} cannot be read: {why_invalid(error)}") from None


def store_request(series: str, request: StoredSweep) -> None:
    """Keep the request. Raises DiskError."""
    folder = request_file(series).parent
    try:
        make_shared(folder.parent)
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise disk_error(folder, error) from None
    words = request.sweep.base.get("command")
    secret = isinstance(words, str | list | tuple) and holds_secret(words.split() if isinstance(words, str) else words)
    write_atomically(
        request_file(series), request.model_dump_json(indent=1) + "\n", mode=SECRET_MODE if secret else None
    )


def all_series() -> list[str]:
    return sorted(path.parent.name for path in series_root().glob("*/request.json"))


def asked_sweep(word: str, name: str | None) -> SweepRequest:
    """The sweep that a word means: a file, a series that began, or one that comes with the harness.

    name: of the series; default: the sweep's name.

    Raises RequestError: there is no such sweep, or its file is wrong.
    """
    if is_path(word):
        sweep = started_here(read_sweep(word))
        return SweepRequest(name or sweep.name, sweep, stored_request(name or sweep.name))
    if name is None and (found := stored_request(word)) is not None:
        return SweepRequest(word, found.sweep, found)
    path = shipped_sweep(word)
    if path is None:
        where = f"{COMMAND} sweep lists all; the path of a sweep file is taken, too"
        hint = nearest_or_list(word, [*sweep_names(), *all_series()], where)
        raise RequestError(f"sweep: there is no sweep {word!r}{hint}")
    return SweepRequest(name or word, read_sweep(path), stored_request(name or word))


def started_here(sweep: Sweep) -> Sweep:
    """The sweep; of a user's own training with the folder and the Python where it is asked for."""
    if sweep.base.get("exercise") != OWN:
        return sweep
    python = active_python(os.environ)
    usual = {"start_in": str(Path.cwd()), **({"python": python} if python else {})}
    return sweep.model_copy(update={"base": usual | sweep.base})


def refuse_another(series: str, stored_sweep: StoredSweep | None, sweep: Sweep, site: Site) -> None:
    """Raises RequestError: the series began with another request or at another site."""
    if stored_sweep is None:
        return
    if stored_sweep.site.name != site.name:
        raise RequestError(
            f"series {series} began at site {stored_sweep.site.name}, not {site.name}: "
            "give the new one another name with --name"
        )
    folder = stored_sweep.sweep.base.get("start_in")
    if folder not in (None, str(Path.cwd())) and not os.environ.get("HARNESS_RUNS"):
        raise RequestError(f"series {series} began in {folder}, where its runs lie: type the command there")
    before, now = stored_sweep.sweep.model_dump(), sweep.model_dump()
    changed = [field for field in now if now[field] != before[field] and field not in _MAY_CHANGE]
    if changed:
        raise RequestError(
            f"series {series} began with another {' and '.join(changed)}: `{COMMAND} sweep {series}` continues the old "
            "one, or give the new one another name with --name"
        )
