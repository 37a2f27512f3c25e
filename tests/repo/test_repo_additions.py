"""How many files an addition touches: a metric, a phase and a cause of idle time one, by one entry; a cause of lost
time its member and its entry. A site and a lesson are one new file.

Each is added to a copy of the tree, as a developer adds it, and then asked of the command line. An option whose default
is None, a site, a lesson and a cause are also added as CONTRIBUTING says, and pass the tests that it names for them.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.synthetic.job import write_traces
from tests.waiting import limit_s

ROOT = Path(__file__).parents[2]
WRITER = "scripts/documents/pages.py"
CAUSE = """_ENTRIES = (
    CauseOfLoss(
        Cause.COFFEE,
        lambda context: iter([
            Suspect(Cause.COFFEE, context.everyone, context.every_step, context.job.lengths // 2, standing=True)
        ]),
        "coffee",
        "waiting for coffee",
        "drink tea",
        without=WithoutCause("no coffee"),
    ),
"""

OPTION = """    learning_rate: float | None = value("--learning-rate", train="--learning-rate").option(
        None, "learning rate after the warm-up (default: 2e-5)", gt=0, le=1
    )
    checkpoint_every: Count | None = value(
"""

METRIC = 'Metric("spoon_count", lambda facts: 7, "Of tea.", "spoons", "more")'


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A checkout of its own, without the trainings."""
    tree = tmp_path / "tree"
    for name in ("harness", "configs"):
        shutil.copytree(ROOT / name, tree / name)
    for name in ("templates", "exercises", "scripts", "slurm.sh"):
        (tree / name).symlink_to(ROOT / name)
    return tree


def harness(tree: Path, *words: str) -> str:
    return python(tree, "-m", "harness", *words)


def python(tree: Path, *words: str) -> str:
    env = {**os.environ, "PYTHONPATH": str(tree), "HARNESS_RUNS": str(tree / "runs"), "HARNESS_SITE": "local"}
    argv = [sys.executable, *words]
    done = subprocess.run(argv, cwd=tree, env=env, capture_output=True, text=True, check=False, timeout=limit_s(120))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    return done.stdout


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1, (path, old)
    path.write_text(text.replace(old, new), encoding="utf-8")


def with_an_option(tree: Path) -> None:
    edit(tree / "harness/experiment/training.py", "    checkpoint_every: Count | None = value(\n", OPTION)


def with_a_site(tree: Path) -> None:
    plain = (tree / "configs/sites/slurm.yaml").read_text(encoding="utf-8")
    assert plain.count("\nname: slurm\n") + plain.startswith("name: slurm\n") == 1
    (tree / "configs/sites/mine.yaml").write_text(plain.replace("name: slurm\n", "name: mine\n"), encoding="utf-8")


def with_a_lesson(tree: Path) -> None:
    plain = (tree / "configs/lessons/1a.yaml").read_text(encoding="utf-8")
    text = plain.replace("name: 1a\n", "name: 1z\n").replace("Is the GPU waiting for data?", "Is anybody waiting?")
    (tree / "configs/lessons/1z.yaml").write_text(text, encoding="utf-8")


def with_a_lesson_and_its_section(tree: Path) -> None:
    with_a_lesson(tree)
    page = tree / "exercises/exercise_1_DDP/episode_2_data.md"
    section = page.read_text(encoding="utf-8").partition("### 1e: ")[2].replace("runs-1e", "runs-1z")
    edit(page, "### 1e: ", f"### 1z: {section}\n### 1e: ")
    recorded = tree / "configs/references/workshop.yaml"
    recorded.write_text(recorded.read_text(encoding="utf-8").replace("[1a", "[1z, 1a"), encoding="utf-8")


def with_a_cause(tree: Path) -> None:
    stage = tree / "harness/replay/attribute"
    member = '    DATA_STALL = "data-stall"\n'
    edit(stage / "suspect.py", member, f'{member}    COFFEE = "coffee"\n')
    edit(stage / "causes.py", "_ENTRIES = (\n", CAUSE)


ADDED: dict[str, Callable[[Path], None]] = {
    "An option": with_an_option,
    "A site": with_a_site,
    "A lesson": with_a_lesson_and_its_section,
    "A cause of lost time": with_a_cause,
}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of all files of the checkout."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"],
        cwd=ROOT, capture_output=True, text=True, check=True, timeout=limit_s(),
    )  # fmt: skip
    for name in listed.stdout.split("\0"):
        if (ROOT / name).is_file():
            (tmp_path / "checkout" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tmp_path / "checkout" / name)
    return tmp_path / "checkout"


def recipe(kind: str) -> tuple[str, list[str]]:
    """What CONTRIBUTING says of an addition, and the tests that it names."""
    every = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("\n- **")
    (text,) = (each for each in every if each.startswith(f"{kind}:**"))
    (command,) = re.findall(r"`bash scripts/test ([^`]*)`", text)
    return text, shlex.split(command)


@pytest.mark.parametrize("kind", ADDED)
def test_the_tests_that_a_recipe_names_are_there(kind: str) -> None:
    files = [word for word in recipe(kind)[1] if word.startswith("tests/")]
    assert files and [name for name in files if not (ROOT / name).is_file()] == []


@pytest.mark.long  # runs tests of other folders once more
@pytest.mark.parametrize("kind", ADDED)
def test_an_addition_by_its_recipe_passes_the_tests_that_the_recipe_names(checkout: Path, kind: str) -> None:
    text, tests = recipe(kind)
    ADDED[kind](checkout)
    if "renew the documents" in text:
        python(checkout, WRITER)
    python(checkout, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)


def touched(tree: Path) -> set[str]:
    """The files of the copy that differ from the checkout's, or are new."""
    files = (path.relative_to(tree) for name in ("harness", "configs") for path in (tree / name).rglob("*"))
    texts = (file for file in files if (tree / file).is_file() and file.suffix in (".py", ".yaml"))
    return {
        str(file)
        for file in texts
        if not (ROOT / file).is_file() or (ROOT / file).read_bytes() != (tree / file).read_bytes()
    }


def test_a_metric_a_phase_and_a_cause_of_idle_time_are_one_entry_in_one_file_each(tree: Path, tmp_path: Path) -> None:
    """Then they are in reports, pages, comparisons, conditions and documents."""
    analysis = tree / "harness/analysis"
    edit(analysis / "metrics.py", "*_OF_POP)\n", f"*_OF_POP, {METRIC})\n")
    phases, calls = analysis / "process/phases.py", analysis / "process/host_calls.py"
    edit(phases, '    OTHER = 7, "other"\n', '    OTHER = 7, "other"\n    TEA = 8, "tea"\n')
    edit(phases, "_PATTERNS = (\n", '_PATTERNS = (\n    (Phase.TEA, re.compile("^backward$")),\n')
    edit(calls, '    OTHER = 12, "other", ', '    NAP = 13, "nap", "#654321"\n    OTHER = 12, "other", ')
    assert touched(tree) == {str(file.relative_to(tree)) for file in (analysis / "metrics.py", phases, calls)}
    write_traces(tmp_path / "traces")
    first, second = (str(path) for path in sorted((tmp_path / "traces").iterdir()))
    page = tmp_path / "page.html"
    assert re.search("^  tea +[0-9.]+ [mµ]s", harness(tree, "report", first, "--full", "--html", str(page)), re.M)
    assert '<li><span style="background: #654321"></span>idle: nap</li>' in page.read_text(encoding="utf-8")
    compared = harness(tree, "compare", first, second, "--fail-if", "spoon_count > 1")
    assert re.search("^ *spoons +7 +7 +1×", compared, re.M)
    written = python(tree, WRITER, "metric-names")
    assert "| `spoon_count` | spoons | Of tea." in written and "| `idle_nap_share` | idle: nap |" in written


def test_a_cause_is_its_member_and_its_entry(tree: Path, tmp_path: Path) -> None:
    """Then it is a finding with its words, a change with its option, and a row of the document."""
    with_a_cause(tree)
    assert touched(tree) == {f"harness/replay/attribute/{name}.py" for name in ("suspect", "causes")}
    write_traces(tmp_path / "traces")
    page = tmp_path / "page.html"
    said = harness(tree, "report", str(tmp_path / "traces"), "--full", "--html", str(page))
    assert "lost by coffee" in page.read_text(encoding="utf-8")
    assert "aiting for coffee costs" in said and "rink tea" in said and "no coffee" in said
    assert "| coffee | `coffee` |  | `no-coffee` |  |" in python(tree, WRITER, "causes")
    assert "no-coffee" in python(tree, "-c", "from harness.explain.commands import FIELDS; print(*FIELDS)")


def test_an_option_with_the_scripts_own_default_is_one_field(tree: Path) -> None:
    with_an_option(tree)
    assert touched(tree) == {"harness/experiment/training.py"}
    said = harness(tree, "-e", "1", "-g", "1", "--dry-run", "--", "--learning-rate", "0.1")
    assert "--learning-rate 0.1" in said
    assert "--learning-rate" not in harness(tree, "-e", "1", "-g", "1", "--dry-run")


def test_a_site_is_one_file(tree: Path) -> None:
    with_a_site(tree)
    assert "mine" in harness(tree, "sites")
    assert "site mine" in harness(tree, "-e", "1", "-g", "1", "--site", "mine", "--dry-run")


def test_a_lesson_is_one_file(tree: Path) -> None:
    with_a_lesson(tree)
    assert "Is anybody waiting?" in harness(tree, "lesson")
    assert harness(tree, "lesson", "1z", "--hint")
