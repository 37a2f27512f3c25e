"""Every command on the workshop's slides gives the argv, directives and environment that it should."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from typing import Any

import pytest
import yaml

from harness.cli.main import main
from harness.launch.argv import quote
from harness.launch.submit import this_machine
from tests.launch.launch_shared import ROOT, anywhere, exported

EXPECTED: dict[str, Any] = yaml.safe_load((ROOT / "tests/golden/slides.yaml").read_text(encoding="utf-8"))


def pairs(*lists: Iterable[str]) -> dict[str, str]:
    """`name=value` lines as a mapping; later lists win."""
    return {name: value for lines in lists for name, _, value in (line.partition("=") for line in lines)}


def filled(text: str, words: dict[str, str]) -> list[str]:
    """The words of `text`, with each <name> filled in."""
    while "<" in text:
        text = re.sub("<([a-z_]+)>", lambda name: str(words[name[1]]), text)
    return shlex.split(text)


def programs(script: str) -> list[list[str]]:
    """The argv of what the script runs on each node, after the names of the arrays that it is started in."""
    arrays = dict(re.findall(r"^([A-Z]+)=\((.*?)\)$", script, re.MULTILINE | re.DOTALL))
    (line,) = re.findall(r"^ +(\"\$\{\w+\[@\]\}.*)$", script, re.MULTILINE)
    names = [re.findall(r"\{(\w+)\[@\]\}", command) for command in line.split(" :then: ")]
    return [[*parts, *shlex.split(arrays[last], comments=True)] for *parts, last in names]


@pytest.mark.parametrize("site", EXPECTED["sites"])
@pytest.mark.parametrize("slide", EXPECTED["slides"], ids=[s["command"] for s in EXPECTED["slides"]])
def test_the_slides_command_asks_for_this(
    slide: dict[str, Any], site: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HARNESS_SITE", site)
    monkeypatch.setenv("HARNESS_RUNS", f"{ROOT}/exercises")
    command = slide["command"].split()
    assert main(["--dry-run", *command]) == 0
    usual = quote(f"{ROOT}/.venv/harness-python")  # HARNESS_VENV can name another folder
    script = anywhere(capsys.readouterr().out.replace(quote(this_machine().python), usual))

    there, nodes = EXPECTED["sites"][site], slide.get("nodes", 1)
    exercise = EXPECTED["exercises"][int(command[command.index("-e") + 1])]
    own = [f"nodes={nodes}", *exercise["directives"], *slide.get("directives", [])]
    directives = re.findall("^#SBATCH --(.*)$", script, re.MULTILINE)
    assert pairs(directives) == pairs(EXPECTED["directives"], there["directives"], own)
    assert len(directives) == len(pairs(directives)), "each is given once"

    named = ("JOB_ID", "RUN_DIR", "HARNESS_PYTHON", "MASTER_PORT")
    environment = [each for each in exported(script) if each.partition("=")[0] not in named]
    usual_environment = EXPECTED["environment"], there["environment"], exercise.get("environment", [])
    assert pairs(environment) == pairs(*usual_environment)
    assert f"\nexport RUN_DIR=$OUTPUT_DIR/profiler/{slide['run']}\n" in script

    words = EXPECTED["words"] | there["words"] | {"nodes": nodes, "folder": f"/checkout/exercises/{exercise['folder']}"}
    assert programs(script) == [filled(argv, words) for argv in slide["argv"]]
    assert ("-m harness export paraver" in script) == ("--nsys2prv" in command)
