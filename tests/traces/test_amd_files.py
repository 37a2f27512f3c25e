"""What AMD's profilers write beside a database is known, and said with what to record instead."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from harness.cli.main import main
from harness.traces import TraceError, open_trace
from harness.traces.foreign.amd_files import amd_sentence
from tests.synthetic import kineto
from tests.synthetic.rocpd import rocpd_steps

DISPATCH = {"thread_id": 7, "start_timestamp": 5, "end_timestamp": 9, "dispatch_info": {"kernel_id": 1}}
V3_JSON = json.dumps(
    {"rocprofiler-sdk-tool": [{"metadata": {"pid": 1}, "buffer_records": {"kernel_dispatch": [DISPATCH] * 3}}]}
)
V1_EVENT = (
    '{"ph":"X","name":"hipMalloc","pid":2,"tid":7,"ts":"12","dur":"4",\n'
    ' "args":{\n "BeginNs":"12000",\n "EndNs":"16000"}}'
)
V1_JSON = (
    '{ "traceEvents":[{}\n,{"args":{"name":"0 CPU HIP API"},"ph":"M","pid":2,"name":"process_name"}\n,'
    + ",".join([V1_EVENT] * 5)
    + "]}"
)
V1_CSV = '"Index","KernelName","gpu-id","queue-id","BeginNs","EndNs","DurationNs"\n0,"copy.kd",0,0,5,9,4\n'
V3_CSV = (
    '"Kind","Agent_Id","Queue_Id","Stream_Id","Kernel_Id","Kernel_Name","Correlation_Id","Start_Timestamp"\n'
    + '"KERNEL_DISPATCH","Agent 4",1,0,42,"copy",1,5\n' * 2
)
V3_API = '"Domain","Function","Process_Id","Thread_Id","Correlation_Id","Start_Timestamp","End_Timestamp"\n'
V3_STATS = '"Name","Calls","TotalDurationNs","AverageNs"\n"copy",48,24115,502.4\n'
KNOWN = [
    ("1_results.json", V3_JSON, "JSON of rocprofv3"),
    ("1_results.json", V3_JSON.replace('{"r', '{\n  "r', 1), "JSON of rocprofv3"),
    ("results.json", V1_JSON, "JSON of rocprof"),
    ("results.csv", V1_CSV, "a table of rocprof"),
    ("1_kernel_trace.csv", V3_CSV, "a table of rocprofv3"),
    ("1_kernel_trace.csv", V3_CSV.replace('"Kind"', '"Guid","Kind"'), "a table of rocprofv3"),
    ("1_kernel_trace.csv", V3_CSV.replace('"', ""), "a table of rocprofv3"),
    ("1_hip_api_trace.csv", V3_API, "a table of rocprofv3"),
    ("1_kernel_stats.csv", V3_STATS, "a table of rocprofv3"),
    ("1_results.pftrace", "\n\0", "a trace of Perfetto, as rocprofv3 writes it"),
]  # fmt: skip


PACKED = [(f"{name}.gz", text, what) for name, text, what in KNOWN if not name.endswith(".pftrace")]


@pytest.mark.parametrize(("name", "text", "what"), KNOWN + PACKED)
def test_a_file_of_amd_is_said_with_what_to_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, text: str, what: str
) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    assert main(["report", str(path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"slurm.sh: {path}: is {what}, which is not read: record a database (`rocprofv3 ")
    assert said.count("\n") == 1
    assert main(["report", str(tmp_path)]) in (1, 2), "rocprof's JSON is taken for a trace, which cannot be read"
    assert f"{path}: is {what}" in capsys.readouterr().err
    with pytest.raises(TraceError, match="which is not read"):
        open_trace(path)


def test_beside_a_database_they_are_nothing_to_tell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rocpd_steps().saved(tmp_path / "1_results.db")
    (tmp_path / "1_results.json").write_text(V3_JSON)
    (tmp_path / "1_kernel_trace.csv").write_text(V3_CSV)
    assert main(["report", str(tmp_path), "--json", "--no-html"]) == 0
    assert "not read:" not in capsys.readouterr().out


def test_traces_and_tables_of_others_are_not_taken_for_them(tmp_path: Path) -> None:
    assert amd_sentence(kineto.kineto(tmp_path / "rank0.json", kineto.gpu_step())) is None
    for name, text in (("a.csv", "Name,Value\n"), ("b.json", "{}"), ("c.json.gz", "no gzip"), ("d.csv", "")):
        (tmp_path / name).write_text(text)
        assert amd_sentence(tmp_path / name) is None
    assert amd_sentence(tmp_path / "missing.json") is None
