"""Job → script text. Pure; the only place where words become shell text, all of them through one quoting filter."""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemBytecodeCache, FileSystemLoader, StrictUndefined

from harness.common.paths import TEMPLATES
from harness.launch.argv import quote, quote_all
from harness.launch.backends.registry import backend_of
from harness.launch.job import Job


def _bytecode_cache() -> FileSystemBytecodeCache | None:
    """Compiled templates beside the interpreter's packages, where .pyc files are: a fifth of a dry run's time."""
    folder = Path(sys.prefix) / "compiled-templates"
    try:
        folder.mkdir(exist_ok=True)
    except OSError:
        return None
    return FileSystemBytecodeCache(str(folder)) if os.access(folder, os.W_OK) else None


@cache
def _environment(folder: Path) -> Environment:
    environment = Environment(
        loader=FileSystemLoader([folder, TEMPLATES]),
        bytecode_cache=_bytecode_cache(),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        comment_start_string="{##",  # {# is bash: ${#array[@]}
        comment_end_string="##}",
        autoescape=False,  # shell, not HTML: q and argv do the quoting
    )
    environment.filters["q"] = quote
    environment.filters["argv"] = quote_all
    return environment


def render(job: Job) -> str:
    """The script of `job`, for the backend of its site. Raises RequestError where there is none such."""
    template = backend_of(job.site).TEMPLATE
    return _environment(template.parent).get_template(template.name).render(job=job)
