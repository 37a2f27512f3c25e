"""`slurm.sh sites`: list the sites, show one, or print the schema with which editors check site files."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from harness.cli.options import JsonOption, named_sites
from harness.common.paths import PROGRAM, expanded
from harness.launch.backends.registry import backend_of, of_sites
from harness.site.detection import site_to_show
from harness.site.site import SITES, Site, load_site, site_names


def sites(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME|FILE", autocompletion=named_sites, help="show this one in full")
    ] = None,
    schema: Annotated[bool, typer.Option("--schema", help="print the JSON schema of site files")] = False,
    as_json: JsonOption = False,
) -> int:
    """List the sites and the one of this machine; show one in full; or print the schema."""
    if schema:
        print(schema_text(), end="")
    elif name is None:
        _list(as_json)
    else:
        _show(name, as_json)
    return 0


def _show(name: str, as_json: bool) -> None:
    site = load_site(name)
    backend_of(site)  # refuses a file with an unknown scheduler
    if as_json:
        print(site.model_dump_json(indent=1))
        return
    path = SITES / f"{name}.yaml" if name in site_names() else expanded(name)
    print(path.read_text(encoding="utf-8"), end="")


def schema_text() -> str:
    schema = Site.model_json_schema()
    schema["properties"]["scheduler"]["enum"] = of_sites()
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _list(as_json: bool) -> None:
    here, complaint = site_to_show()
    if complaint:
        print(f"{PROGRAM}: {complaint}", file=sys.stderr)
    rows = [load_site(n) for n in site_names()]
    if as_json:
        texts = [{"name": s.name, "description": s.description} for s in rows]
        print(json.dumps([row | {"here": row["name"] == here.site.name} for row in texts], indent=1))
        return
    width = max(len(s.name) for s in rows)
    for site in rows:
        print(f"{'*' if site.name == here.site.name else ' '} {site.name:<{width}}  {site.description}")
    print(f"* is the site here: {here.reason}. To choose another: --site NAME, --site FILE.yaml, or HARNESS_SITE")
