"""The table of a run's files is complete, and what cannot be read is one sentence."""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from harness.common.run_folder import run_files
from harness.common.run_folder.run_files import FILES, METRICS, SUMMARY
from harness.common.run_folder.run_store import RunFile, UnreadFileError
from harness.run import Run
from harness.run.record import PARTIAL_RECORD_FILE, RECORD_FILE, STATUS_FILE
from tests.launch.launch_shared import ROOT, a_run

OF_OTHERS = {
    ("harness/observe/site/sitecustomize.py", "observe.json")  # any Python 3 reads it, and imports nothing of ours
}
"""The modules that write a name of the table themselves."""


def modules() -> Iterator[tuple[str, str]]:
    """Each module of the product, with its text."""
    for path in sorted((ROOT / "harness").rglob("*.py")):
        yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")


def entries_of(name: str) -> list[RunFile[object]]:
    """The files of a run that a module declares or imports."""
    module = import_module(name.removesuffix(".py").replace("/", "."))
    return [value for value in vars(module).values() if isinstance(value, RunFile)]


def test_each_file_that_the_code_reads_is_in_the_table() -> None:
    declared = [(name, each) for name, text in modules() if "run_files" in text for each in entries_of(name)]
    assert len(declared) > 20
    listed = {(each.name, each.kept_in) for each in FILES}
    assert [(name, each.name) for name, each in declared if (each.name, each.kept_in) not in listed] == []


def test_the_table_has_each_entry_once() -> None:
    assert sorted(each.name for each in FILES) == sorted({each.name for each in FILES})
    assert set(FILES) == {each for each in vars(run_files).values() if isinstance(each, RunFile)}
    assert all(each.form and each.purpose and each.writers and each.readers for each in FILES)


def test_a_file_s_name_is_written_in_the_table_only() -> None:
    names = {each.name for each in FILES if "*" not in each.name}
    found = {
        (module, node.value)
        for module, text in modules()
        if module != "harness/common/run_folder/run_files.py" and any(name in text for name in names)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.lstrip("/") in names
    }
    assert found == OF_OTHERS


def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    run = a_run(tmp_path, "7")
    path = run.where(STATUS_FILE)
    with pytest.raises(UnreadFileError) as missing:
        run.read(STATUS_FILE)
    assert str(missing.value) == f"{path} cannot be read: No such file or directory"
    assert missing.value.is_missing and not missing.value.is_damaged
    path.write_text('{"state": "asleep"}')
    with pytest.raises(UnreadFileError, match=r"status\.json cannot be read: state: Input should be ") as damaged:
        run.read(STATUS_FILE)
    assert damaged.value.is_damaged and "\n" not in str(damaged.value)
    assert run.known(STATUS_FILE) is None
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(UnreadFileError, match=r"is a pipe, not a file$"):
        run.read(STATUS_FILE)


def test_a_summary_that_is_larger_than_its_reader_takes_is_not_read(tmp_path: Path) -> None:
    SUMMARY.path(tmp_path).write_text(json.dumps({"x": "y" * 2000}))
    run = Run(tmp_path)
    assert run.known(SUMMARY.as_json) == {"x": "y" * 2000}
    assert run.known(SUMMARY.as_json.limited(1024)) is None
    with pytest.raises(UnreadFileError, match="is longer than 1 KiB, the limit"):
        run.read(SUMMARY.as_json.limited(1024))
    SUMMARY.path(tmp_path).write_text("[1]")
    with pytest.raises(UnreadFileError, match="is no JSON object"):
        run.read(SUMMARY.as_json)


def test_lines_are_read_up_to_where_they_end(tmp_path: Path) -> None:
    path = METRICS.path(tmp_path, 0)
    assert list(METRICS.known_lines(path)) == [] == list(METRICS.known_objects(path))
    assert METRICS.end(path, 10) == b"" and METRICS.end_text(path, 10) == ""
    with pytest.raises(UnreadFileError, match="No such file"):
        list(METRICS.objects(path))
    path.parent.mkdir()
    path.write_text('{"step": 0}\n[1]\n{}\n{"step": 1}\n{"st')
    assert list(METRICS.objects(path)) == [{"step": 0}, {}, {"step": 1}] == list(METRICS.known_objects(path))
    assert len(list(METRICS.lines(path))) == 5
    assert METRICS.end(path, 4) == b'{"st'


def test_a_record_counts_although_a_part_of_it_is_of_another_version(tmp_path: Path) -> None:
    run = a_run(tmp_path, "7")
    content = json.loads(run.record_file.read_text())
    run.record_file.write_text(json.dumps(content | {"new": 1, "created_ns": "yesterday"}))
    assert run.known(RECORD_FILE) is None
    assert run.read(PARTIAL_RECORD_FILE)["site"]["name"] == content["site"]["name"]
    for text, why in (('{"site": 7}', "Input should be a valid dictionary"), ("{", "is not JSON: ")):
        run.record_file.write_text(text)
        with pytest.raises(UnreadFileError, match=f"run.json cannot be read: {why}"):
            run.read(PARTIAL_RECORD_FILE)
