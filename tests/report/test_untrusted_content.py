"""Names and notes that somebody else chose are text in every output: they steer no terminal, run in no page or
spreadsheet, break no file's format, and hide nothing.

The page's attacks by HTML are also in test_report_page.py, in a browser in test_report_browser.py.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import shutil
import unicodedata
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from html import unescape
from pathlib import Path

import pytest

from harness.analysis.summary import Summary
from harness.cli.main import main
from harness.cli.watch.follow import Tail
from harness.common.display.printable import MOST_NAME, GuardedStream, printable, printable_name
from harness.compare.points import PointValues, RepeatedMean
from harness.monitor.plot import plot as plot_monitor
from harness.report.sweeps import shown_table
from harness.report.tables.table import TableScreen
from harness.run import Run
from harness.run.record import NodeStatus
from tests.launch.launch_shared import a_run
from tests.synthetic import kineto
from tests.synthetic.job import BASE_NS, HOSTILE, events

UNTRUSTED = {
    "html": "<img src=x onerror='window.hacked=1'></script><script>window.hacked=1</script>",
    "link": '<a href="javascript:window.hacked=1">look</a> [x](javascript:window.hacked=1)',
    "title": "\x1b]0;mine\x07gemm",
    "clipboard": "\x1b]52;c;cm0gLXJmIH4K\x07gemm",
    "address": "\x1b]8;;https://evil.example\x1b\\gemm\x1b]8;;\x1b\\",
    "screen": "\x1b[2J\x1b[1;1Hgood\x08\x08\x7f\x00",
    "eight bits": "\x9b31m\x9d0;mine\x9c",
    "lines": "gemm\nForged: good\r\n\u2028Speed: 9",
    "reversed": "gemm\u202egnorw\u2066\u200f",
    "hidden": "ge\u200bmm\ufeff\u00ad\U000e0041",
    "flood": "z" + "\u0301" * 3000,
    "formula": "=cmd|' /C calc'!A1",
    "plus": "+1+cmd|x",
    "at": "@SUM(1)",
    "tab": "\t=1+1",
    "mathtext": r"$\frac$ $x$",
    "template": "{{ 7*7 }} {% raw %} %{y} $(touch evil) `touch evil`",
    "paraver": "1:2:3:4\n63000006:1\nVALUES",
    "long": "k" * 1_000_000,
}
STEPS_AND_DEVICES = "unix_ns,device,utilization_percent,power_watts\n{},0,50,100\n{},0,60,110\n"


def steering(text: str) -> list[str]:
    """The characters that move a cursor, hide or reorder text; line ends and tabs are a table's own."""
    suspects = (c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp"))
    return [hex(ord(c)) for c in suspects if c not in "\n\t\u200c\u200d"]


@dataclass(frozen=True)
class Hostile:
    """A run whose every name is untrusted, and where its outputs go."""

    run: Run
    out: Path


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hostile]:
    root = tmp_path_factory.mktemp("untrusted")
    run = a_run(root / "runs", "local-1", ["torch/rank0.json.gz"])
    path = run.path.with_name("ru\x1b]0;mine\x07n\u202e\nlocal-2 completed <b>&=1")
    run.path.rename(path)
    run = Run(path)
    name = "".join(
        UNTRUSTED[each] for each in ("html", "title", "reversed", "mathtext", "eight bits", "lines", "template")
    )
    run.write_record(run.record.model_copy(update={"user": name, "submit_host": name, "command": ["slurm.sh", name]}))
    _traces(path / "torch", name)
    start = {"event": "start", "rank": 0, "world_size": 1, "host": name, "device_name": name, "model": name}
    (path / "metrics").mkdir()
    (path / "metrics/rank0.jsonl").write_text(json.dumps(start) + "\n")
    node = NodeStatus(node=0, host=name, exit=0, started_ns=1, ended_ns=2)
    (path / "node-status").mkdir()
    (path / "node-status/0.json").write_text(node.model_dump_json())
    _monitor(path / "gpus-monitor/node", name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARNESS_RUNS", str(root / "runs"))
        yield Hostile(run, root)


def _traces(folder: Path, name: str) -> None:
    """One rank, whose kernels and ranges have every name of UNTRUSTED."""
    folder.mkdir()
    rows = events(0)
    models = [
        next(row for row in rows if row["name"] == HOSTILE and row["cat"] == cat)
        for cat in ("kernel", "user_annotation")
    ]
    rows += [deepcopy(model) | {"name": each} for each in UNTRUSTED.values() for model in models]
    header = {
        "schemaVersion": 1,
        "host_name": name,
        "deviceProperties": [{"id": 0, "name": name}],
        "distributedInfo": {"backend": name, "rank": 0, "world_size": 1,
                            "pg_config": [{"pg_name": "0", "pg_desc": name, "pg_size": 1, "ranks": [0]}]},
        "baseTimeNanoseconds": BASE_NS,
    }  # fmt: skip
    plain = kineto.kineto(folder / "rank0.json", rows, "json.dump", header=header, footer={})
    (folder / "rank0.json.gz").write_bytes(gzip.compress(plain.read_bytes(), 1))
    plain.unlink()


def _monitor(folder: Path, name: str) -> None:
    folder.mkdir(parents=True)
    device = {"index": 0, "name": name, "memory_total_bytes": None}
    meta = {"schema": 1, "host": name, "source": "nvml", "period_ns": 1000, "devices": [device]}
    (folder / "meta.json").write_text(json.dumps(meta))
    (folder / "samples.csv").write_text(STEPS_AND_DEVICES.format(BASE_NS, BASE_NS + 1_000_000))


Said = Callable[..., str]


@pytest.fixture
def said(hostile: Hostile, capsys: pytest.CaptureFixture[str]) -> Said:
    """What a command about the run prints."""

    def run(command: str, *words: str) -> str:
        code = main([*command.split(), str(hostile.run.path), *words])
        out, err = capsys.readouterr()
        assert code == 0, err
        assert not steering(err)
        return out

    return run


@pytest.mark.parametrize("words", [
    ("report",), ("report", "--full"), ("status",), ("whatif",), ("report", "--json"), ("status", "--json"),
])  # fmt: skip
def test_no_name_steers_the_terminal(said: Said, words: tuple[str, ...]) -> None:
    text = said(*words)
    assert not steering(text)
    assert len(text) < 400_000, "a name of a megabyte is not shown whole"
    if "--json" in words:
        json.loads(text)
    else:
        forged = ("local-2 completed", "Forged: good", "Speed: 9", "63000006")
        assert [line for line in text.splitlines() if line.startswith(forged)] == [], "a name has one line"


def test_lists_and_comparisons_have_no_such_name(
    hostile: Hostile, said: Said, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ls"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split()[0] == "id" and len(rows) == 1 and not steering(rows[0])
    page = hostile.out / "compared.html"
    other = shutil.copytree(hostile.run.path, hostile.out / "again" / hostile.run.path.name)
    assert not steering(said("compare", str(other), "--html", str(page))) and not steering(page.read_text())
    name = UNTRUSTED["title"] + UNTRUSTED["lines"] + UNTRUSTED["reversed"]
    stored = hostile.out / "summary.json"  # of a stranger
    stored.write_text(Summary(hosts=[name], backend=name, run={"job_id": name, "command": [name]}).model_dump_json())
    out = said("compare", str(stored))
    assert not steering(out) and not any(line.startswith("Speed: 9") for line in out.splitlines())


def test_a_page_hides_and_runs_nothing(hostile: Hostile, said: Said) -> None:
    page = hostile.out / "page.html"
    said("report", "--html", str(page))
    text = page.read_text()
    assert not steering(text)
    body = text.partition("<body>")[2].partition("<script>")[0]
    assert "<img" not in body and 'href="javascript' not in body and "{{ 7*7 }}" in body
    (scripts,) = re.findall(r"script-src ([^;]*);", unescape(text.partition("<style>")[0]))
    assert "unsafe" not in scripts and scripts.count("sha256-") == text.count("<script>") + 1  # and Plotly


def test_tables_for_spreadsheets_have_no_formula(hostile: Hostile, said: Said) -> None:
    folder = hostile.out / "csv"
    said("export csv", "-o", str(folder))
    cells = [c for file in folder.glob("*.csv") for row in csv.reader(file.open(newline="")) for c in row]
    assert cells and list(filter(steering, cells)) == []
    assert [cell for cell in cells if cell[:1] in tuple("=+-@\t\r") and not re.fullmatch(r"-[\d.e-]+", cell)] == []
    for wanted in ("formula", "plus", "at"):
        assert f"'{UNTRUSTED[wanted]}" in cells


def test_paraver_and_perfetto_files_stay_whole(hostile: Hostile, said: Said) -> None:
    said("export perfetto", "--out", str(hostile.out / "all.json.gz"))
    rows = json.loads(gzip.decompress((hostile.out / "all.json.gz").read_bytes()))["traceEvents"]
    assert not any(steering(json.dumps(row, ensure_ascii=False)) for row in rows)
    said("export paraver", "--out", str(hostile.out / "p"))
    pcf = (hostile.out / "p.pcf").read_text()
    labels = re.findall(r"^\d+ {4}(.*)$", pcf, re.MULTILINE)
    assert not steering(pcf) and printable(UNTRUSTED["formula"]) in labels
    assert "1:2:3:4 63000006:1 VALUES" in labels, "a name with line ends is one label"
    row = (hostile.out / "p.row").read_text()
    blocks = re.findall(r"^LEVEL \w+ SIZE (\d+)\n(.*?)(?=^LEVEL|\Z)", row, re.MULTILINE | re.DOTALL)
    assert blocks and [len(block.strip("\n").splitlines()) for _, block in blocks] == [int(size) for size, _ in blocks]


def test_pictures_draw_a_dollar_sign(hostile: Hostile) -> None:
    assert len(plot_monitor(hostile.run.path / "gpus-monitor/node")) == 4


def test_a_sweeps_table_takes_settings_as_text() -> None:
    settings = {"=axis": UNTRUSTED["screen"] + UNTRUSTED["lines"], "b": "-1.5"}
    point = PointValues(point="p", settings=settings, runs=["=run"], values={"step_ns": RepeatedMean(mean=-2.5, n=1)})
    shown = TableScreen(200).block(shown_table("title", [point], ["step_ns"]))
    assert not any(map(steering, shown)) and not any("\n" in line for line in shown)


class Screened(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


def test_a_report_keeps_its_colours_at_a_terminal_where_no_name_steers_it(
    hostile: Hostile, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Screened()
    monkeypatch.setattr("sys.stdout", screen)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert main(["report", str(hostile.run.path)]) == 0
    text, links = screen.getvalue(), r"\x1b\]8;[^;\x1b]*;([^\x1b]*)\x1b\\"
    assert "\x1b[1m" in text
    assert all(not link or link.startswith("file://") for link in re.findall(links, text))
    assert not steering(re.sub(rf"\x1b\[[0-9;]*m|{links}", "", text))


def test_a_log_keeps_its_colours_at_a_terminal_and_loses_what_steers_it(tmp_path: Path) -> None:
    log, screen = tmp_path / "log.out", Screened()
    tail = Tail(log, screen)
    for piece in ("\x1b[1;3", "1mred\x1b[", "0m 10%\r20%\r\n\x1b]0;mi", "ne\x07\x1b[2J\x9b1A", "\x1b[4m", "\x1b"):
        with log.open("a") as file:
            file.write(piece)
        tail.pump()
    tail.pump(last=True)
    assert screen.getvalue() == "\x1b[1;31mred\x1b[0m 10%\r20%\r\n]0;mine[2J1A\x1b[4m\x1b[0m"


def test_a_log_goes_into_a_pipe_as_it_is(tmp_path: Path) -> None:
    content = b"\x1b[31mred\x1b]0;mine\x07 \xff\xfe\r\n\x00\xc3"
    (tmp_path / "log.out").write_bytes(content)
    pipe = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    Tail(tmp_path / "log.out", pipe).pump(last=True)
    assert pipe.buffer.getvalue() == content


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_no_character_stops_a_command(encoding: str) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding, write_through=True)
    print("é – \ud800\x1b[2J", file=GuardedStream(stream))
    assert b"[2J\n" in raw.getvalue() and b"\x1b" not in raw.getvalue()


@pytest.mark.parametrize("name", UNTRUSTED)
def test_a_printable_name_stays_as_it_is_and_others_stay_apart(name: str) -> None:
    shown = printable_name(UNTRUSTED[name])
    assert shown == printable_name(shown) and not steering(shown) and "\n" not in shown
    assert len(shown) <= MOST_NAME
    assert printable_name("k" * 1_000_000) != printable_name("k" * 500_000 + "l" + "k" * 499_999)


@pytest.mark.parametrize("text", ["مرحبا", "שלום", "नमस्ते", "日本語", "می‌خواهم", "👩‍💻", "naïve café – µs"])
def test_words_of_every_language_stay_as_they_are(text: str) -> None:
    assert printable(text) == text
