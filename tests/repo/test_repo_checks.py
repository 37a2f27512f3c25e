"""What scripts/check and the hook refuse: words, tests that wait, size, gone parameters, messages, pages."""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import commit_message, language
from scripts.rules_of_tests import problems
from tests.waiting import limit_s

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
CEILINGS, DOCSTRINGS = importlib.import_module("ceilings"), importlib.import_module("docstring_names")


def checked(script: str, file: Path) -> tuple[int, list[str]]:
    """The exit code of a check of scripts/ and what it prints."""
    argv = [sys.executable, str(ROOT / "scripts" / script), str(file)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=limit_s())
    return done.returncode, done.stdout.splitlines()


# ---- The language of the glossary


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


def test_every_name_in_the_code_of_the_glossary_is_in_the_code() -> None:
    texts = [path.read_text(encoding="utf-8") for folder in language.PRODUCT for path in (ROOT / folder).rglob("*.py")]
    classes = set(re.findall(r"^(?:class )?(\w+)(?:\(|:| = )", "\n".join(texts), re.MULTILINE))
    names = [name for names in language.glossary().nouns.values() for name in names]
    assert len(names) > 40
    assert [name for name in names if name not in classes and not (ROOT / name).is_file()] == []


def test_the_command_names_the_place_and_the_replacement(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("Fine.\n\nIts host stands still.\n")
    assert checked("language.py", page) == (1, [f"{page}:3: stands still → waits; does not run"])
    page.write_text("Its host waits.\n")
    assert checked("language.py", page) == (0, [])


# ---- Tests


@pytest.mark.parametrize(
    ("refused", "what"),
    [
        ("time.sleep(1)", "sleep without a reason"),
        ("process.wait()", ".wait() without a limit"),
        ("thread.join()", ".join() without a limit"),
        ("process.communicate()", ".communicate() without a limit"),
        ("subprocess.run(['true'], check=True)", "subprocess.run without a limit"),
        ("while not ready():\n    time.sleep(1)  # it is not ready", "a loop that polls"),
        ("def test():\n    a = time.monotonic()\n    assert time.monotonic() - a < 5", "an assertion about a duration"),
        ("def test():\n    a = time.time()\n    b = 2 * a\n    assert b < 5", "an assertion about a duration"),
    ],
)
def test_what_makes_a_test_wait_or_unsteady_is_refused(refused: str, what: str) -> None:
    assert [said.partition(" →")[0] for _, said in problems(refused)] == [what]


@pytest.mark.parametrize(
    "passes",
    [
        "time.sleep(1)  # it takes long, which is what is tested",
        "# it takes long, which is what is tested\ntime.sleep(1)",
        "process.wait(timeout=limit_s())",
        "', '.join(words)",
        "event.wait(5)",
        "subprocess.run(['true'], timeout=limit_s())",
        "job.run('true')",
        "wait_until(file.exists, 'the file')",
        "def test():\n    now = time.time()\n    assert age_of(now) == 5",
        "def test():\n    a = time.time_ns()\n    assert recorded.ns <= time.time_ns() - a",
        "PROGRAM = 'import time\\ntime.sleep(9)'",
    ],
)
def test_what_waits_with_a_reason_or_a_limit_passes(passes: str) -> None:
    assert list(problems(passes)) == []


# ---- Size and docstrings


MODULE = '"""What it is for."""\n\nX = 1\n\n\ndef f() -> int:\n    """One."""\n    return 1\n'


def test_a_room_over_its_ceiling_is_named_with_both_numbers(tmp_path: Path) -> None:
    for name, text in {"harness/launch/job.py": MODULE, "tests/test_job.py": MODULE, "docs/page.md": "a\nb\n"}.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    subprocess.run(["git", "init", "-q", tmp_path], check=True, timeout=limit_s())
    now = CEILINGS.sizes(tmp_path)
    assert now == {"docs": 2, "harness/launch": 3, "product": 3, "tests": 3}
    assert CEILINGS.faults(now, {"docs": 2, "harness/launch": 2, "harness/live": 9, "product": 3}) == [
        "harness/launch has 3, 1 over its ceiling of 2", "tests has 3 and no ceiling",
        "harness/live has a ceiling and is gone",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('def f(size_ns: int) -> None:\n    """Do. size_ns: of a step. size: of it."""', ["size"]),
        ('class A:\n    """a, b: of it; empty: none."""\n\n    a: int', ["b"]),
        ('def f(a: int) -> None:\n    """Say: it is so. Note: a."""', []),
    ],
)
def test_a_name_that_a_docstring_explains_and_that_is_not_there_is_found(text: str, names: list[str]) -> None:
    assert [name for _, name in DOCSTRINGS.gone(ast.parse(text))] == names


# ---- Messages with a reason, a changelog of releases, pages that fit an editor


HOOKS = ROOT / "scripts/hooks"
WIDTH = 120
LONGEST_CHANGELOG = 200  # lines
LONGEST_CONTRIBUTING = 8192  # bytes
REASON = "\n\nThe reason.\n"


def git(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    who = {f"GIT_{role}_{part}": "a@b" for role in ("AUTHOR", "COMMITTER") for part in ("NAME", "EMAIL")}
    environ = {name: text for name, text in os.environ.items() if not name.startswith("GIT_")}
    environ |= who | {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    return subprocess.run(
        ["git", *words], cwd=folder, env=environ, capture_output=True, text=True, check=False, timeout=limit_s()
    )


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository whose commits pass our hook."""
    folder = tmp_path_factory.mktemp("repository")
    assert git(folder, "init", "-q").returncode == 0
    git(folder, "config", "core.hooksPath", str(HOOKS))
    return folder


NO_BODY = "the message has no body: write the reason below an empty line"
MESSAGES = {
    "x" * 73 + REASON: "the subject has 73 characters: 72 at most",
    "Reports are faster": NO_BODY,
    f"Reports\n\n# Please enter the message.\n{commit_message.SCISSORS}\nthe difference\n": NO_BODY,
    "Reports are faster\nbecause tables are kept": "the second line is not empty ('because tables are kept')",
    "é" * 72 + REASON: "",
    "fixup! Reports": "",
    "Merge branch 'x'\n": "",
}


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_without_a_short_subject_and_a_reason_has_a_fault(message: str) -> None:
    assert "".join(commit_message.faults(message)).startswith(MESSAGES[message])
    assert bool(commit_message.faults(message)) == bool(MESSAGES[message])


@pytest.mark.parametrize(("message", "code"), [("Reports are faster", 1), (f"Reports are faster{REASON}", 0)])
def test_the_hook_stops_a_commit_and_says_why(repository: Path, message: str, code: int) -> None:
    done = git(repository, "commit", "-q", "--allow-empty", "-m", message)
    assert (done.returncode, NO_BODY in done.stderr) == (code, bool(code))


def test_commits_since_the_hook_have_a_short_subject_and_a_reason() -> None:
    shallow = git(ROOT, "rev-parse", "--is-shallow-repository")
    if shallow.returncode != 0 or shallow.stdout.strip() != "false":
        pytest.skip("no history of git, or not all of it")
    first = git(ROOT, "log", "--diff-filter=A", "--format=%H", "--", "scripts/hooks/commit-msg").stdout.split()
    if not first:
        pytest.skip("the hook is in no commit yet")
    since = git(ROOT, "log", "--no-merges", "--ancestry-path", "--format=%h%n%B%x00", f"{first[-1]}..HEAD").stdout
    commits = [text.strip().split("\n", 1) for text in since.split("\0") if text.strip()]
    assert {name: found for name, message in commits if (found := commit_message.faults(message))} == {}


def test_the_changelog_is_a_page_that_begins_with_what_comes_and_the_release() -> None:
    lines = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert version
    assert len(lines) <= LONGEST_CHANGELOG, "what is new, one line each; internals are in the commits"
    releases = [line.removeprefix("## ") for line in lines if line.startswith("## ")]
    assert releases[:2] == ["Unreleased", version[1]]
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", release) for release in releases[1:])


@pytest.mark.parametrize("name", ["CHANGELOG.md", "CONTRIBUTING.md"])
def test_a_page_for_maintainers_fits_an_editor(name: str) -> None:
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    assert [(number, len(line)) for number, line in enumerate(lines, 1) if len(line) > WIDTH] == []
    assert name == "CHANGELOG.md" or (ROOT / name).stat().st_size <= LONGEST_CONTRIBUTING
