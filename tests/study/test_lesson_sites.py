"""Lessons at a site: those for GPUs on a machine without them (listed as such, refused first, and no command is printed
that fails), a site's defaults, and the warnings of its launches."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from harness.cli.study.lesson import LessonAtSite
from harness.common.errors import RequestError
from harness.experiment.exercises import DDP
from harness.site.site import Site
from harness.study.lessons import at_site, lesson_names, load_lesson, shell_command
from tests.study.kit import Say

GPU_LESSONS = ["1e", "1j", "1m", "1n"]


@pytest.mark.parametrize("flags", [[], ["--run"], ["--again"], ["--answer"]])
def test_a_lesson_for_gpus_is_refused_on_cpus_before_anything_else(runs: Path, flags: list[str], say: Say) -> None:
    said = say("lesson", "1e", *flags)
    assert (said.code, said.out, list(runs.iterdir())) == (2, "", [])
    assert said.err.startswith("slurm.sh: lesson 1e needs GPUs, and site local runs on CPUs: use a --site")


@pytest.mark.parametrize("name", GPU_LESSONS)
def test_the_question_of_a_lesson_for_gpus_can_be_read_on_cpus_and_every_next_command_works(
    runs: Path, name: str, say: Say
) -> None:
    words, hints = ["lesson", name, "--no-run"], load_lesson(name).hints
    for _ in hints:
        said = say(*words)
        assert "This lesson needs GPUs, and site local runs on CPUs: choose another --site." in said.out
        (following,) = re.findall(r"^next: bash slurm\.sh (.*)$", said.out, re.M)
        words = following.split()
    assert "next: " not in say(*words).out, "the last hint"


def test_the_list_says_which_lessons_need_gpus(runs: Path, say: Say) -> None:
    lines = say("lesson").out.splitlines()
    assert [line.split()[0] for line in lines if "needs GPUs" in line] == GPU_LESSONS
    assert "next: bash slurm.sh lesson 1a --site leonardo · --hint" in say("lesson", "--site", "leonardo").out


@pytest.mark.parametrize("site", ["local", "leonardo"])
@pytest.mark.parametrize("name", lesson_names())
def test_each_command_that_a_lesson_prints_is_accepted_or_marked_as_needing_gpus(
    runs: Path, name: str, site: str, say: Say
) -> None:
    said = say("lesson", name, "--site", site, "--no-run").out
    printed = [shlex.split(line) for line in re.findall(r"^  [ab] \(not run yet\): bash slurm\.sh (.*)$", said, re.M)]
    codes = [say("--dry-run", *words).code for words in printed]
    marked = "This lesson needs GPUs" in said
    assert (len(codes), marked) == (2, site == "local" and name in GPU_LESSONS)
    assert (2 in codes) if marked else codes == [0, 0]


@pytest.mark.parametrize(
    ("name", "site", "warning"),
    [
        ("3a", "jureca", "51.6 GB per GPU does not fit into 42.9 GB"),
        ("1m", "lumi", "--nic-metrics needs nsys"),
        ("3a", "leonardo", ""),
    ],
)
def test_the_question_warns_of_what_a_sites_launch_would_and_is_whole(
    runs: Path, name: str, site: str, warning: str, say: Say
) -> None:
    said = say("lesson", name, "--site", site, "--no-run").out
    assert (warning in said) and ("     warning: " in said) == bool(warning)
    assert "look at" in said and "next: bash slurm.sh lesson" in said


def test_at_a_site_with_defaults_a_lesson_is_what_its_commands_ask_for() -> None:
    """What the lesson compares is its own, what it leaves open the site's, as in any launch there."""
    site = Site(name="x", description="x", defaults={"mixed_precision": True, "active_steps": 3, "seed": 7})
    pair = at_site(load_lesson("1b").pair(cpu=False), site.defaults)
    assert (pair.a, pair.b) == (DDP(active_steps=3, seed=7), DDP(mixed_precision=True, active_steps=3, seed=7))
    assert shell_command(pair.a, "x.yaml", site.defaults) == "bash slurm.sh -e 1 --site x.yaml -- --no-mixed-precision"
    assert shell_command(pair.b, None, site.defaults) == "bash slurm.sh -e 1"


def test_what_no_flag_takes_back_the_lesson_runs_itself() -> None:
    lesson, site = load_lesson("1a"), Site(name="x", description="x", defaults={"slow_dataloading": True})
    asked = LessonAtSite(lesson, at_site(lesson.pair(cpu=False), site.defaults), site, "my x.yaml")
    assert asked.command(asked.pair.a) == "bash slurm.sh lesson 1a --site 'my x.yaml' --run"
    assert asked.command(asked.pair.b) == "bash slurm.sh -e 1 --site 'my x.yaml'"


def test_defaults_that_break_a_lesson_are_one_sentence() -> None:
    with pytest.raises(RequestError, match="--activation-checkpointing needs --mixed-precision: add it"):
        at_site(load_lesson("1b").pair(cpu=False), {"activation_checkpointing": True})
