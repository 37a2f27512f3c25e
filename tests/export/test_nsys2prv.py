"""nsys2prv is called in a way that avoids its silent errors, and its result is checked before it is used."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.common.errors import RequestError, WorkError
from harness.export.nsys2prv import Tool, Wanted, arguments, check_types, container, convert, step_of
from tests.export import fake_nsys2prv

FAKE = Path(__file__).parent / "fake_nsys2prv.py"


class Bench:
    """Two reports of one name on two nodes, and the fake as nsys2prv, with an nsys beside it."""

    def __init__(self, folder: Path, nsys: str = "2024.6.2") -> None:
        self.folder = folder
        self.out = folder / "out" / "trace"
        self.calls_file = folder / "calls.json"
        binaries = folder / "home" / "bin"
        for each in (binaries, self.out.parent):
            each.mkdir(parents=True)
        self._script(binaries / "nsys2prv", f'exec "{sys.executable}" "{FAKE}" "$@"')
        self._script(
            binaries / "nsys",
            f'[ "$1" = --version ] && echo "NVIDIA Nsight Systems version {nsys}" && exit\n'
            f'echo "$@" >> "{folder}/nsys.log"; for last; do :; done; touch "$last"; : > "$6"; exit 3',
        )
        self.binaries = binaries

    @staticmethod
    def _script(path: Path, text: str) -> None:
        path.write_text("#!/bin/sh\n" + text + "\n")
        path.chmod(0o755)

    def report(self, node: str, pid: int) -> Path:
        path = self.folder / node / "profile.nsys-rep"
        path.parent.mkdir()
        path.write_text(f"{pid}@{node}")
        return path

    def tool(self, how: str = "ok") -> Tool:
        environ = {
            **os.environ,
            "FAKE": how,
            "FAKE_CALLS": str(self.calls_file),
            "NSYS_HOME": str(self.folder / "home"),
        }
        return Tool(program=str(self.binaries / "nsys2prv"), environ=environ)

    def calls(self) -> dict[str, Any]:
        return dict(json.loads(self.calls_file.read_text()))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_reports_of_one_name_get_names_of_their_own_in_an_empty_folder(bench: Bench) -> None:
    reports = [bench.report("lrdn1", 30), bench.report("lrdn2", 20)]
    convert(reports, bench.out, bench.tool())
    calls = bench.calls()
    assert calls["names"] == ["node0.nsys-rep", "node1.nsys-rep"]
    assert calls["staged"] == ["node0.nsys-rep", "node1.nsys-rep"]
    assert calls["options"]["-m"] and calls["options"]["--force-sqlite"]
    assert not Path(str(calls["cwd"])).exists()


def test_the_row_names_the_real_nodes_and_the_header_counts_them(bench: Bench) -> None:
    done = convert([bench.report("lrdn1", 30), bench.report("lrdn2", 20)], bench.out, bench.tool())
    header = done.prv.read_text().splitlines()[0]
    # Tasks are numbered by process id: task 1 is process 20 on lrdn2. The last record is later than its header said.
    assert header == "#Paraver (01/02/2026 at 10:11):4000_ns:2(1,1):1:2(2:1,2:2)"
    assert done.contents.rows["NODE"] == ["lrdn2", "lrdn1"] and done.contents.node_of_task == [1, 2]
    assert sorted(path.name for path in bench.out.parent.iterdir()) == ["trace.pcf", "trace.prv", "trace.row"]


def test_a_stale_export_is_not_used_and_a_fresh_one_is(bench: Bench) -> None:
    report = bench.report("lrdn1", 30)
    export = report.with_suffix(".sqlite")
    fake_nsys2prv.make_export(export, 77, "other")
    os.utime(export, (1, 1))
    assert convert([report], bench.out, bench.tool()).contents.rows["NODE"] == ["lrdn1"]
    os.utime(report, (0, 0))
    assert convert([report], bench.out, bench.tool()).contents.rows["NODE"] == ["other"]
    assert bench.calls()["options"] == {"-t": bench.calls()["options"]["-t"], "-m": False, "--force-sqlite": False}


def test_a_filter_and_the_sorting_reach_it_and_the_sorted_trace_is_the_result(bench: Bench) -> None:
    tool, report = bench.tool(), bench.report("lrdn1", 30)
    home = bench.folder / "paraver"
    (home / "bin").mkdir(parents=True)
    environ = {name: text for name, text in tool.environ.items() if name != "PARAVER_HOME"}
    wanted = Wanted(within="a b", sort=True)
    with pytest.raises(
        RequestError, match=r"PARAVER_HOME is not set: type export PARAVER_HOME=FOLDER .*or leave --sort"
    ):
        convert([report], bench.out, Tool(program=tool.program, environ=environ), wanted)
    there = Tool(program=tool.program, environ=environ | {"PARAVER_HOME": str(home)})
    with pytest.raises(RequestError, match=r"paraver has no bin/sort-trace\.awk\.sh: type export"):
        convert([report], bench.out, there, wanted)
    assert not bench.calls_file.exists()
    (home / "bin" / "sort-trace.awk.sh").touch()
    convert([report], bench.out, there, wanted)
    assert bench.calls()["further"] == ["--sort", "--filter-nvtx=a b"]
    assert sorted(path.name for path in bench.out.parent.iterdir()) == ["trace.pcf", "trace.prv", "trace.row"]


def test_a_range_without_a_cuda_call_is_one_sentence(bench: Bench) -> None:
    with pytest.raises(WorkError, match=r"no CUDA call lies in a range of that name \(--filter-nvtx\)"):
        convert([bench.report("lrdn1", 30)], bench.out, bench.tool("no-range"), Wanted(within="forwrad"))


def test_equal_process_ids_on_two_hosts_are_refused_before_they_are_merged(bench: Bench) -> None:
    reports = [bench.report("lrdn1", 30), bench.report("lrdn2", 30)]
    with pytest.raises(
        WorkError, match="process 30 is on lrdn1 and on lrdn2: nsys2prv would merge the two into one task"
    ):
        convert(reports, bench.out, bench.tool())
    assert not list(bench.out.parent.glob("trace.prv"))


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("traceback", r"failed \(exit 1\) while reading the exports: KeyError: 'CUPTI_ACTIVITY_KIND_KERNEL'"),
        ("nothing", "ended without an error but left no usable trace: trace.prv is missing"),
        ("no-row", "trace.row is missing"),
        ("no-events", "holds no event"),
        ("garbage", "line 2: no Paraver record"),
    ],
)
def test_each_way_to_fail_is_one_sentence_and_leaves_the_old_trace(bench: Bench, how: str, sentence: str) -> None:
    bench.out.with_name("trace.prv").write_text("before")
    with pytest.raises(WorkError, match=sentence):
        convert([bench.report("lrdn1", 30)], bench.out, bench.tool(how))
    assert bench.out.with_name("trace.prv").read_text() == "before"
    assert "Processing stats" in bench.out.with_name("trace.nsys2prv.log").read_text()
    assert not list(bench.out.parent.glob(".nsys2prv-*"))


@pytest.mark.parametrize(
    ("kernels", "sentence"),
    [
        ([(0, 100, 200), (1, 100, 300)], "its trace lacks GPU 1 of lrdn1"),
        ([(0, 100, 5_000_100)], "its trace lasts 0.004 ms: the kernels of lrdn1 alone take 5.000 ms"),
    ],
)
def test_a_trace_that_lacks_what_the_report_holds_is_refused(
    bench: Bench, kernels: list[tuple[int, int, int]], sentence: str
) -> None:
    report = bench.report("lrdn1", 30)
    fake_nsys2prv.make_export(report.with_suffix(".sqlite"), 30, "lrdn1", kernels)
    with pytest.raises(WorkError, match=sentence):
        convert([report], bench.out, bench.tool())


def test_an_old_nsys_is_asked_for_the_export_and_its_failure_is_shown(tmp_path: Path) -> None:
    bench = Bench(tmp_path, nsys="2023.4.4")
    with pytest.raises(WorkError, match=r"nsys could not export .*/lrdn1/profile.nsys-rep to sqlite"):
        convert([bench.report("lrdn1", 30)], bench.out, bench.tool())
    assert (tmp_path / "nsys.log").read_text().startswith("export -t sqlite --force-overwrite=true -o node0.sqlite")
    assert not bench.calls_file.exists()


def test_a_program_that_cannot_be_started_is_named(bench: Bench) -> None:
    report = bench.report("lrdn1", 30)
    fake_nsys2prv.make_export(report.with_suffix(".sqlite"), 30, "lrdn1")
    with pytest.raises(WorkError, match="no-such-program cannot be started"):
        convert([report], bench.out, Tool(program="no-such-program", environ=bench.tool().environ))


@pytest.mark.parametrize("nsys", ["2023.4.4", "2024.6.2"])
def test_a_recording_without_cuda_calls_is_an_error_that_says_so(tmp_path: Path, nsys: str) -> None:
    bench = Bench(tmp_path, nsys=nsys)
    report = bench.report("laptop", 30)
    fake_nsys2prv.make_export(report.with_suffix(".sqlite"), 30, "laptop", calls=False)
    with pytest.raises(WorkError, match="nsys recorded none, as on a machine without a GPU; the harness's own writer"):
        convert([report], bench.out, bench.tool())
    assert not bench.calls_file.exists()


def test_a_recording_that_nsys2prv_exported_itself_shows_why_it_failed(bench: Bench) -> None:
    report = bench.report("laptop", 30)
    with pytest.raises(WorkError, match="nsys recorded none"):
        convert([report], bench.out, bench.tool("no-calls"))
    assert "KeyError" in bench.out.with_name("trace.nsys2prv.log").read_text()


def test_wrong_requests_are_refused_before_anything_runs(bench: Bench) -> None:
    with pytest.raises(RequestError, match="would ignore 'nvtx_pushpop'; did you mean nvtx_pushpop_trace"):
        check_types(["nvtx_pushpop", "cuda_api_trace"])
    with pytest.raises(RequestError, match="needs cuda_api_trace"):
        check_types(["nccl"])
    with pytest.raises(RequestError, match="does not exist"):
        convert([bench.folder / "none.nsys-rep"], bench.out, bench.tool())
    empty = bench.folder / "empty.nsys-rep"
    empty.touch()
    with pytest.raises(WorkError, match="is empty: nsys did not finish"):
        convert([empty], bench.out, bench.tool())
    assert not bench.calls_file.exists()


def test_in_a_container_it_sees_its_folder_and_nothing_else() -> None:
    prefix = container("apptainer", Path("/images/tools.sif"), Path("/runs/x"))
    argv = Tool(prefix=prefix).argv(*arguments(["node0.nsys-rep"], Wanted(["cuda_api_trace"]), "trace", True))
    assert argv == [
        "apptainer", "exec", "--bind", "/runs/x:/runs/x", "--pwd", "/runs/x", "/images/tools.sif",
        "nsys2prv", "-t", "cuda_api_trace", "--force-sqlite", "node0.nsys-rep", "trace",
    ]  # fmt: skip


def test_the_step_is_the_last_one_announced() -> None:
    assert step_of("") == "starting"
    assert step_of("Exporting SQLite x\nProcessing stats y") == "running nsys stats"
