"""A script is short, and has no construction of bash that its reader has to take apart."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.experiment.exercises import DDP, CommTests, DeepSpeed, Experiment, Megatron
from harness.launch.backends.registry import backend_of
from harness.launch.job import Machine, resolve
from harness.launch.render import render
from harness.site.site import load_site
from tests.launch.launch_shared import ROOT, SITES

TEMPLATES = ("job", "slurm", "local", "environment", "meeting", "slurm_array", "slurm_series", "doctor")
ASKED: dict[str, Experiment] = {
    "0": CommTests(nodes=2),
    "1": DDP(),
    "2": DeepSpeed(nodes=2, overlap_comm=False),
    "3": Megatron(nodes=2, pp=2, tp=4, nsys2prv=True),
}
CONSTRUCTIONS = {
    "a function": r"^\s*(function\s+\w|[\w-]+\s*\(\s*\))",
    "trap": r"\btrap\b",
    "mapfile": r"\b(mapfile|readarray)\b",
    "process substitution": r"<\(",
    "a loop": r"(^|[;&|({]|\bdo|\bthen|\belse|!)\s*(for|while|until|select)\s",
}


MACHINE = Machine(0, 2, has_nsys=True, python=f"{ROOT}/.venv/harness-python", runs_dir=f"{ROOT}/exercises")


def script(asked: Experiment, site: str) -> str:
    loaded = load_site(site)
    if backend_of(loaded).RUNS_HERE and isinstance(asked, Megatron):  # tp 4 needs four ranks on a node
        asked = asked.model_copy(update={"gpus_per_node": 4})
    return render(resolve(asked, loaded, MACHINE))


def code(script: str) -> str:
    """The script without its comments and without texts that bash does not read as commands."""
    lines = [re.sub(r" # .*", "", line) for line in script.splitlines() if not line.startswith("#")]
    return re.sub(r"'[^']*'", "''", "\n".join(lines))


def constructions(script: str) -> list[str]:
    return [name for name, pattern in CONSTRUCTIONS.items() if re.search(pattern, code(script), re.MULTILINE)]


@pytest.mark.parametrize(
    ("asked", "site", "most"),
    [
        (DeepSpeed(nodes=2, overlap_comm=False), "leonardo", 80),
        (Megatron(nodes=2, pp=2, tp=4, nsys2prv=True), "marenostrum5", 95),
        (DDP(), "local", 60),
    ],
    ids=["exercise 2", "the largest", "on this machine"],
)
def test_a_script_has_few_lines(asked: Experiment, site: str, most: int) -> None:
    text = script(asked, site)
    assert ("CONTAINER=(" in text and "NSYS=(" in text) or site == "local"
    assert len(text.splitlines()) <= most


def test_the_largest_script_is_the_largest() -> None:
    lines = {(n, site): len(script(each, site).splitlines()) for n, each in ASKED.items() for site in SITES}
    assert max(lines.values()) <= 95, max(lines, key=lines.__getitem__)


def test_the_templates_of_a_job_are_short() -> None:
    files = [Path(ROOT, "templates", f"{name}.j2") for name in TEMPLATES]
    assert sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files) <= 200
    assert {file.name for file in Path(ROOT, "templates").glob("*.j2")} <= {
        *(f.name for f in files),
        "report.html.j2",
        "runs.html.j2",
    }


@pytest.mark.parametrize("site", SITES)
@pytest.mark.parametrize("exercise", ASKED)
def test_a_script_has_neither_functions_nor_loops(exercise: str, site: str) -> None:
    assert constructions(script(ASKED[exercise], site)) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("run() {\n:\n}", ["a function"]),
        ("function run { :; }", ["a function"]),
        ("trap 'exit 1' TERM", ["trap"]),
        ("mapfile -t HOSTS < hosts", ["mapfile"]),
        ("cat <(ls)", ["process substitution"]),
        ("for node in 1 2; do :; done", ["a loop"]),
        ("sleep 1 & while kill -0 $!; do :; done", ["a loop"]),
        ("  until test -e x; do :; done", ["a loop"]),
        ("# for a reader: while it runs", []),
        ("echo 'a trap for me' # while it runs", []),
        ("WORDS=(train.py\n  --seed 1)\nX=$(hostname)", []),
    ],
)
def test_each_construction_is_found(text: str, found: list[str]) -> None:
    assert constructions(text) == found
