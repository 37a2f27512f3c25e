"""Who may import whom, where import contracts cannot say it, and what starting the command line may load."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

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


def test_the_bootstrap_needs_nothing_but_python() -> None:
    own = {path.stem for path in sources("scripts/bootstrap")}
    third_party = {module.split(".")[0] for path in sources("scripts/bootstrap") for module in imported(path)}
    assert third_party - own - set(sys.stdlib_module_names) == set()


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
    assert loaded & HEAVY == set()


def test_test_files_have_names_of_their_own() -> None:
    names = [path.name for path in sources("tests") if path.name.startswith("test_")]
    assert sorted({name for name in names if names.count(name) > 1}) == []
