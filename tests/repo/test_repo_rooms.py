"""Who may import whom, where import contracts cannot say it, what starting the command line may load, and that
each room around the core can be taken away."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from harness.cli.commands import COMMANDS
from harness.cli.rooms import ROOMS
from harness.common.run_folder import run_files
from tests.run.unlisted import unlisted_files
from tests.waiting import limit_s

ROOT = Path(__file__).parents[2]
HOUSE = ROOT / "docs/development/house.md"
HEAVY = {
    "torch",
    "transformers",
    "accelerate",
    "deepspeed",
    "megatron",
    "submitit",
    "numpy",
    "matplotlib",
    "plotly",
    "rich",
}


def sources(folder: str) -> list[Path]:
    found = sorted((ROOT / folder).rglob("*.py"))
    assert found, folder
    return found


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imported(path: Path) -> frozenset[str]:
    """Every module that a file imports, wherever in it."""
    nodes = list(ast.walk(parsed(path)))
    whole = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return frozenset(
        whole | {"." * node.level + (node.module or "") for node in nodes if isinstance(node, ast.ImportFrom)}
    )


def importers(folder: str, package: str) -> list[str]:
    def inside(module: str) -> bool:
        return module == package or module.startswith(package + ".")

    return [str(path.relative_to(ROOT)) for path in sources(folder) if any(map(inside, imported(path)))]


def test_the_harness_imports_no_training_script() -> None:
    assert importers("harness", "exercises") == []


def test_nsys2prv_is_run_and_never_imported() -> None:
    assert importers("harness", "nsys2prv") == []


def running(node: ast.AST) -> Iterator[ast.AST]:
    """Every node below this one but those that only a type checker sees."""
    for child in ast.iter_child_nodes(node):
        types_only = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        if not types_only:
            yield child
            yield from running(child)


def named(node: ast.AST) -> Iterator[str]:
    """Every module that an import statement may mean."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        yield from (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@cache
def mentioned(folder: str) -> dict[str, frozenset[str]]:
    """The modules of a folder, and whatever each imports, wherever in it."""
    trees = {module_name(path): parsed(path) for path in sources(folder)}
    return {name: frozenset(other for node in running(tree) for other in named(node)) for name, tree in trees.items()}


def imports(*folders: str) -> dict[str, set[str]]:
    """The modules of some folders, and which of them each imports, wherever in it."""
    every = {name: others for folder in folders for name, others in mentioned(folder).items()}
    return {name: {*(others & every.keys())} - {name} for name, others in every.items()}


def test_no_modules_import_each_other_in_a_circle_not_even_inside_a_function() -> None:
    left = imports("harness")
    assert "harness.traces.pool" in left["harness.traces.many"], "no import was seen"
    while free := [name for name, others in left.items() if not others & left.keys()]:
        for name in free:
            del left[name]
    assert sorted(left) == [], "these modules are in a circle, or import one"


@pytest.mark.parametrize("walk", ["**What `--ds-no-overlap` changes**", "**The way of a kernel's row**"])
def test_a_walk_through_the_house_is_ten_steps_from_file_to_file(walk: str) -> None:
    text = HOUSE.read_text(encoding="utf-8")
    steps = re.findall(r"^\d+\. (.*(?:\n {3}.*)*)", text[text.index(walk) :].split("\n\n", 2)[1], re.MULTILINE)
    words = re.findall(r"`([\w./]+/[\w./]+)`", " ".join(steps))
    files = [word if word.startswith(("exercises/", "templates/")) else f"harness/{word}" for word in words]
    assert len(steps) == 10 and [file for file in files if not (ROOT / file).is_file()] == []
    graph = imports("harness", "exercises")
    on_the_way = {module_name(ROOT / file) for file in files if file.endswith(".py")}
    known = {name for name in on_the_way if graph[name] & on_the_way} | {o for n in on_the_way for o in graph[n]}
    assert sorted(on_the_way - known) == [], "no file of the walk imports these, and they import none of it"


def test_every_room_has_its_line_in_the_tree_of_the_house() -> None:
    tree = HOUSE.read_text(encoding="utf-8").split("```")[1]
    named = [line.split()[0] for line in tree.splitlines()[1:]]
    assert [name for name in named if not list(ROOT.glob(name))] == []
    rooms = {f"harness/{file.parent.name}" for file in (ROOT / "harness").glob("*/__init__.py")}
    assert sorted(rooms - set(named)) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["-e", "1", "--site", "leonardo", "--dry-run"],
        ["--help"],
        ["sites"],
        ["report", "--help"],
        ["lesson"],
        ["help", "lesson"],
        ["sweep", "hpz", "--site", "leonardo", "--dry-run"],
    ],
    ids=" ".join,
)
def test_quick_commands_load_nothing_heavy(arguments: list[str]) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "harness", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=limit_s())
    assert done.returncode == 0, done.stderr[-500:]
    loaded = {line.rsplit("|", 1)[-1].strip().split(".")[0] for line in done.stderr.splitlines() if "|" in line}
    assert "pydantic" in loaded or "typer" in loaded, "the import log is empty"
    asked_for_help = {"--help", "help"} & {*arguments}
    assert loaded & HEAVY == ({"rich"} if asked_for_help else set())


def test_test_files_have_names_of_their_own() -> None:
    names = [path.name for path in sources("tests") if path.name.startswith("test_")]
    assert sorted({name for name in names if names.count(name) > 1}) == []


# ---- Each room around the core can be taken away from a copy of the tree


TRACE = ROOT / "tests/data/h100/fp32.json.gz"
TINY = "--model tiny-llama --seq-length 16 --skip-steps 0 --wait-steps 0 --warmup-steps 1 --active-steps 1 --steps 3"
# What every training leaves, its report included, without the room that plans it.
LEFT = (
    *(run_files.RECORD, run_files.SCRIPT, run_files.STATUS, run_files.NODE_STATUS),
    *(run_files.METRICS, run_files.LINES, run_files.JOB_TIME, run_files.KINETO),
    *(run_files.MONITOR_META, run_files.MONITOR_SAMPLES, run_files.MONITOR_SUMMARY, run_files.MONITOR_PLOTS),
    *(run_files.SUMMARY, run_files.PAGE),
)
# Several commands in one process, to import once; the last line has their exit codes.
SEVERAL = "import json, sys; from harness.cli.main import main; print([main(each) for each in json.loads(sys.argv[1])])"


def tree_without(folder: Path, *rooms: str) -> Path:
    """A checkout without the folders of these rooms."""
    tree = folder / "tree"
    gone = {ROOT / "harness" / inside / room for room in rooms for inside in ("", "cli")}
    shutil.copytree(
        ROOT / "harness",
        tree / "harness",
        ignore=lambda path, names: [name for name in names if Path(path) / name in gone or name == "__pycache__"],
    )
    for name in ("configs", "docs", "exercises", "templates", "pyproject.toml", "slurm.sh"):
        (tree / name).symlink_to(ROOT / name)
    return tree


def harness(tree: Path, *commands: list[str]) -> subprocess.CompletedProcess[str]:
    """Run these commands in this tree, one after the other; the last line printed has their exit codes."""
    env = {**os.environ, "PYTHONPATH": str(tree), "HARNESS_RUNS": str(tree / "runs"), "HARNESS_SITE": "local"}
    argv = [sys.executable, "-c", SEVERAL, json.dumps(commands)]
    return subprocess.run(argv, cwd=tree, env=env, capture_output=True, text=True, check=False, timeout=limit_s(300))


def codes(done: subprocess.CompletedProcess[str]) -> list[int]:
    assert done.returncode == 0, done.stderr
    found: list[int] = json.loads(done.stdout.splitlines()[-1])
    return found


def commands_of(room: str) -> list[str]:
    return [name for name, entry in COMMANDS.items() if entry.function.startswith(f"harness.cli.{room}.")]


@pytest.mark.long
@pytest.mark.parametrize("room", ROOMS)
def test_without_a_room_only_its_own_commands_are_missing(room: str, tmp_path: Path) -> None:
    tree = tree_without(tmp_path, room)
    launches = [["-e", str(number), "-g", "1", "--site", "leonardo", "--dry-run"] for number in range(4)]
    done = harness(tree, *launches, ["--help"], ["help"], ["ls"], ["report", str(TRACE), "--no-html"])
    assert codes(done) == [0] * 8, done.stderr
    assert done.stdout.count("#SBATCH --nodes") == len(launches) and "fp32" in done.stdout
    own = [["-e", "1", "--plan"]] if room == "plan" else [[name] for name in commands_of(room)]
    assert own, "a room has a command"
    refused = harness(tree, *own)
    assert codes(refused) == [2] * len(own)
    assert [
        line for line in refused.stderr.splitlines() if f": this copy of the harness is without harness/{room} " in line
    ]
    sentences = [line for line in refused.stderr.splitlines() if not line.startswith("site: ")]
    assert len(sentences) == len(own), "one sentence each"


def test_without_the_reader_of_amd_s_traces_they_are_one_sentence(tmp_path: Path) -> None:
    tree = tree_without(tmp_path, "traces/rocpd")
    (trace := tmp_path / "1_results.db").write_bytes(b"SQLite format 3\0 rocpd_metadata")
    done = harness(tree, ["report", str(trace)], ["report", str(TRACE), "--no-html"])
    assert codes(done) == [1, 0], done.stderr
    assert "is a database of rocprofv3, and this copy of the harness is without its reader" in done.stderr


@pytest.mark.long  # that the core imports no room is in scripts/check
@pytest.mark.train
def test_without_all_rooms_an_exercise_trains_and_is_reported(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="training needs PyTorch")
    tree = tree_without(tmp_path, *ROOMS)
    launch = ["-e", "1", "-g", "1", *TINY.split(), "--profiler", "torch"]
    done = harness(tree, launch, ["status", "last"], ["report", "last"])
    assert codes(done) == [0] * 3, done.stderr
    assert "local-1  completed" in done.stdout and "a step " in done.stdout
    assert unlisted_files(tree / "runs") == [], "the table of a run's files names what a run leaves"
    (run,) = (tree / "runs").glob("*/profiler/[!.]*")
    assert [file.name for file in LEFT if not file.paths(run)] == []


def test_the_contract_of_the_core_has_each_folder_that_is_no_room() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    contract = text.partition('name = "The core knows none of the rooms around it"')[2].partition("[[tool")[0]
    core, _, rooms = contract.partition("forbidden_modules")
    inside = {path.parent.name for path in (ROOT / "harness").glob("*/__init__.py")}
    in_cli = {path.stem for path in (ROOT / "harness/cli").iterdir() if path.suffix == ".py" or path.is_dir()}
    named = {f"harness.{name}" for name in inside - {"cli"}}
    named |= {f"harness.cli.{name}" for name in in_cli - {"__init__", "__pycache__"}}
    of_rooms = {f"harness.{part}{room}" for room in ROOMS for part in ("", "cli.")}
    assert set(re.findall(r'"(harness[\w.]*)"', rooms)) == of_rooms
    assert set(re.findall(r'"(harness[\w.]*)"', core)) == named - of_rooms
    assert [page for page in ROOMS.values() if not (ROOT / page).is_file()] == []
