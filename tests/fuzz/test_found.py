"""What fuzzing found, each by its smallest input, and the sentence that it gives now."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.fuzz.box import Box
from tests.fuzz.fence import Case, Ended, run_case
from tests.fuzz.sandbox import RECORDED

LONG = "1" * 5000  # Python reads no number of so many digits
HUGE = "9" * 400  # a whole number that is larger than any float
DEEP = "setup: " + "[" * 3000
SMALL = "name: x\ndescription: x\n"

REFUSED = {
    "bytes that are no text": (["-e", "1", "--data", "\udcff", "--dry-run"], "name that is not UTF-8 text"),
    "no text in a command": (["report", "a\udcff"], "name that is not UTF-8 text"),
    "a line break behind a switch": (
        ["-e", "1", "--random-weights=\r\n", "--dry-run"],
        "--random-weights takes no value: leave out =",
    ),
    "a line break in an unknown flag": (["-e", "1", "--a\nb", "--dry-run"], "unknown flag --a b"),
    "--strict of a sweep": (["sweep", "hpz", "--strict"], "unknown flag --strict"),
    "--repeats with 5,000 digits": (["sweep", "hpz", f"--repeats={LONG}"], "takes a whole number from 1 to"),
    "a scaling's size with 5,000 digits": (
        ["sweep", "scaling", "-e", "1", "--nodes", f"1,{LONG}"],
        "takes numbers above 0 with commas",
    ),
    "--max-parallel above every float": (["sweep", "hpz", f"--max-parallel={HUGE}"], "takes a whole number above 0"),
    "a mystery's --seed with 5,000 digits": (
        ["lesson", "mystery", "-e", "1", f"--seed={LONG}"],
        "--seed takes a whole number of at most 1000 digits, not of 5000",
    ),
    "more students than a float can count": (["doctor", f"--students={HUGE}"], "1000000"),
    "a pipe as site file": (
        ["-e", "1", "--site", "traces/pipe", "--dry-run"],
        "site file traces/pipe: is a pipe, not a file",
    ),
    "a pipe as sweep": (["sweep", "traces/pipe"], "sweep file traces/pipe: is a pipe, not a file"),
    "a rank that one of several jobs lacks": (
        ["report", "traces", "--html", "page.html", "--ranks", "0"],
        "--ranks 0: there is no such rank",
    ),
    "a limit of a number that is not there, with a page": (
        ["compare", "traces/one.sqlite", "last", "--html", "page.html", "--fail-if", "mfu < 0.3"],
        "there is no 'mfu' here",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_wrong_request_is_one_sentence_and_writes_nothing(box: Box, name: str) -> None:
    argv, says = REFUSED[name]
    ended = _only(box, Case([argv]))
    assert (ended.outcome, ended.fault) == ("refused", "")
    assert says in ended.err


SITES = {
    "brackets that exhaust the stack": DEEP,
    "an open bracket 100,000 times": "a: " + "[" * 100_000,
    "a day that no month has": "partition: 2026-02-31",
    "digits without a digit": "max_nodes: 0b_",
    "a tag of Python's": "setup: !!python/object/apply:os.system ['id']",
    "lists of lists of lists": "".join(f"a{i + 1}: &a{i + 1} [{', '.join([f'*a{i}'] * 9)}]\n" for i in range(1, 9)),
}


@pytest.mark.parametrize("name", SITES)
def test_a_site_file_that_is_no_yaml_is_one_sentence(box: Box, name: str) -> None:
    files = {"new.yaml": f"{SMALL}a1: &a1 [x]\n{SITES[name]}\n".encode()}
    ended = _only(box, Case([["sites", "./new.yaml"]], files))
    assert (ended.outcome, ended.fault) == ("refused", "")
    assert ended.err.startswith("slurm.sh: site file new.yaml: ")
    assert len(ended.err) < 400


def test_a_path_that_begins_with_a_line_break_is_one_sentence(box: Box) -> None:
    ended = _only(box, Case([["status", "\x01\n5/traces"]]))
    assert (ended.outcome, ended.fault) == ("refused", "")
    assert ended.err == "slurm.sh:  5/traces: there is no such file or folder\n"


def test_a_nul_byte_in_a_site_file_is_named(box: Box) -> None:
    files = {"new.yaml": f'{SMALL}container: {{image: "\\0"}}\n'.encode()}
    ended = _only(box, Case([["sites", "./new.yaml"]], files))
    assert (ended.outcome, ended.fault) == ("refused", "")
    assert ended.err.endswith("field container.image is '\\x00': no command line can carry a NUL byte\n")


def test_a_record_with_a_text_in_a_parts_place_is_reported(box: Box) -> None:
    name = f"{RECORDED}/run.json"
    record = json.loads((box.work / name).read_text())
    record["site"]["defaults"] = "x"
    ended = _only(box, Case([["report", str(RECORDED), "--no-html"]], {name: json.dumps(record).encode()}))
    assert ended.fault == ""


def test_a_time_that_no_clock_gives_is_named(box: Box) -> None:
    name = f"{RECORDED}/run.json"
    record = json.loads((box.work / name).read_text())
    record["nodes"] = [{"node": 0, "host": "n0", "exit": 0, "started_ns": 0, "ended_ns": 10**400}]
    ended = _only(box, Case([["status", str(RECORDED)]], {name: json.dumps(record).encode()}))
    assert (ended.outcome, ended.fault) == ("failed", "")
    assert "run.json cannot be read: nodes.0.ended_ns" in ended.err


METRICS = f"{RECORDED}/metrics/rank0.jsonl"


def _metrics(box: Box, event: str, **fields: Any) -> dict[str, bytes]:
    """All ranks' metrics, in which the lines of this event have other fields."""
    files = {}
    for path in (box.work / METRICS).parent.glob("rank*.jsonl"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        changed = [line | fields if line["event"] == event else line for line in lines]
        files[str(path.relative_to(box.work))] = "".join(json.dumps(line) + "\n" for line in changed).encode()
    return files


def test_counts_below_nothing_are_no_counts(box: Box) -> None:
    ended = _only(box, Case([["report", str(RECORDED), "--no-html"]], _metrics(box, "step", continued=-3)))
    assert (ended.outcome, ended.fault) == ("done", "")
    assert "training metrics have unreadable lines" in ended.out


@pytest.mark.parametrize(("event", "fields"), [
    ("start", {"peak_flops_per_s": 0.0}), ("step", {"step_ns": 0, "tokens": 1}),
])  # fmt: skip
def test_nothing_is_divided_by_what_a_changed_file_says(box: Box, event: str, fields: dict[str, Any]) -> None:
    ended = _only(box, Case([["report", str(RECORDED), "--no-html"]], _metrics(box, event, **fields)))
    assert (ended.outcome, ended.fault) == ("done", "")


def test_metrics_that_end_with_a_whole_line_lack_their_last(box: Box) -> None:
    text = (box.work / METRICS).read_bytes()
    files = {METRICS: text[: text.index(b"\n")]}
    ended = _only(box, Case([["report", str(RECORDED), "--no-html", "--json"]], files, cut=True))
    assert (ended.outcome, ended.fault) == ("done", "")
    assert "training metrics lack their last line" in ended.out


def test_a_report_by_slurm_where_there_is_no_slurm_is_one_sentence(box: Box) -> None:
    ended = _only(box, Case([["report", "last", "--executor", "slurm"]]))
    assert (ended.outcome, ended.fault) == ("failed", "")
    assert ended.err == "slurm.sh: --executor slurm: sbatch is not on PATH: log in to the cluster\n"


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--executor", "slurm", "--slurm", "prtition=debug"], "did you mean partition?"),
        (["--executor", "slurm", "--slurm", "array=3"], "it takes account, comment, "),
        (["--executor", "slurm", "--slurm", "partition=a b"], "the value of partition is one word of "),
        (["--executor", "slurm", "--slurm", "partition"], "give KEY=VALUE, as in --slurm partition=debug"),
        (["--slurm", "partition=debug"], "add --executor slurm, or leave it out"),
        (["--resume", "traces"], "--resume traces is for a job array: add --executor slurm"),
    ],
)
def test_what_sbatch_cannot_be_told_of_an_array_is_one_sentence(box: Box, words: list[str], hint: str) -> None:
    ended = _only(box, Case([["report", "last", *words]]))
    assert (ended.outcome, ended.fault) == ("refused", "")
    assert hint in ended.err


def test_a_new_run_takes_no_number_whose_logs_are_there(box: Box) -> None:
    """The hidden folder of numbers stays behind where somebody copies the runs; a refused run then took them away."""
    logs = box.runs / "exercise_1_DDP/logs/local-1/log.out"
    assert logs.is_file() and not (box.runs / ".local").exists()
    ended = _only(box, Case([["-e", "1"]]), keeps=True)
    assert (ended.outcome, ended.started[-1]) == ("failed", "submit")
    assert logs.is_file()
    box.restore()


def _only(box: Box, case: Case, keeps: bool = False) -> Ended:
    (ended,) = run_case(box, case, keeps=keeps)
    return ended
