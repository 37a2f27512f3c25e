"""scripts/language.py, which scripts/check runs, finds constructions and names that came back; plain ones pass."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "language.py"


def loaded() -> ModuleType:
    spec = importlib.util.spec_from_file_location("language", SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["language"] = module
    spec.loader.exec_module(module)
    return module


LANGUAGE = loaded()
RIDDLES = [
    "Differs nothing that was asked for, look at the log.",
    "Is that slow too, the machine changed.",
    "It is a machine. Is that share high and\nthe overlap low, the messages start too late.",
    "Should it end early, start it again.",
    "Had it been started, it would run.",
    "its host stands still, waiting for data",
    "what it brings is run without asking",
    "hold A against B",
    "numbers held\nagainst the theory",
    "nothing speaks against the numbers",
    "a mystery that nobody is to give it",
    "for how long is yours to say",
    "where it shall be another than the sweep's own",
    "how manieth",
    "--nodes stands there twice",
    "behind the first rank at the begin of the step",
    "of it 100.0 % in fp32",
    "then tell all",
    "Told from 3 % of the step on",
    "last to arrive half as often again as by chance",
    "the program's usual course",
    "a run says nothing about itself",
    "What NCCL says of the messages' way",
    "Can these numbers be believed",
    "it ended without writing its last word",
    "one that nobody knows",
    "a million odd command lines",
    "the middle place's step",
    "as where other programs use their cores",
    "did the loss notice",
    "not known whether it heard that job 7 shall end",
]
PLAIN = """# The step is slow

If that run is slow too, the machine has changed. Is it faster than the reference? Does it fit, and what does it cost?
The default is the sweep's name. Is the GPU waiting for data? The steps begin with data loading. It is told to wait.
"""


@pytest.mark.parametrize("text", RIDDLES)
def test_a_riddle_is_found_wherever_a_user_reads_it(text: str) -> None:
    line = 3 if "share" in text else 2
    for name, written in (
        ("docs/page.md", f"\n{text}\n"),
        ("configs/x.yaml", f"\n{text}\n"),
        ("harness/x.py", f"x = 1\ny = {text!r}\n"),
        ("harness/x.py", f'def f(a):\n    """{text}"""\n'),
    ):
        found = list(LANGUAGE.found_in(name, written))
        assert found, name
        assert found[0].place.startswith(f"{name}:") and int(found[0].place.rpartition(":")[2]) <= line


def test_plain_sentences_and_questions_pass() -> None:
    assert list(LANGUAGE.found_in("docs/page.md", PLAIN)) == []
    assert list(LANGUAGE.found_in("harness/x.py", f"TEXT = {PLAIN!r}\n")) == []


def test_a_heading_that_is_a_question_is_found() -> None:
    (found,) = LANGUAGE.found_in("docs/page.md", "text\n\n## Is it worse?\n")
    assert found == ("docs/page.md:3", "## Is it worse?", "a statement")


def test_a_title_that_is_a_question_is_found() -> None:
    (found,) = LANGUAGE.found_in("harness/x.py", 'Section(\n    title="Is it reliable?")\n')
    assert found == ("harness/x.py:2", "Is it reliable?", "a statement")


def test_a_text_with_values_filled_in_is_read_as_one() -> None:
    (found,) = LANGUAGE.found_in("harness/x.py", 'def f(a):\n    return f"hold {a!r} against it"\n')
    assert found.place == "harness/x.py:2"


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("harness/traces/believed.py", "", ["believed"]),
        ("harness/x.py", "from harness.launch import brought\n", ["brought"]),
        ("harness/x.py", "from harness.study.series.carrier import Submitter\n", ["carrier"]),
        ("tests/x.py", "class Asked:\n    pass\n", ["Asked"]),
        ("harness/x.py", "from harness.site.poll import Heard\n", ["Heard"]),
        ("harness/replay/x.py", "class Outcome:\n    pass\n", ["Outcome"]),
        ("harness/x.py", "from harness.replay.crossings import Graph\n", ["crossings"]),
        ("harness/x.py", "asked = standing = 'the plan that was asked for'\n", []),
    ],
)
def test_a_name_that_has_a_plainer_one_is_found_as_a_name_only(name: str, text: str, found: list[str]) -> None:
    assert [each.text for each in LANGUAGE.found_in(name, text)] == found


def test_the_command_names_the_place_and_the_replacement(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("Fine.\n\nIts host stands still.\n")
    done = subprocess.run([sys.executable, SCRIPT, page], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, f"{page}:3: stands still → waits; does not run\n")
    page.write_text("Its host waits.\n")
    assert subprocess.run([sys.executable, SCRIPT, page], check=False).returncode == 0
