"""scripts/language.py, which scripts/check runs, refuses what the glossary refuses; plain sentences and names pass."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import language
from tests.waiting import limit_s

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "language.py"


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
    "last to arrive half as often again as by chance",
    "one that nobody knows",
    "as where other programs use their cores",
    "did the loss notice",
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
        refused = list(language.refused_in(name, written))
        assert refused, name
        assert refused[0].place.startswith(f"{name}:") and int(refused[0].place.rpartition(":")[2]) <= line


def test_a_text_with_values_filled_in_is_read_as_one() -> None:
    (refused,) = language.refused_in("harness/x.py", 'def f(a):\n    return f"hold {a!r} against it"\n')
    assert refused.place == "harness/x.py:2"


REFUSED = [
    ("docs/page.md", "text\n\n## Is it worse?\n", [("docs/page.md:3", "## Is it worse?", "a statement")]),
    ("harness/x.py", 'Section(\n    title="Is it bad?")\n', [("harness/x.py:2", "Is it bad?", "a statement")]),
    ("harness/x.py", "\n\ndef f(mb: int) -> None: ...\n",
     [("harness/x.py:3", "mb", "micro-batch (docs/development/words.md)")]),
    ("docs/page.md", PLAIN, []), ("harness/x.py", f"TEXT = {PLAIN!r}\n", []),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "told"), REFUSED)
def test_what_is_refused_has_its_place_and_the_replacement(name: str, text: str, told: list[tuple[str, ...]]) -> None:
    assert list(language.refused_in(name, text)) == told


@pytest.mark.parametrize(
    ("name", "text", "refused"),
    [
        ("harness/traces/campaign.py", "", ["campaign"]),
        ("harness/x.py", "class Campaign:\n    pass\n", ["Campaign"]),
        ("exercises/x.py", "def f(*, cfg: Config, _idx: int) -> None:\n    idx = 1\n", ["cfg", "_idx"]),
        ("harness/x.py", "class Loop:\n    win: int\n    dev = 1\n", ["win", "dev"]),
        (
            "harness/x.py",
            "class A:\n    def f(self, *opts: int) -> None:\n        self.idx = lambda val: val\n",
            ["opts", "val"],
        ),
        ("harness/x.py", "class CampaignPoint:\n    windows: int\n", []),
        ("tests/x.py", "class Campaign:\n    pass\n", []),
        ("harness/x.py", "tmp = val = 'a defect of the campaign'\n", []),
    ],
)
def test_a_name_that_the_glossary_refuses_is_found_where_it_is_declared(
    name: str, text: str, refused: list[str]
) -> None:
    assert [each.text for each in language.refused_in(name, text)] == refused


def test_one_entry_of_the_glossary_refuses_a_word_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / language.GLOSSARY).read_text(encoding="utf-8")
    longer = language.read_glossary(page.replace("| `laggard` |", "| `laggard`, `late_one` |"))
    monkeypatch.setattr(language, "glossary", lambda: longer)
    text = "class LateOne:\n    late_one: int\n\n\ndef f(late_one: int) -> None: ...\n"
    assert [each.text for each in language.refused_in("harness/late_one.py", text)] == [
        "late_one",
        "LateOne",
        *2 * ["late_one"],
    ]


def test_a_glossary_with_a_fault_is_refused() -> None:
    page = (ROOT / language.GLOSSARY).read_text(encoding="utf-8")
    with pytest.raises(ValueError, match="`idx` is refused for straggler and for index"):
        language.read_glossary(page.replace("| `laggard` |", "| `idx` |"))
    with pytest.raises(ValueError, match="no table below '## Phrases'"):
        language.read_glossary(page.partition("## Phrases")[0])


def test_every_name_in_the_code_of_the_glossary_is_in_the_code() -> None:
    texts = [path.read_text(encoding="utf-8") for folder in language.PRODUCT for path in (ROOT / folder).rglob("*.py")]
    classes = set(re.findall(r"^(?:class )?(\w+)(?:\(|:| = )", "\n".join(texts), re.MULTILINE))
    names = [name for names in language.glossary().nouns.values() for name in names]
    assert len(names) > 40
    assert [name for name in names if name not in classes and not (ROOT / name).is_file()] == []


def test_the_command_names_the_place_and_the_replacement(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("Fine.\n\nIts host stands still.\n")
    done = subprocess.run(
        [sys.executable, SCRIPT, page], capture_output=True, text=True, check=False, timeout=limit_s()
    )
    assert (done.returncode, done.stdout) == (1, f"{page}:3: stands still → waits; does not run\n")
    page.write_text("Its host waits.\n")
    assert subprocess.run([sys.executable, SCRIPT, page], check=False, timeout=limit_s()).returncode == 0
