"""Writes the parts of the documents that follow from declarations: `python scripts/documents/pages.py [NAME…]`.

Each part is between two comments, `<!-- written: NAME -->` and `<!-- end -->`; what a command prints is between
`<!-- seen: COMMAND | LINES -->` and `<!-- end -->`. With names: prints these parts, and writes nothing.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))

from episodes import parts as parts_of_episodes
from lesson_tables import PARTS as OF_LESSONS
from markdown_table import markdown_table
from method_table import EXAMPLE, cells, methods
from seen import seen

from harness.analysis.metrics import KEPT, METRICS, OF_KIND, Metric, OfKind
from harness.analysis.summary import Summary, SummaryPart
from harness.analysis.summary.base import field_texts, parts_of
from harness.cli.command import read_launch
from harness.cli.launch.faults import where
from harness.common.faults.fault import FAULTS
from harness.common.paths import ROOT
from harness.common.run_folder.run_files import FILES
from harness.experiment.parse import SLIDE, build_experiment
from harness.experiment.yaml_file import read_yaml
from harness.launch.argv import Shell, quote_all, shown
from harness.launch.job import Job, Machine, resolve
from harness.replay.attribute.causes import CAUSES
from harness.replay.attribute.host_causes import OF_IDLE_TIME
from harness.replay.attribute.what_ifs import WHAT_IFS
from harness.report.words import GROUPS, Group, Word, load_words
from harness.site.site import load_site

_LONG = 140  # characters of a text that defines something; shorter ones are in `slurm.sh help numbers TABLE`
_FORMULA = re.compile(r" [/=−·] |U\(|Σ|∩|∪")
_FILES = (".py", ".sif")
_WRITTEN = re.compile(r"(?<=<!-- )(written|seen)(: )(.+?)( -->\n).*?(?=<!-- end -->)", re.DOTALL)


def kinds() -> str:
    return markdown_table(
        "fault | exercise | on | what happens",
        ((f"`{kind.name}`", *where(kind), kind.meaning) for kind in FAULTS.values()),
    )


def sections() -> str:
    """A section per class that has a definition: its own text, then its fields with a formula or a long text."""
    return "\n\n".join(filter(None, map(_section, parts_of(Summary))))


def _section(part_class: type[SummaryPart]) -> str:
    about = inspect.getdoc(part_class) or ""
    fields = [
        f"- `{name}`: {text}"
        for name, text in field_texts(part_class).items()
        if len(text) > _LONG or _FORMULA.search(text)
    ]
    if not fields and len(about) <= 2 * _LONG:
        return ""
    one_line = re.sub(r"\n(?!\n|- )\s*", " ", about)
    bases = [f"Also the fields of [{base.__name__}](#{base.__name__.lower()})." for base in part_class.__bases__[:1]]
    also = bases if part_class.__bases__[0] is not SummaryPart else []
    head = f"{'##' if part_class is Summary else '###'} {part_class.__name__}"
    return "\n".join([head, "", " ".join([one_line, *also]), *([""] if fields else []), *fields])


def names() -> str:
    declared: tuple[Metric | OfKind, ...] = (*METRICS[: len(KEPT)], *OF_KIND, *METRICS[len(KEPT) :])
    labels = {metric.name: metric.label.strip() for metric in METRICS if metric.label}
    rows = ((f"`{each.name}`", labels.get(each.name, "–"), each.meaning) for each in declared)
    return markdown_table("name | line of `compare` | meaning", rows)


def causes() -> str:
    """A row per cause of lost time: its name in tables and in JSON, and the changes and idle times of this cause."""
    rows = []
    for name, entry in CAUSES.items():
        fault = f"`--fault {name}`" if name in FAULTS else ""
        changes = [f"`{one.name}`" for one in WHAT_IFS if f"{one.name}-".startswith(f"no-{name}-")]
        idle = [cause for cause, one in OF_IDLE_TIME.items() if one is entry.cause]
        rows.append((entry.label, f"`{name}`", fault, ", ".join(changes), ", ".join(idle)))
    return markdown_table("cause | in JSON | fault | change | of idle time", rows)


def glossary() -> str:
    return "\n\n".join(f"## {group}\n\n{_glossary(group)}" for group in GROUPS)


def _glossary(group: Group) -> str:
    words = [word for word in load_words() if word.group == group]
    rows = [(word, word.meaning + (f" [More]({word.link})." if word.link else "")) for word in words]
    named = [(", ".join([f"**{word.word}**", *_more_spellings(word)]), meaning) for word, meaning in rows]
    if group != "Collectives":
        return markdown_table("word | meaning", named)
    drawn = ((*row, _picture(word)) for row, (word, _) in zip(named, rows, strict=True))
    return markdown_table("word | meaning | 4 ranks, before and after", drawn)


def _more_spellings(word: Word) -> list[str]:
    """Its other spellings, without those that differ in an s, a sign or a capital only."""
    plain = word.id.removeprefix("word-").replace("-", "")
    return [s for s in word.also if re.sub(r"\W|_|e?s\b", "", s.lower()) != plain]


def _picture(word: Word) -> str:
    file = f"pictures/collectives/{word.id.removeprefix('word-')}.svg"
    return f"![{word.word}]({file})" if (ROOT / "docs" / file).is_file() else ""


def method_table() -> str:
    heads = "method | sharded | forward | backward | optimizer step | state of a rank"
    return f"{EXAMPLE}:\n\n{markdown_table(heads, map(cells, methods()))}"


def job_on_leonardo(words: str) -> Job:
    line = read_launch(words.split())
    asked = build_experiment(list(line.given.items()), [*line.unknown, *line.words], [])
    machine = Machine(0, 1, has_nsys=True, python=f"{ROOT}/.venv/harness-python", runs_dir=f"{ROOT}/exercises")
    return resolve(asked, load_site("leonardo"), machine)


def _elsewhere(value: Any) -> Any:
    """A word, its parts, or words, in a checkout at /checkout."""
    if isinstance(value, str):
        return value.replace(str(ROOT), "/checkout")
    if isinstance(value, Shell):
        return Shell(tuple(map(_elsewhere, value.parts)))
    return list(map(_elsewhere, value)) if isinstance(value, list) else value


class SlidesOption(NamedTuple):
    """An option of the slide's command and ours, by their names; either may be missing."""

    slide: str = ""
    ours: Sequence[str] = ()
    why: str = "the same"
    here: str = ""


def slides_options() -> list[SlidesOption]:
    return [SlidesOption(**row) for row in _slide()["options"]]


def groups(words: Sequence[str | Shell]) -> list[list[str | Shell]]:
    """The words of a command, each option with its values."""
    found: list[list[str | Shell]] = []
    for word in words:
        if not found or shown(word).startswith("-"):
            found.append([])
        found[-1].append(word)
    return found


def name_of(text: str) -> str:
    """An option's name, without dashes and value."""
    return re.split("[= ]", text.lstrip("-"), maxsplit=1)[0]


def our_options() -> dict[str, list[str]]:
    """The options of our command for the slide's, by name; of a script and an image by that of the file."""
    found: dict[str, list[str]] = {}
    for array in job_on_leonardo(_slide()["command"]).arrays:
        for group in groups(_elsewhere(array.words)):
            files = [word for word in group[1:] if shown(word).endswith(_FILES)]
            text = quote_all([word for word in group if word not in files])
            found.setdefault(name_of(text) if text.startswith("-") else text, []).append(text)
            found |= {PurePosixPath(shown(word)).name: [quote_all([word])] for word in files}
    return found


def _slide() -> dict[str, Any]:
    read: dict[str, Any] = read_yaml(SLIDE, "the slide's command")
    return read


def slide() -> str:
    ours, differ = our_options(), [row for row in slides_options() if row.why != SlidesOption().why]
    rows = [(row.slide, "` `".join(text for name in row.ours for text in ours[name]), row.why) for row in differ]
    cells = ((*(f"`{text}`" if text else "–" for text in both), why) for *both, why in rows)
    return markdown_table("slide | ours | what differs, and why", cells)


def slide_here() -> str:
    """A row per argument of the slide's training script that has another name here, or none."""
    rows = ((f"`{row.slide}`", row.here) for row in slides_options() if row.here)
    return markdown_table("on the slide | here", rows)


def files_of_a_run() -> str:
    """A row per file of a run, in the table's order; not of what is hidden, which nobody may find by accident."""
    folder = {"run": "", "log": "logs/ID/", "logs": "logs/"}
    shown = [each for each in FILES if not each.name.startswith(".")]
    rows = ((f"`{folder[x.kept_in]}{x.name}`", x.form, x.purpose, x.writers, x.readers) for x in shown)
    return markdown_table("file | form | what it has | written by | read by", rows)


PARTS: dict[str, Callable[[], str]] = {
    "fault-kinds": kinds,
    "causes": causes,
    "words": glossary,
    "methods": method_table,
    "summary": sections,
    "metric-names": names,
    "run-files": files_of_a_run,
    "slide-and-script": slide,
    "slide-here": slide_here,
    **OF_LESSONS,
    **parts_of_episodes(),
}


def documents() -> list[Path]:
    found = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "exercises").glob("*/*.md"))]
    return [path for path in found if _WRITTEN.search(path.read_text(encoding="utf-8"))]


def renewed(text: str) -> str:
    """The document with its parts written anew."""

    def anew(found: re.Match[str]) -> str:
        part = PARTS[found[3]]() if found[1] == "written" else seen(found[3])
        return f"{found[1]}{found[2]}{found[3]}{found[4]}\n{part}\n\n"

    return _WRITTEN.sub(anew, text)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(PARTS[name]())
    for path in () if sys.argv[1:] else documents():
        path.write_text(renewed(path.read_text(encoding="utf-8")), encoding="utf-8")
