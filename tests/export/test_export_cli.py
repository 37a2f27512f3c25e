"""`slurm.sh export paraver` and `perfetto`: where the result goes, which engine writes it, and what is printed."""

from __future__ import annotations

import gzip
import json
import os
import re
import socket
from concurrent.futures import Future, ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from harness.cli.main import main
from harness.export import perfetto_page
from tests.export import strict_prv
from tests.real_traces import real_trace
from tests.synthetic import kineto as synthetic
from tests.waiting import limit_s


def kineto(path: Path, rank: int) -> Path:
    """A trace of one kernel."""
    path.parent.mkdir(parents=True, exist_ok=True)
    distributed = {"backend": "nccl", "rank": rank, "world_size": 2}
    header = {"distributedInfo": distributed, "baseTimeNanoseconds": 1_700_000_000_000_000_000}
    path.write_bytes(gzip.compress(synthetic.kineto_text([synthetic.kernel("gemm", 1_000_500, 20_250)], header=header)))
    return path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a run: the traces of two ranks and the metrics of the training."""
    folder = tmp_path / "Tiny-local-1"
    for rank in (0, 1):
        kineto(folder / f"torch/rank{rank}.json.gz", rank)
        start = {"event": "start", "rank": rank, "host": f"node{rank + 7}"}
        metrics = folder / f"metrics/rank{rank}.jsonl"
        metrics.parent.mkdir(exist_ok=True)
        metrics.write_text(json.dumps(start) + "\n")
    (folder / "run.json").write_text("{}")
    return folder


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def test_a_runs_paraver_trace_is_beside_its_traces_and_names_its_nodes(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", "paraver", str(run)]) == 0
    prv = strict_prv.read(run / "torch" / "trace.prv")
    assert prv.names["TASK"] == ["rank 0 @ node7", "rank 1 @ node8"]
    assert sum(prv.time_by_label(63000006).values()) == 2 * 20_250
    said = capsys.readouterr().out
    assert str(run / "torch" / "trace.prv") in said and "own engine, 2 tasks" in said


def test_the_metrics_of_the_training_may_be_damaged(run: Path) -> None:
    (run / "metrics/rank0.jsonl").write_text('{"event": "start", "rank": "x", "host": 1}\n')
    assert main(["export", "paraver", str(run)]) == 0
    assert "rank 1 @ node8" in strict_prv.read(run / "torch" / "trace.prv").names["TASK"]


@pytest.mark.parametrize(("command", "first"), [("paraver", "trace.prv"), ("perfetto", "trace.perfetto.gz")])
def test_an_export_of_traces_without_a_run_leaves_earlier_ones_as_they_are(
    here: Path, run: Path, command: str, first: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / first).write_text("of another training")
    asked = ["export", command, str(run / "torch/rank0.json.gz"), "--json"]
    names = []
    for _ in range(2):
        assert main(asked) == 0
        said = json.loads(capsys.readouterr().out)
        names.append(Path(said.get("prv") or said["perfetto"]).name)
        assert said["notes"][0].startswith(f"{first} existed already and is kept")
    assert names == [first.replace("trace", "trace-2"), first.replace("trace", "trace-3")]
    assert (here / first).read_text() == "of another training"


@pytest.mark.parametrize(
    ("words", "there", "free"),
    [
        ("export paraver no-such-trace --out mine", "mine.row", "mine-2"),
        ("export paraver no-such-run --submit --out mine", "mine.prv", "mine-2"),
        ("export perfetto no-such-trace --out mine", "mine.perfetto.gz", "mine-2"),
        ("export perfetto no-such-trace --out mine.json.gz", "mine.json.gz", "mine-2.json.gz"),
    ],
)
def test_a_name_that_is_taken_is_refused_before_anything_is_read(
    here: Path, words: str, there: str, free: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / there).write_text("mine")
    assert main(words.split()) == 2
    said = capsys.readouterr().err
    assert f": {there} exists already and is never overwritten" in said
    assert said.rstrip().endswith(f"for example {free}")
    assert [p.name for p in here.iterdir()] == [there]


@pytest.mark.parametrize("command", ["export paraver", "export perfetto"])
@pytest.mark.parametrize(
    ("out", "said"),
    [
        (".", "--out .: is a folder; give a new name, as in --out trace"),
        ("", "--out .: is a folder; give a new name, as in --out trace"),
        ("/", "--out /: is a folder; give a new name, as in --out /trace"),
        ("results/", "--out results: is a folder; give a new name, as in --out results/trace"),
    ],
)
def test_a_folder_is_no_name_to_write_to(
    run: Path, command: str, out: str, said: str, *, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "results").mkdir()
    assert main([*command.split(), str(run / "torch"), "--out", out]) == 2
    assert capsys.readouterr().err == f"slurm.sh: {said}\n"
    assert [p.name for p in here.rglob("*")] == ["results"]


def test_files_and_folders_go_where_the_flag_says(run: Path, tmp_path: Path) -> None:
    assert main(["export", "paraver", str(run / "torch"), "--out", str(tmp_path / "here")]) == 0
    assert (tmp_path / "here.prv").is_file() and not (run / "torch" / "trace.prv").exists()
    assert main(["export", "perfetto", str(run / "torch/rank1.json.gz"), "--out", str(tmp_path / "one.json.gz")]) == 0
    assert (tmp_path / "one.json.gz").is_file()


def test_a_compressed_trace_takes_the_place_of_the_other(
    here: Path, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", "paraver", str(run / "torch"), "--out", "plain"]) == 0
    assert main(["export", "paraver", str(run / "torch"), "--out", "packed", "-z"]) == 0
    assert capsys.readouterr().out.splitlines()[3] == "packed.prv.gz"
    assert sorted(path.name for path in here.glob("packed*")) == ["packed.pcf", "packed.prv.gz", "packed.row"]
    dates = r"\([^)]*\)"
    plain, packed = (here / "plain.prv").read_text(), gzip.decompress((here / "packed.prv.gz").read_bytes()).decode()
    assert re.sub(dates, "", packed, count=1) == re.sub(dates, "", plain, count=1)
    assert main(["export", "paraver", str(run / "torch"), "--out", "packed"]) == 2, "both would have one .pcf"
    assert "packed.pcf exists already and is never overwritten" in capsys.readouterr().err


def test_without_nsys2prv_our_own_writer_takes_nsys_exports_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    export = real_trace("nsys_h100_2gpu_ab/before.sqlite")
    assert main(["export", "paraver", str(export), "--out", str(tmp_path / "t"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["engine"] == "own"
    assert main(["export", "paraver", str(export), "--out", str(tmp_path / "u"), "--engine", "nsys2prv"]) == 1
    assert "nsys2prv cannot be started" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["export", "paraver", "no-such-run"], "RUN: there"),
        (["export", "paraver", "{empty}"], "there is no trace"),
        (["export", "paraver", "{run}", "--engine", "nsys2prv"], "reads nsys reports only"),
        (["export", "paraver", "{run}", "--types", "nccl"], "--types: only nsys2prv can do that, and it reads nsys"),
        (
            ["export", "paraver", "{run}", "-f", "forward"],
            "--filter-nvtx: only nsys2prv can do that, and it reads nsys reports only",
        ),
        (
            ["export", "paraver", "{run}", "--engine", "own", "-f", "x"],
            "--filter-nvtx: only nsys2prv can do that, and it is not used with --engine own: leave --filter",
        ),
        (["export", "perfetto", "{run}", "--engine", "own"], "perfetto: unknown flag --engine"),
    ],
)
def test_a_wrong_request_is_one_sentence_and_2(
    run: Path, tmp_path: Path, argv: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    places = {"run": str(run), "empty": str(tmp_path / "empty")}
    assert main([word.format(**places) for word in argv]) == 2
    assert sentence in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_1(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "paraver", str(run), "--out", str(run / "no" / "where")]) == 1
    assert "cannot be written" in capsys.readouterr().err


def test_a_trace_that_cannot_be_read_is_named(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "torch/rank1.json.gz").write_bytes(gzip.compress(b'{"traceEvents": [{"cat": "kernel", "ts": x}]}'))
    assert main(["export", "perfetto", str(run)]) == 1
    assert "rank1.json.gz: is damaged" in capsys.readouterr().err
    assert not list(run.rglob("*.perfetto.gz"))


@pytest.mark.parametrize("command", ["export paraver", "export perfetto", "export csv", "report", "status"])
@pytest.mark.parametrize("name", ["nowhere/trace.json.gz", "./nowhere", "~/nowhere/at/all"])
def test_a_path_that_is_not_there_is_a_wrong_request(
    here: Path, command: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command.split(), name]) == 2
    assert f"{name}: there is no such file or folder" in capsys.readouterr().err
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("command", ["export paraver", "export perfetto"])
def test_a_home_folder_is_found_by_its_tilde(
    run: Path, command: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(run))
    assert main([*command.split(), "~/torch"]) == 0


# ---- `export perfetto --open`: Perfetto's page reads one file from this machine, and nobody else reads anything


@pytest.fixture
def any_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """And no display."""
    monkeypatch.setattr(perfetto_page, "PORT", 0)
    monkeypatch.setattr(os, "environ", {name: os.environ[name] for name in os.environ if "DISPLAY" not in name})


def answer(url: str, origin: str | None, method: str = "GET") -> tuple[int, str | None, bytes]:
    """Status, who may read it, content."""
    connection = HTTPConnection(urlsplit(url).netloc, timeout=limit_s())
    connection.request(method, urlsplit(url).path, headers={"Origin": origin} if origin else {})
    got = connection.getresponse()
    return got.status, got.headers["Access-Control-Allow-Origin"], got.read()


@pytest.mark.usefixtures("any_port")
def test_perfettos_page_reads_the_file_once_and_nobody_else_reads_anything(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page, out = "https://ui.perfetto.dev", run / "one.gz"
    asked: list[Future[Any]] = []

    def opened(link: str) -> bool:
        url = link.removeprefix(f"{page}/#!/?url=")
        wrong = [
            (url, None),
            (url, "https://a.example"),
            (url, page, "POST"),
            (f"{url}x", page),
            (f"{url}/../..", page),
        ]
        asked.extend(browser.submit(answer, *each) for each in (*wrong, (url, page, "OPTIONS"), (url, page)))
        return True

    monkeypatch.setitem(os.environ, "DISPLAY", ":0")
    monkeypatch.setattr("webbrowser.open", opened)
    with ThreadPoolExecutor(1) as browser:
        assert main(["export", "perfetto", str(run), "--open", "--out", str(out)]) == 0
    *refused, may, read = [each.result() for each in asked]
    assert [each[:2] for each in refused] == [(404, None)] * 2 + [(501, None)] + [(404, None)] * 2
    assert (may, read) == ((200, page, b""), (200, page, out.read_bytes()))
    said = capsys.readouterr()
    assert "opened in your browser: https" in said.out and "the browser has the whole trace" in said.err


@pytest.mark.usefixtures("any_port")
def test_where_nobody_opens_the_link_it_ends_and_its_file_is_no_trace_of_a_rank(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(perfetto_page, "WAIT_S", 0)
    for _ in range(2):
        assert main(["export", "perfetto", str(run), "--open"]) == 1
    said = capsys.readouterr()
    assert len(list(run.rglob("*.perfetto.gz"))) == 2 and said.out.count("\n  2 tasks, ") == 2
    assert "no browser read the trace" in said.err and "first type there: ssh -L " in said.out


def test_where_the_port_is_taken_nothing_is_written(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        monkeypatch.setattr(perfetto_page, "PORT", other.getsockname()[1])
        assert main(["export", "perfetto", str(run), "--open"]) == 1
    assert f"port {perfetto_page.PORT} of this machine cannot be used" in capsys.readouterr().err
    assert not list(run.rglob("*.perfetto.gz"))
