"""What fuzzing found, each by its smallest input, and the sentence that it gives now."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest

from tests.fuzz.box import Box
from tests.fuzz.fence import Case, Ended, run_case
from tests.fuzz.sandbox import RECORDED

LONG = "1" * 5000  # Python reads no number of so many digits
HUGE = "9" * 400  # a whole number that is larger than any float
DEEP = "setup: " + "[" * 3000
SMALL = "name: x\ndescription: x\n"

SITES = {
    "brackets that exhaust the stack": DEEP,
    "an open bracket 100,000 times": "a: " + "[" * 100_000,
    "a day that no month has": "partition: 2026-02-31",
    "digits without a digit": "max_nodes: 0b_",
    "a tag of Python's": "setup: !!python/object/apply:os.system ['id']",
    "lists of lists of lists": "a1: &a1 [x]\n"
    + "".join(f"a{i + 1}: &a{i + 1} [{', '.join([f'*a{i}'] * 9)}]\n" for i in range(1, 9)),
    "a NUL byte": 'container: {image: "\\0"}',
}
REFUSED = {
    "bytes that are no text": (["-e", "1", "--data", "\udcff", "--dry-run"], "name that is not UTF-8 text"),
    "no text in a command": (["report", "a\udcff"], "name that is not UTF-8 text"),
    "a line break behind a switch": (
        ["-e", "1", "--random-weights=\r\n", "--dry-run"],
        "--random-weights takes no value: leave out =",
    ),
    "a line break in an unknown flag": (["-e", "1", "--a\nb", "--dry-run"], "unknown flag --a b"),
    "a line break before a path": (["status", "\x01\n5/traces"], "slurm.sh:  5/traces: there is no such file"),
    "--repeats with 5,000 digits": (["sweep", "hpz", f"--repeats={LONG}"], "takes a whole number ≥ 1 and ≤ 1000"),
    "a mystery's --seed with 5,000 digits": (
        ["lesson", "mystery", "-e", "1", f"--seed={LONG}"],
        "takes a whole number ≥ 0 and ≤ 9",
    ),
    "more students than a float can count": (["doctor", f"--students={HUGE}"], "1000000"),
    "a pipe as site file": (
        ["-e", "1", "--site", "traces/pipe", "--dry-run"],
        "site file traces/pipe: is a pipe, not a file",
    ),
    "a pipe as sweep": (["sweep", "traces/pipe"], "sweep file traces/pipe: is a pipe, not a file"),
    "a limit of a number that is not there, with a page": (
        ["compare", "traces/one.sqlite", "last", "--html", "page.html", "--fail-if", "mfu < 0.3"],
        "there is no 'mfu' here",
    ),
    **{f"a site file with {name}": (["sites", "./new.yaml"], "slurm.sh: site file new.yaml: ") for name in SITES},
    "a site file with a NUL byte": (["sites", "./new.yaml"], "is '\\x00': no command line can carry a NUL byte"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_wrong_request_is_one_sentence_and_writes_nothing(box: Box, name: str) -> None:
    argv, says = REFUSED[name]
    text = SITES.get(name.removeprefix("a site file with "), "")
    ended = _only(box, Case([argv], {"new.yaml": f"{SMALL}{text}\n".encode()} if text else {}))
    assert (ended.outcome, ended.fault) == ("refused", "")
    assert says in ended.err and (not text or len(ended.err) < 400)


REPORT = ["report", str(RECORDED), "--no-html"]
LATE = {"node": 0, "host": "n0", "exit": 0, "started_ns": 0, "ended_ns": 10**400}


class Change(NamedTuple):
    """Fields of a run's record, or of the lines of an event of all ranks' metrics, and how a command then ends."""

    event: str
    fields: dict[str, Any]
    argv: list[str] = REPORT
    outcome: str | None = "done"  # None: whatever it is
    says: str = ""


CHANGES = {
    "a text in a part's place": Change("", {"site": {"defaults": "x"}}, outcome=None),
    "a time that no clock gives": Change(
        "", {"nodes": [LATE]}, ["status", str(RECORDED)], "failed", "run.json cannot be read: nodes.0.ended_ns"
    ),
    "counts below nothing": Change("step", {"continued": -3}, says="training metrics have unreadable lines"),
    "a peak of 0": Change("start", {"peak_flops_per_s": 0.0}),
    "a step of 0 ns": Change("step", {"step_ns": 0, "tokens": 1}),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_file_of_a_run_is_told_and_nothing_is_divided_by_it(box: Box, name: str) -> None:
    event, fields, argv, outcome, says = CHANGES[name]
    files = {}
    for path in (box.work / RECORDED).glob("metrics/rank*.jsonl" if event else "run.json"):
        lines = [json.loads(line) for line in (path.read_text().splitlines() if event else [path.read_text()])]
        text = "".join(json.dumps(line | fields if line.get("event", "") == event else line) + "\n" for line in lines)
        files[str(path.relative_to(box.work))] = text.encode()
    ended = _only(box, Case([argv], files))
    assert not ended.fault and outcome in (None, ended.outcome)
    assert says in ended.out + ended.err


def test_metrics_that_end_with_a_whole_line_lack_their_last(box: Box) -> None:
    name = f"{RECORDED}/metrics/rank0.jsonl"
    text = (box.work / name).read_bytes()
    ended = _only(box, Case([[*REPORT, "--json"]], {name: text[: text.index(b"\n")]}, cut=True))
    assert (ended.outcome, ended.fault) == ("done", "")
    assert "training metrics lack their last line" in ended.out


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
