"""Lessons at a site: those for GPUs on a machine without them (listed as such, refused first, and no command is printed
that fails), a site's defaults, and the warnings of its launches."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from harness.cli.main import main
from harness.cli.study.lesson import LessonAtSite
from harness.common.errors import RequestError
from harness.experiment.exercises import DDP
from harness.site.site import Site
from harness.study.lessons import at_site, lesson_names, load_lesson, shell_command


@pytest.fixture
def on_cpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This machine without GPUs and without runs."""
    monkeypatch.setenv("HARNESS_RUNS", str(tmp_path))
    monkeypatch.setenv("HARNESS_SITE", "local")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return tmp_path


GPU_LESSONS = ["1e", "1j", "1m", "1n"]


@pytest.mark.parametrize("name", GPU_LESSONS)
@pytest.mark.parametrize("flags", [[], ["--run"], ["--again"], ["--answer"]])
def test_a_lesson_for_gpus_is_refused_on_cpus_before_anything_else(
    on_cpus: Path, name: str, flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lesson", name, *flags]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"slurm.sh: lesson {name} needs GPUs, and site local runs on CPUs: use a --site")
    assert list(on_cpus.iterdir()) == []


@pytest.mark.parametrize("name", GPU_LESSONS)
def test_the_question_of_a_lesson_for_gpus_can_be_read_on_cpus_and_every_next_command_works(
    on_cpus: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words, seen = ["lesson", name, "--no-run"], 0
    while True:
        assert main(words) == 0
        said = capsys.readouterr().out
        assert "This lesson needs GPUs, and site local runs on CPUs: choose another --site." in said
        following = re.search(r"^next: bash slurm\.sh (.*)$", said, re.M)
        if following is None:
            break
        words, seen = following[1].split(), seen + 1
    assert seen == len(load_lesson(name).hints)


def test_the_list_says_which_lessons_need_gpus(on_cpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lesson"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if "needs GPUs" in line] == GPU_LESSONS


@pytest.mark.parametrize("site", ["local", "leonardo"])
@pytest.mark.parametrize("name", lesson_names())
def test_each_command_that_a_lesson_prints_is_accepted_or_marked_as_needing_gpus(
    on_cpus: Path, name: str, site: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lesson", name, "--site", site, "--no-run"]) == 0
    said = capsys.readouterr().out
    printed = [shlex.split(line) for line in re.findall(r"^  [ab] \(not run yet\): bash slurm\.sh (.*)$", said, re.M)]
    assert len(printed) == 2
    codes = [main(["--dry-run", *words]) for words in printed]
    marked = "This lesson needs GPUs" in said
    assert marked == (site == "local" and name in GPU_LESSONS)
    assert (2 in codes) if marked else codes == [0, 0], capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "site", "said"),
    [
        ("3a", "jureca", "51.6 GB per GPU does not fit into 42.9 GB"),
        ("1m", "lumi", "--nic-metrics needs nsys"),
        ("3a", "leonardo", None),
    ],
)
def test_the_question_warns_of_what_a_sites_launch_would_and_is_whole(
    on_cpus: Path, name: str, site: str, said: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lesson", name, "--site", site, "--no-run"]) == 0
    out = capsys.readouterr().out
    warnings = [line for line in out.splitlines() if line.startswith("     warning: ")]
    assert (any(said in line for line in warnings)) if said else warnings == []
    assert "look at" in out and "next: bash slurm.sh lesson" in out


def test_at_a_site_with_defaults_a_lesson_is_what_its_commands_ask_for(capsys: pytest.CaptureFixture[str]) -> None:
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


def test_every_next_command_keeps_the_site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HARNESS_RUNS", str(tmp_path))
    assert main(["lesson", "--site", "leonardo"]) == 0
    assert "next: bash slurm.sh lesson 1a --site leonardo · --hint" in capsys.readouterr().out
    assert main(["lesson", "1a", "--site", "leonardo", "--answer", "--no-run"]) == 2
    assert "(or bash slurm.sh lesson 1a --site leonardo --run)" in capsys.readouterr().err


def test_defaults_that_break_a_lesson_are_one_sentence() -> None:
    with pytest.raises(RequestError, match="--activation-checkpointing needs --mixed-precision: add it"):
        at_site(load_lesson("1b").pair(cpu=False), {"activation_checkpointing": True})
