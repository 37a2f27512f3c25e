"""The text of a job's script, from its backend's template."""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemBytecodeCache, FileSystemLoader, StrictUndefined

from harness.common.paths import PROGRAM, TEMPLATES
from harness.launch.argv import assignments, continued, quote, quote_all, quote_lines
from harness.launch.backends.registry import backend_of
from harness.launch.before.check import check_script
from harness.launch.job import REQUEST, Job
from harness.launch.settings import SETTINGS, setting_of

BELOW = "# The settings that the programs read from the run's folder; a copy of the script may name files of its own.\n"


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
    environment.globals["program"] = PROGRAM
    environment.filters["q"] = quote
    environment.filters |= {"argv": quote_all, "lines": quote_lines, "continued": continued, "assignments": assignments}
    return environment


def render(job: Job) -> str:
    """The job's script, for its site's backend. Raises RequestError: the backend is unknown."""
    return render_template(backend_of(job.site).TEMPLATE, job=job, request=REQUEST)


def render_template(template: Path, **values: object) -> str:
    """A template of ours, or one that extends or includes ours, with these values."""
    return _environment(template.parent).get_template(template.name).render(**values)


def script_of(job: Job) -> str:
    """The job's script, which bash can parse. Raises RequestError: bash cannot."""
    text = render(job)
    check_script(job, text)
    return text


def settings_of(job: Job) -> str:
    """The settings that the script's programs read, as comments below it; a line that a flag has set names it."""
    return render_template(TEMPLATES / "settings.j2", job=job, settings=SETTINGS, below=BELOW, setting_of=setting_of)
