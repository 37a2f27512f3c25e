"""`slurm.sh help numbers`: the tables of a summary, or one of them with every field."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from textwrap import wrap

from harness.analysis.summary import Summary, problem_texts
from harness.analysis.summary.base import constant_texts, part_texts, parts_of
from harness.cli.help import page_width, section
from harness.common.errors import RequestError, nearest_or_list
from harness.common.paths import COMMAND, PROGRAM
from harness.experiment.exercises import EXERCISES
from harness.monitor.samples import COLUMNS

_OTHERS = {
    "problems": "Problems of a recording, and when each is reported.",
    "monitor": "The columns of gpus-monitor/<node>/samples.csv and network.csv, a line per device or port and sample. "
    "A cell is empty if the device does not give the value.",
}
_LINK = re.compile(r"\[([^]]*)\]\([^)]*\)")


def numbers_page(words: Sequence[str]) -> str:
    """All tables, or the one that is named. Raises RequestError: there is no such table."""
    parts = {part.__name__: part for part in parts_of(Summary)}
    abouts = {name: inspect.getdoc(part) or "" for name, part in parts.items()} | _OTHERS
    if not words:
        rows = [(name, " ".join(about.split()).partition(". ")[0].rstrip(".") + ".") for name, about in abouts.items()]
        return "\n".join(section(f"{PROGRAM} help numbers TABLE", rows))
    named = {name.lower(): name for name in abouts}.get(words[0].lower())
    if named is None or words[1:]:
        hint = nearest_or_list(words[-1], abouts, f"{COMMAND} help numbers lists all")
        raise RequestError(f"help numbers: there is no table {words[-1]!r}{hint}")
    texts = problems() if named == "problems" else COLUMNS if named == "monitor" else part_texts(parts[named])
    about = "\n".join(_plain(part) for part in re.split(r"\n\n|\n(?=- )", abouts[named]))
    return "\n".join([about, "", *section(named, [(name, _LINK.sub(r"\1", text)) for name, text in texts.items()])])


def problems() -> dict[str, str]:
    """Each problem that a recording can have: its words, and when it is reported."""
    found = {getattr(problem_texts, name): when for name, when in constant_texts(problem_texts).items()}
    return found | {cls.gpus_only[0]: f"Exercise {n} on a CPU." for n, cls in EXERCISES.items() if cls.gpus_only}


def _plain(text: str) -> str:
    return "\n".join(wrap(_LINK.sub(r"\1", " ".join(text.split())), page_width(), break_on_hyphens=False))
