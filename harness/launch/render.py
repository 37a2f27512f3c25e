"""Job → script text. The only place where words become shell text, each through a quoting filter."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemBytecodeCache, FileSystemLoader, StrictUndefined

from harness.common.paths import TEMPLATES
from harness.launch.argv import quote, quote_all
from harness.launch.backends.protocol import Joint
from harness.launch.backends.registry import backend_of
from harness.launch.job import Job


def _bytecode_cache() -> FileSystemBytecodeCache | None:
    """Compiled templates beside the interpreter's packages, as .pyc files are: they save a fifth of a dry run."""
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


def render_joint(jobs: Sequence[Job], joint: Joint) -> str:
    """The script of one submission that starts the scripts of all these jobs."""
    template = _environment(joint.template.parent).get_template(joint.template.name)
    return template.render(jobs=jobs, directives=joint.directives)


def render(job: Job) -> str:
    """The job's script, for its site's backend. Raises RequestError: the backend is unknown."""
    return render_template(backend_of(job.site).TEMPLATE, job=job)


def render_template(template: Path, **values: object) -> str:
    """A template of ours, or one that extends or includes ours, with these values."""
    return _environment(template.parent).get_template(template.name).render(**values)
