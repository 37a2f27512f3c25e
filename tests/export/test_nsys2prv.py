"""nsys2prv runs in a folder of its own with the options that were given; its errors are one sentence."""

from __future__ import annotations

import json
import shutil
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from harness.common.errors import RequestError, WorkError
from harness.export.nsys2prv import Options, convert, help_of
from harness.traces.errors import TraceError
from tests.export import both_writers, fake_nsys2prv
from tests.export.both_writers import DATA, VERSIONS
from tests.export.fake_nsys2prv import make_export
from tests.export.paraver_cfg import read_prv

FAKE = Path(fake_nsys2prv.__file__)


class Bench:
    """The fake as the nsys2prv on PATH, and no nsys; a place for the result."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.out = folder / "out" / "trace"
        self.out.parent.mkdir()
        self._calls = folder / "calls.json"
        self._monkeypatch = monkeypatch
        (folder / "bin").mkdir()
        self.program("nsys2prv", folder / "bin", f'exec "{sys.executable}" "{FAKE}" "$@"')
        monkeypatch.setenv("PATH", f"{folder}/bin")
        monkeypatch.setenv("FAKE_CALLS", str(self._calls))
        monkeypatch.delenv("NSYS_HOME", raising=False)

    @staticmethod
    def program(name: str, folder: Path, text: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)

    def fails(self, how: str) -> None:
        self._monkeypatch.setenv("FAKE", how)

    def calls(self) -> dict[str, Any]:
        """What nsys2prv was called with; empty if it was not."""
        return dict(json.loads(self._calls.read_text())) if self._calls.exists() else {}

    def left(self) -> list[str]:
        return sorted(path.name for path in self.out.parent.iterdir())


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch)


def test_exports_of_one_name_get_names_of_their_own_in_an_empty_folder(bench: Bench, tmp_path: Path) -> None:
    exports = [make_export(tmp_path / node / "profile.sqlite", pid) for node, pid in (("lrdn1", 30), ("lrdn2", 20))]
    assert convert(exports, bench.out, Options(("cuda_api_trace", "nccl"))) == []
    calls = bench.calls()
    assert calls["staged"] == ["node0.sqlite", "node1.sqlite"]
    assert calls["argv"] == ["-t", "cuda_api_trace,nccl", "-m", "node0.nsys-rep", "node1.nsys-rep", "trace"]
    assert not Path(calls["cwd"]).exists()
    assert bench.left() == ["trace.pcf", "trace.prv", "trace.row"]
    assert bench.out.with_name("trace.prv").read_text().endswith("of node0.sqlite node1.sqlite\n")


def test_a_report_is_exported_and_an_export_of_an_earlier_one_is_not_used(bench: Bench, tmp_path: Path) -> None:
    report = tmp_path / "rank0.nsys-rep"
    report.write_text("a report")
    make_export(tmp_path / "rank0.sqlite", 1)
    export = make_export(tmp_path / "fresh.sqlite", 77)
    bench.program("nsys", tmp_path / "bin", f'[ "$1 $2" != "export --help" ] && /bin/cp {export} "$5"; exit 0')
    convert([report], bench.out, Options())
    assert bench.calls()["staged"] == ["node0.sqlite"]
    assert len(list(tmp_path.glob("rank0.nsys-rep.*.sqlite"))) == 1, (
        "the harness's own export, which its readers use too"
    )


def test_without_nsys_a_report_is_an_error_that_says_what_to_do(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "rank0.nsys-rep").write_text("a report")
    with pytest.raises(TraceError, match="cannot be read without nsys"):
        convert([tmp_path / "rank0.nsys-rep"], bench.out, Options())
    assert bench.left() == [] and not bench.calls()


def test_in_a_container_it_sees_its_folder_alone_and_the_containers_nsys_exports(bench: Bench, tmp_path: Path) -> None:
    bench.program("apptainer", tmp_path / "bin", f'echo "$@" >"{tmp_path}/words"; shift 6; exec "$@"')
    (tmp_path / "rank0.nsys-rep").write_text("a report")
    convert([tmp_path / "rank0.nsys-rep"], bench.out, Options(image=("apptainer", Path("/images/tools.sif"))))
    calls = bench.calls()
    assert calls["staged"] == ["node0.nsys-rep"]
    words = (tmp_path / "words").read_text().split()
    assert words[:6] == [
        "exec", "--bind", f"{calls['cwd']}:{calls['cwd']}", "--pwd", calls["cwd"], "/images/tools.sif",
    ]  # fmt: skip
    assert words[6:] == ["nsys2prv", *calls["argv"]]


def test_a_filter_reaches_it(bench: Bench, tmp_path: Path) -> None:
    convert([make_export(tmp_path / "a.sqlite", 30)], bench.out, Options(within="a b"))
    assert bench.calls()["argv"][2] == "--filter-nvtx=a b"


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("traceback", r"failed \(exit 1\): KeyError: .* \(see .*trace\.nsys2prv\.log\); --engine own writes"),
        ("no-range", r"failed \(exit 1\): pandas.errors.EmptyDataError: No columns to parse from file \(see "),
        ("nothing", r"ended without an error but left no \.row"),
        ("no-row", r"ended without an error but left no \.row"),
    ],
)
def test_each_way_to_fail_is_one_sentence_and_leaves_the_old_trace(
    bench: Bench, tmp_path: Path, how: str, sentence: str
) -> None:
    bench.out.with_name("trace.prv").write_text("before")
    bench.fails(how)
    with pytest.raises(WorkError, match=sentence):
        convert([make_export(tmp_path / "a.sqlite", 30)], bench.out, Options(within="forwrad"))
    assert bench.out.with_name("trace.prv").read_text() == "before"
    logged = {"trace.nsys2prv.log"} & set(bench.left())
    assert set(bench.left()) == {"trace.prv"} | logged
    assert bool(logged) == (how in ("traceback", "no-range"))


def test_one_process_id_on_two_nodes_is_refused_instead_of_merged(bench: Bench, tmp_path: Path) -> None:
    exports = [make_export(tmp_path / node / "profile.sqlite", 30) for node in ("lrdn1", "lrdn2")]
    with pytest.raises(WorkError, match=r"lrdn1/profile.sqlite and .*lrdn2/profile.sqlite both have a process 30"):
        convert(exports, bench.out, Options())
    assert bench.left() == []


DEFAULTS = {
    "0.5.8": "nvtx_pushpop_trace,nccl,cuda_api_trace,gpu_metrics",
    "0.6.0rc1": "nvtx,nccl,cuda_api_trace,gpu_metrics,kernels",
}


@pytest.mark.parametrize("version", VERSIONS)
def test_fake_nsys2prv_with_the_help_of_each_version_gets_the_types_that_it_has(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setenv("FAKE_VERSION", version)
    convert([make_export(tmp_path / "a.sqlite", 30)], bench.out, Options())
    assert bench.calls()["argv"] == ["-t", DEFAULTS[version], "node0.nsys-rep", "trace"]


@pytest.mark.parametrize(
    ("version", "options", "said"),
    [
        (
            "0.5.8",
            Options(("nvtx_pushpop", "cuda_api_trace")),
            "has no 'nvtx_pushpop': did you mean nvtx_pushpop_trace",
        ),
        ("0.5.8", Options(("kernels",)), r"has no 'kernels'.*it has mpi_event_trace, .*graphs"),
        ("0.5.8", Options(("gpu_metrics",)), "needs cuda_api_trace"),
        ("0.5.8", Options(("openacc", "cuda_api_trace"), within="a"), ""),
        ("0.6.0rc1", Options(("kernels", "osrt")), ""),
        ("0.6.0rc1", Options(("kernels", "nccl")), "needs cuda_api_trace"),
        ("0.6.0rc1", Options(("kernel",)), "has no 'kernel': did you mean kernels"),
        ("0.6.0rc1", Options(within="forward"), "--filter-nvtx: the nsys2prv here has no such option, which 0.5 has"),
        ("unknown", Options(("kernels",), within="forward"), "--filter-nvtx: the nsys2prv here has no such option"),
    ],
)
def test_what_a_version_has_not_is_refused_in_one_sentence(version: str, options: Options, said: str) -> None:
    help_text = "" if version == "unknown" else (DATA / version / "help.txt").read_text()
    with pytest.raises(RequestError, match=said) if said else nullcontext():
        assert options.types_for(help_text) == options.types


def test_the_nsys2prv_that_is_installed_takes_our_command_line(tmp_path: Path) -> None:
    """0.6 reads an export without nsys; 0.5 needs one that has its reports."""
    if shutil.which("nsys2prv") is None:
        pytest.skip("nsys2prv is not on PATH")
    if "--filter-nvtx" in help_of(Options()) and shutil.which("nsys") is None:
        pytest.skip("this nsys2prv needs nsys")
    convert([both_writers.made(tmp_path / "made.sqlite")], tmp_path / "trace", Options())
    sizes = {label: kind for label, kind in read_prv(tmp_path / "trace.prv").types.items() if "size [bytes]" in label}
    assert len(sizes) == 1


def test_a_program_or_a_folder_that_is_not_there_is_named(bench: Bench, tmp_path: Path) -> None:
    export = make_export(tmp_path / "a.sqlite", 30)
    with pytest.raises(WorkError, match=r"gone cannot be written: .*--out PREFIX"):
        convert([export], tmp_path / "gone" / "trace", Options())
    (tmp_path / "bin" / "nsys2prv").unlink()
    with pytest.raises(WorkError, match=r"nsys2prv cannot be started: .*--engine own needs neither"):
        convert([export], bench.out, Options())
