"""Traces are found in folders that are huge, change meanwhile, link to themselves or may not be entered."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import analyse, load_run
from harness.analysis.summary import problem_texts
from harness.cli.main import main
from harness.common.errors import RequestError
from harness.common.system.walk import Walk
from harness.measure.request import may_be_one_job
from harness.traces import find, find_traces
from harness.traces import open as opening
from tests.synthetic import kineto
from tests.waiting import limit_s

Output = pytest.CaptureFixture[str]
SPACES = itertools.count()


def trace(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    kineto.kineto(path, kineto.gpu_step())
    path.write_text(path.read_text() + " " * next(SPACES))  # no two recordings are the same
    return path


def test_a_link_in_a_circle_is_not_followed(tmp_path: Path) -> None:
    only = trace(tmp_path / "a" / "rank0.json")
    (tmp_path / "a" / "again").symlink_to(tmp_path)
    (tmp_path / "a" / "loop").symlink_to("loop")
    assert find_traces([tmp_path]) == [only]


def test_a_folder_that_vanishes_meanwhile_is_said(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    walk = Walk(tmp_path, lambda _: shutil.rmtree(tmp_path / "gone", ignore_errors=True))
    assert list(walk.files()) == []
    assert walk.left_out == [f"{tmp_path / 'gone'}: vanished while it was searched"]


def test_a_trace_that_vanishes_meanwhile_is_named_and_the_others_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    files = [trace(tmp_path / f"rank{rank}.json") for rank in range(2)]
    report, export = tmp_path / "node0.nsys-rep", tmp_path / "node0.sqlite"
    for file in (report, export):
        file.write_bytes(b"x")
    before = opening.beginning

    def look(path: Path, unpack: bool = False) -> bytes:
        start = before(path, unpack)
        for gone in (files[1], report, export):
            gone.unlink(missing_ok=True)
        return start

    monkeypatch.setattr(opening, "beginning", look)
    assert main(["report", str(tmp_path), "--json"]) == 0
    said = capsys.readouterr().out
    assert "rank1.json: cannot be read: No such file or directory" in said
    assert [Path(source["path"]).name for source in json.loads(said)["sources"]] == ["rank0.json"]


def test_a_folder_that_may_not_be_entered_makes_the_report_doubtful(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    trace(tmp_path / "rank0.json")
    (tmp_path / "theirs").mkdir()
    scandir = os.scandir

    def refused(path: str) -> object:  # root, as whom tests may run, may enter every folder
        if str(path).endswith("theirs"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr("harness.common.system.walk.os.scandir", refused)
    assert main(["report", str(tmp_path), "--json"]) == 0
    findings = json.loads(capsys.readouterr().out)["quality"]["problems"]
    why = [(each["what"], each["evidence"]) for each in findings]
    assert ("a place could not be searched for traces", f"{tmp_path / 'theirs'}: Permission denied") in why
    (tmp_path / "rank0.json").unlink()
    assert main(["report", str(tmp_path)]) == 2
    assert f"not searched: {tmp_path / 'theirs'}: Permission denied" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["rank1.json.xz", "traces.zip", "TRACE_1.tar.gz"])
def test_a_packed_trace_in_a_folder_is_named(tmp_path: Path, capsys: Output, name: str) -> None:
    (tmp_path / name).touch()
    (tmp_path / "samples.tar").touch()  # no name of a trace
    assert main(["report", str(tmp_path)]) == 2
    assert f"not searched: {tmp_path / name} is packed: unpack it first" in (said := capsys.readouterr().err)
    assert "samples.tar" not in said
    trace(tmp_path / "rank0.json")
    assert main(["report", str(tmp_path), "--json"]) == 0
    problems = json.loads(capsys.readouterr().out)["quality"]["problems"]
    assert f"{tmp_path / name} is packed: unpack it first" in [each["evidence"] for each in problems]


@pytest.mark.parametrize(("limit", "name"), [("MOST_LOOKED_AT", "note.txt"), ("MOST_OPENED", "data.json")])
def test_a_folder_with_too_much_else_is_refused_with_a_nearer_one_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, name: str
) -> None:
    monkeypatch.setattr(find, limit, 20)
    trace(tmp_path / "rank0.json")  # found first: the others are in folders below
    for number in range(30):
        (tmp_path / "data" / f"{number}").mkdir(parents=True)
        (tmp_path / "data" / f"{number}" / name).write_text("{}")
    with pytest.raises(
        RequestError, match=rf"1 traces among the first \d+ files and folders, the last in {tmp_path}: gi"
    ):
        find_traces([tmp_path])
    with pytest.raises(RequestError, match=r"data: 0 traces among the first \d+ files and folders: give a folder"):
        find_traces([tmp_path / "data"])


def test_traces_that_lie_far_apart_are_all_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find, "MOST_OPENED", 30)
    for number in range(10):
        trace(tmp_path / f"{number}" / "rank0.json")
        for other in range(9):
            (tmp_path / f"{number}" / f"{other}.json").write_text("{}")
    assert len(find_traces([tmp_path])) == 10


def test_a_folder_with_the_traces_of_several_jobs_is_listed_by_folder_and_nothing_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    for job, ranks in (("a", 3), ("b/torch", 2), ("c d", 1)):
        for rank in range(ranks):
            trace(tmp_path / job / f"rank{rank}.json")
    (tmp_path / "c d" / "other.sqlite").write_bytes(b"x")
    monkeypatch.setattr("harness.measure.request.measure_files", lambda *_, **__: pytest.fail("it was read"))
    for command in ("report", "whatif"):
        assert main([command, str(tmp_path)]) == 2
        first, *commands, last = capsys.readouterr().err.splitlines()
        assert first == f"slurm.sh: {tmp_path}: holds 7 traces of several jobs, in 3 folders: choose one of them"
        shown = [line.split("  # ") for line in commands]
        assert [(words.strip(), content) for words, content in shown] == [
            (f"bash slurm.sh report {tmp_path / 'a'}", "3 traces"),
            (f"bash slurm.sh report {tmp_path / 'b' / 'torch'}", "2 traces"),
            (f"bash slurm.sh report '{tmp_path / 'c d'}'", "2 traces"),
        ]
        assert "if all of them are of one job, name each folder" in last


def test_each_command_that_a_refusal_offers_is_another_one_and_works(tmp_path: Path, capsys: Output) -> None:
    """A capture with its parts in a folder below it, and with those below that; and more files than one names."""
    folders = {"": 1, "trace split": 1, "trace split/decode": 1, "many": 7, "many/of rank 0": 1}
    for folder, count in folders.items():
        for rank in range(count):
            trace(tmp_path / folder / f"rank{rank}.json")
    assert main(["report", str(tmp_path)]) == 2
    _, *commands, last = capsys.readouterr().err.splitlines()
    assert len(commands) == len(folders)
    assert "name each file" in last
    for command in commands:
        words = command.partition("  # ")[0].replace("bash slurm.sh report", "printf '%s\\n'")
        said = subprocess.run(["bash", "-c", words], capture_output=True, text=True, check=True, timeout=limit_s())
        paths = said.stdout.splitlines()
        assert paths != [str(tmp_path)]
        assert main(["report", *paths]) == 0, command
        assert f"# {len(paths)} trace" in command or Path(paths[0]).is_dir()


def _packed_by_two_programs(file: Path) -> None:
    for level in (1, 9):
        (file.parent / f"rank0.{level}.json.gz").write_bytes(gzip.compress(file.read_bytes(), level))
    file.unlink()


AGAIN: dict[str, tuple[Callable[[Path], object], str]] = {  # what is made of rank0.json, and the file that is read
    "unpacked": (lambda f: (f.parent / "rank0.json.gz").write_bytes(gzip.compress(f.read_bytes())), "rank0.json"),
    "copied": (lambda f: shutil.copy(f, f.parent / "rank0 (copy).json"), "rank0.json"),
    "copied with another name": (lambda f: shutil.copy(f, f.parent / "last.json"), "rank0.json"),
    "copied into a folder": (lambda f: shutil.copytree(f.parent, f.parent / "backup"), "rank0.json"),
    "linked": (lambda f: (f.parent / "latest.json").symlink_to(f), "rank0.json"),
    "linked hard": (lambda f: os.link(f, f.parent / "rank0_of_run_7.json"), "rank0.json"),
    "packed by two programs": (_packed_by_two_programs, "rank0.1.json.gz"),
    "unpacked of another format": (lambda f: (f.parent / "rank0.json.xz").touch(), "rank0.json"),
}  # fmt: skip


@pytest.mark.parametrize("how", AGAIN)
def test_the_same_recording_twice_is_one_and_it_is_said(tmp_path: Path, capsys: Output, how: str) -> None:
    make, first = AGAIN[how]
    text = trace(tmp_path / "rank0.json").read_text()
    make(tmp_path / "rank0.json")
    other = tmp_path / "rank1.json"
    other.write_text(text.replace('"rank": 3', '"rank": 2'))  # as long as the other, and not the same
    assert main(["report", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert sorted((Path(s["path"]).name, s["rank"]) for s in found["sources"]) == [(first, 3), ("rank1.json", 2)]
    said = [p["evidence"] for p in found["quality"]["problems"] if p["what"] == problem_texts.DUPLICATES]
    assert len(said) == (how != "unpacked of another format")
    assert all(first in each.partition(" has the content of ")[2] for each in said)
    assert not any("packed" in p["evidence"] for p in found["quality"]["problems"])


@pytest.mark.parametrize(
    ("folders", "is_one"),
    [
        ({"j": ["rank0.json", "rank1.json"]}, True),
        ({"j/node0": ["rank0.json", "rank1.json"], "j/node1": ["rank2.json", "rank3.json"]}, True),
        ({"j/rank0": ["trace.json"], "j/rank1": ["trace.json"]}, True),
        ({"j/lrdn01": ["report.nsys-rep"], "j/lrdn02": ["report.nsys-rep"]}, True),
        ({f"j/lrdn{n}": ["report.nsys-rep"] for n in range(17)}, False),
        ({"j": ["rank0.json"], "k": ["rank0.json"]}, False),
        ({"j": ["rank0.json"], "k": ["rank0.json"], "m": ["before.sqlite"]}, False),
        ({"j/node0": ["rank0.json"], "k/node1": ["rank1.json"]}, False),
    ],
)
def test_folders_of_one_job_are_told_from_the_names_alone(
    tmp_path: Path, folders: dict[str, list[str]], is_one: bool
) -> None:
    found = {tmp_path / name: [tmp_path / name / file for file in files] for name, files in folders.items()}
    assert may_be_one_job(found) == is_one


def test_load_run_of_a_folder_with_traces_names_the_function_that_reads_them(tmp_path: Path) -> None:
    trace(tmp_path / "rank0.json")
    named = f"{tmp_path}: holds 1 trace, and is not a run: analyse\\('{tmp_path}'\\) returns the numbers"
    with pytest.raises(RequestError, match=named):
        load_run(str(tmp_path))
    assert analyse(str(tmp_path)).sources
    (tmp_path / "rank0.json").unlink()
    with pytest.raises(RequestError, match="no run"):
        load_run(str(tmp_path))


def test_how_far_the_search_is_goes_to_stderr(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    monkeypatch.setattr("harness.traces.progress._PATIENCE_S", 0.0)
    trace(tmp_path / "rank0.json")
    for number in range(300):
        (tmp_path / f"{number}.txt").touch()
    assert main(["report", str(tmp_path), "--json"]) == 0
    out, err = capsys.readouterr()
    assert err.splitlines()[0].startswith(f"looking for traces in {tmp_path}: 256 files and folders so far, ")
    assert json.loads(out)


def test_the_kernels_own_folders_are_not_entered(monkeypatch: pytest.MonkeyPatch) -> None:
    scandir, entered = os.scandir, list[str]()

    def closed(path: str) -> object:
        entered.append(str(path))
        if path != "/":
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr("harness.common.system.walk.os.scandir", closed)
    list(Walk(Path("/")).files())
    assert "/usr" in entered or "/etc" in entered
    assert not {"/proc", "/sys", "/dev"} & set(entered)


def test_a_pipe_is_no_trace_and_nothing_waits_for_it(tmp_path: Path, capsys: Output) -> None:
    trace(tmp_path / "rank0.json")
    os.mkfifo(tmp_path / "rank1.json.gz")
    os.mkfifo(tmp_path / "notes.json")
    assert main(["report", str(tmp_path), "--json"]) == 0
    assert "rank1.json.gz: is a pipe, not a file" in capsys.readouterr().out
    assert main(["report", str(tmp_path / "notes.json")]) == 1
    assert "notes.json: is a pipe or a device, neither a trace file nor a folder" in capsys.readouterr().err
