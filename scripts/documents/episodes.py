"""The episodes of the course, read from their pages: the tables of an exercise, their times, and the course's agenda.

An episode is a page `exercises/exercise_N_…/episode_K_….md`. Its time is that of reading, of answering and of its runs:
measured once on two CPU cores (minutes.yaml), and with GPUs by their plans on Leonardo.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

from lesson_tables import runs_of
from markdown_table import markdown_table

from harness.common.paths import ROOT
from harness.experiment.yaml_file import read_yaml
from harness.launch.submit import prepare
from harness.plan.plan import plan_of
from harness.site.site import load_site
from harness.study.lessons import load_lesson

MEASURED = Path(__file__).with_name("minutes.yaml")
WORDS_A_MINUTE, MINUTES_A_QUESTION = 100, 3  # for a second-language reader, who looks for the answer in the run
ROUNDED_TO = 5
_BREAK = "break"
_WITH_ITS_RUN = {"e1": "1a"}  # a lesson whose first run a plain launch is
HALF_DAYS = (
    ("1.1", "0.1", "1.2", _BREAK, "1.3", "1.4", "1.5", "1.6", "1.8"),
    ("0.2", "2.1", "2.2", _BREAK, "2.3", "3.1", "3.2", "3.3"),
)
_BREAK_MINUTES = 20


class Episode(NamedTuple):
    """A page of the course. number: as `1.2`. goals: what a student can do afterwards. core: without its part at home.
    lessons: that the core asks."""

    number: str
    path: Path
    title: str
    goals: list[str]
    core: str
    lessons: list[str]

    @property
    def exercise(self) -> str:
        return self.number[0]

    def link(self, start: Path) -> str:
        """Its title as a link of a page in the folder `start`."""
        up = "../" * len(start.relative_to(ROOT).parts)
        target = self.path.name if start == self.path.parent else f"{up}{self.path.relative_to(ROOT)}"
        return f"[{self.number} {self.title}]({target})"

    @property
    def command(self) -> str:
        """What a student types first."""
        return next(re.finditer(r"^bash slurm\.sh [^#\n]*", self.core, re.M))[0].strip()

    @property
    def reading_minutes(self) -> float:
        left_out = r"```.*?```|<!--.*?-->|<summary>For instructors.*?</details>"
        words = len(re.sub(left_out, "", self.core, flags=re.S).split())
        questions = len(re.findall(r"^\d\. .*\?", self.core, re.M))
        return words / WORDS_A_MINUTE + MINUTES_A_QUESTION * questions

    def minutes(self, cpu: bool) -> int:
        """Reading, answering and its runs, rounded. cpu: without GPUs."""
        run_s = sum((_measured_s if cpu else _planned_s)(name) for name in self.runs)
        return max(ROUNDED_TO, ROUNDED_TO * round((self.reading_minutes + run_s / 60) / ROUNDED_TO))

    @property
    def runs(self) -> list[str]:
        """What it starts: its lessons, else `e0`, `e1` or `race` by the first command of the core."""
        first = re.match(r"bash slurm\.sh (?:-(e) (\d)|lesson (race))", self.command)
        return self.lessons or (["".join(filter(None, first.groups()))] if first else [])


@cache
def episodes() -> tuple[Episode, ...]:
    """All of them, in the order of their numbers."""
    return tuple(map(_read, sorted((ROOT / "exercises").glob("exercise_*/episode_*.md"))))


def _read(path: Path) -> Episode:
    text = path.read_text(encoding="utf-8")
    number = f"{path.parent.name.split('_')[1]}.{path.name.split('_')[1]}"
    (title,) = re.findall(rf"^# {re.escape(number)} (.+)$", text, re.M)
    core = text.partition("\n## At home\n")[0]
    goals = re.findall(r"^- (.+)$", core.partition("\n## ")[0], re.M)
    return Episode(number, path, title, goals, core, re.findall(r"^## (\d\w): ", core, re.M))


@cache
def _measured() -> dict[str, float]:
    read: dict[str, float] = read_yaml(MEASURED, "the measured minutes")
    return read


def _measured_s(name: str) -> float:
    return _measured().get(name, 0.0)  # one that a CPU cannot run takes no time there


def _planned_s(name: str) -> float:
    """The shorter end of the plans of a lesson's runs on Leonardo, one after the other, without the queue. Exercise 0
    and the race have no plan."""
    if name in ("e0", "race"):
        return _measured_s(name)
    pair = load_lesson(_WITH_ITS_RUN.get(name, name)).commands(cpu=False)
    asked = [pair.a] if name in _WITH_ITS_RUN else [pair.a, pair.b]
    with patch.dict(os.environ, HARNESS_RUNS=os.devnull):  # a plan takes the speed of earlier runs
        plans = [plan_of(prepare(each, load_site("leonardo"))).cost.expected_s for each in asked]
    return sum(plan[0] for plan in plans if plan is not None)


def _time(episode: Episode) -> str:
    return f"**Time:** {episode.minutes(False)} minutes; without GPUs {episode.minutes(True)}."


def _table(number: str) -> str:
    rows = (
        (one.link(one.path.parent), one.goals[0], one.minutes(False), one.minutes(True), ", ".join(one.lessons))
        for one in episodes()
        if one.exercise == number
    )
    return markdown_table("episode | you can afterwards | minutes | without GPUs | lessons", rows)


def _course() -> str:
    return markdown_table("exercise | goal | minutes | without GPUs | start with", map(_exercise, "0123"))


def _exercise(number: str) -> Iterator[object]:
    """The row of an exercise: its title, and what its episodes take together."""
    of = [one for one in episodes() if one.exercise == number]
    page = of[0].path.with_name("README.md")
    (title,) = re.findall(r"^# Exercise \d: (.+)$", page.read_text(encoding="utf-8"), re.M)
    yield f"[{number}]({page.relative_to(ROOT)})"
    yield title
    yield from (sum(one.minutes(cpu) for one in of) for cpu in (False, True))
    yield f"`{of[0].command}`"


def _half_day(names: Iterable[str]) -> str:
    return markdown_table("from | episode | minutes | without GPUs", _agenda(names))


def _agenda(names: Iterable[str]) -> Iterator[tuple[str, ...]]:
    by_number, now = {one.number: one for one in episodes()}, 0
    for name in names:
        start = f"{now // 60}:{now % 60:02}"
        if name == _BREAK:
            yield start, "*break*", str(_BREAK_MINUTES), ""
            now += _BREAK_MINUTES
        else:
            one = by_number[name]
            yield start, one.link(ROOT / "docs"), str(one.minutes(False)), str(one.minutes(True))
            now += one.minutes(False)
    yield f"{now // 60}:{now % 60:02}", "*end*", "", ""


def parts() -> dict[str, Callable[[], str]]:
    """The parts of the documents that follow from the episodes, by name."""
    found: dict[str, Callable[[], str]] = {"exercises-of-the-course": _course}
    for one in episodes():
        found[f"time-{one.number}"] = partial(_time, one)
        text = one.path.read_text(encoding="utf-8")
        for names in re.findall(r"<!-- written: runs-([\w-]+) -->", text):
            found[f"runs-{names}"] = partial(runs_of, names.split("-"))
    for number in sorted({one.exercise for one in episodes()}):
        found[f"episodes-{number}"] = partial(_table, number)
    for half, names_of_half in enumerate(HALF_DAYS, 1):
        found[f"half-day-{half}"] = partial(_half_day, names_of_half)
    return found
