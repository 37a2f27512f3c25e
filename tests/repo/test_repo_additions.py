"""A site and a lesson are one file each; an analysis is its module, its line in the list, its
field with its text, and its table; a cause of lost time is its member and its entry.

Each is added to a copy of the tree, as a developer adds it, and then asked of the command line.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.synthetic.job import write_traces

ROOT = Path(__file__).parents[2]
ANALYSIS = '''"""How long after the window's start each device begins to work."""

from harness.analysis.process.prepared import MeasuredProcess, extent_of
from harness.analysis.summary import Wakeup


def of_process(measured: MeasuredProcess, chosen: object) -> list[Wakeup]:
    first = measured.view.events.start_ns[chosen]
    late_ns = int(first.min()) - extent_of(measured.windows)[0] if len(first) else 0
    return [Wakeup(rank=measured.view.rank, late_ns=late_ns)]
'''
ROW = '''class Wakeup(SummaryPart, kw_only=True):
    """When the device of one rank begins to work."""

    rank: int | None
    """Of the process."""
    late_ns: int
    """From the window's start to its first work."""


class Summary(SummaryPart, kw_only=True):
'''
TABLE = """
WAKEUPS = TableOf["Wakeup"](
    caption="How late each rank begins",
    rows=lambda s: s.wakeups,
    columns=(Column("rank", lambda w: str(w.rank)), Column("late", lambda w: duration(w.late_ns))),
    section="host",
    file=file_of("wakeups"),
    metrics=(
        Metric("late_ns", lambda x: max((w.late_ns for w in x.summary.wakeups), default=None), "–", "latest begin"),
    ),
)
"""

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


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A checkout of its own, without the trainings."""
    tree = tmp_path / "tree"
    for name in ("harness", "configs"):
        shutil.copytree(ROOT / name, tree / name)
    for name in ("templates", "exercises", "slurm.sh"):
        (tree / name).symlink_to(ROOT / name)
    return tree


def harness(tree: Path, *words: str) -> str:
    return python(tree, "-m", "harness", *words)


def python(tree: Path, *words: str) -> str:
    env = {**os.environ, "PYTHONPATH": str(tree), "HARNESS_RUNS": str(tree / "runs"), "HARNESS_SITE": "local"}
    argv = [sys.executable, *words]
    done = subprocess.run(argv, cwd=tree, env=env, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


IMPORTS = "from harness.analysis import summary\nfrom harness.analysis.metrics import Metric\n"


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1, (path, old)
    path.write_text(text.replace(old, new), encoding="utf-8")


def with_an_analysis(tree: Path) -> None:
    (tree / "harness/analysis/process/wakeups.py").write_text(ANALYSIS)
    rows = tree / "harness/analysis/process/rows.py"
    edit(rows, "profiler_overhead, traffic\n", "profiler_overhead, traffic, wakeups\n")
    edit(rows, '    "launches": launches', '    "wakeups": wakeups.of_process,\n    "launches": launches')
    schema = tree / "harness/analysis/summary/__init__.py"
    edit(schema, "class Summary(SummaryPart, kw_only=True):\n", ROW)
    launches = "    launches: list[Launches] = []\n"
    edit(schema, launches, f'    wakeups: list[Wakeup] = []\n    """How late."""\n{launches}')
    tables = tree / "harness/report/tables/monitor.py"
    edit(tables, "from harness.analysis import summary\n", IMPORTS)
    edit(tables, "\nTABLES: ", f"{TABLE}\nTABLES: ")
    edit(tables, "MONITOR, NETWORK)", "MONITOR, NETWORK, WAKEUPS)")


@pytest.mark.long
def test_an_analysis_of_four_files_is_in_terminal_page_files_and_comparison(tree: Path, tmp_path: Path) -> None:
    with_an_analysis(tree)
    write_traces(tmp_path / "traces")
    first, second = (str(path) for path in sorted((tmp_path / "traces").iterdir()))
    (out := tmp_path / "out").mkdir()
    text = harness(tree, "report", first, second, "--full", "--html", str(out / "page.html"))
    harness(tree, "export", "csv", first, second, "-o", str(out))
    assert "How late each rank begins" in text
    assert "How late each rank begins" in (out / "page.html").read_text(encoding="utf-8")
    with (out / "wakeups.csv").open() as file:
        rows = list(csv.DictReader(file))
    measured = json.loads(harness(tree, "report", first, second, "--json"))["wakeups"]
    assert [row["rank"] for row in rows] == ["0", "1"]
    assert [int(row["late_ns"]) for row in rows] == [row["late_ns"] for row in measured]
    assert "latest begin" in harness(tree, "compare", first, second)
    written = python(tree, "-m", "harness.cli.pages", "metric-names")
    assert "late_ns  From the window's start to its first work." in harness(tree, "help", "numbers", "wakeup")
    assert "| `late_ns` | latest begin | –" in written


def test_a_cause_is_its_member_and_its_entry(tree: Path, tmp_path: Path) -> None:
    """Then it is a finding with its words, a change with its option, and a row of the document."""
    stage = tree / "harness/replay/attribute"
    edit(
        stage / "suspect.py",
        '    DATA_STALL = "data-stall"\n',
        '    DATA_STALL = "data-stall"\n    COFFEE = "coffee"\n',
    )
    edit(stage / "causes.py", "_ENTRIES = (\n", CAUSE)
    write_traces(tmp_path / "traces")
    said = harness(tree, "report", str(tmp_path / "traces"), "--full", "--no-html")
    assert "aiting for coffee costs" in said and "rink tea" in said and "no coffee" in said
    assert "| coffee | `coffee` |  | `no-coffee` |  |" in python(tree, "-m", "harness.cli.pages", "causes")
    assert "no-coffee" in python(tree, "-c", "from harness.explain.commands import FIELDS; print(*FIELDS)")


def test_a_site_is_one_file(tree: Path) -> None:
    plain = (tree / "configs/sites/slurm.yaml").read_text(encoding="utf-8")
    assert plain.count("\nname: slurm\n") + plain.startswith("name: slurm\n") == 1
    (tree / "configs/sites/mine.yaml").write_text(plain.replace("name: slurm\n", "name: mine\n"), encoding="utf-8")
    assert "mine" in harness(tree, "sites")
    assert "site mine" in harness(tree, "-e", "1", "-g", "1", "--site", "mine", "--dry-run")


def test_a_lesson_is_one_file(tree: Path) -> None:
    plain = (tree / "configs/lessons/1a.yaml").read_text(encoding="utf-8")
    text = plain.replace("name: 1a\n", "name: 1z\n").replace("Is the GPU waiting for data?", "Is anybody waiting?")
    (tree / "configs/lessons/1z.yaml").write_text(text, encoding="utf-8")
    assert "Is anybody waiting?" in harness(tree, "lesson")
    assert harness(tree, "lesson", "1z", "--hint")
