"""The parts of the acceptance command: its Python, its results and page, and what it asks of a report."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import html5lib
import pytest
from failures import LackError, StepError
from interpreter import make_python
from page import page
from place import Place, run
from results import Check, Result, read_results, write_results
from runner import do_step
from step_faults import OF_LOOPS, OF_RUNS, Fault, finding, is_right
from steps import STEPS, Step
from summary_checks import check_precision, check_summary

from harness.measure.paths import measure_one as measure
from tests.synthetic.one_gpu import event, launched, summary_of, training, written

(FP32,) = (fault for fault in OF_RUNS if fault.case == "fp32")


def test_its_python_finds_the_packages_of_this_one_whatever_pythonpath_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    carried = tmp_path / "carried"
    carried.mkdir()
    (carried / "carried_along.py").write_text("here = True\n")
    monkeypatch.setenv("PYTHONPATH", str(carried))
    python = make_python(tmp_path / "python")
    code = "import carried_along, pydantic, harness.run, sys; print(sys.prefix)"
    environment = {"PYTHONPATH": "/nowhere"}
    done = subprocess.run(
        [python, "-I", "-c", code], env=environment, capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert done.stdout.strip() == str(tmp_path / "python")


def test_a_program_that_outlasts_its_time_hears_ctrl_c_first(tmp_path: Path) -> None:
    reported = tmp_path / "reported"
    # Unlike bash, Python handles SIGINT also where the parent process ignores it.
    code = (
        "import signal, sys, time, pathlib\n"
        "signal.signal(signal.SIGINT, lambda *_: (pathlib.Path(sys.argv[1]).touch(), sys.exit(3)))\n"
        "time.sleep(60)"
    )
    done = run([sys.executable, "-I", "-S", "-c", code, str(reported)], 3, {"PATH": "/usr/bin:/bin"})
    assert done.code is None
    assert reported.exists()


def made_results() -> list[Result]:
    result = Result("inventory", "done", seconds=2.0, numbers={"gpu": {"name": "X <100>", "driver_version": "1.2"}})
    result.check("a <b>", True, "1 & 2")
    result.check("c", False, "3")
    result.lacks("d", "GPU")
    return [result, Result("training", "failed", "it ended")]


def test_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    write_results(tmp_path / "acceptance.json", made_results())
    assert list(read_results(tmp_path / "acceptance.json").values()) == made_results()
    (tmp_path / "other.json").write_text('{"schema": 2, "steps": []}')
    assert read_results(tmp_path / "other.json") == {}
    assert read_results(tmp_path / "absent.json") == {}


def test_the_page_is_valid_and_escapes_what_it_shows() -> None:
    titles = {"inventory": "what <is> here", "training": "five runs"}
    text = page(made_results(), titles)
    html5lib.HTMLParser(strict=True).parse(text)
    assert "X &lt;100&gt;, driver 1.2" in text
    assert "a &lt;b&gt;" in text
    assert "it ended" in text
    assert "does not hold" in text


@pytest.mark.parametrize(
    ("raised", "state"),
    [
        (LackError("GPU"), "lacks"),
        (StepError("no"), "failed"),
        (KeyError("bug"), "failed"),
        (KeyboardInterrupt(), "partial"),
    ],
)
def test_what_a_step_found_is_kept_however_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raised: BaseException, state: str
) -> None:
    def work(_step: Step, _place: Place, result: Result) -> None:
        result.seen("before", "found")
        raise raised

    monkeypatch.setattr(Step, "work", work)
    assert do_step(STEPS[0], Place(tmp_path, tmp_path, tmp_path, 0.0)) == 0
    from results import read_json, result_from

    kept = result_from(read_json(tmp_path / "results" / "inventory.json"))
    assert (kept.state, kept.checks) == (state, [Check("before", "seen", "found")])


# What is asked of a report


@pytest.fixture
def summary(tmp_path: Path) -> dict[str, Any]:
    return summary_of(written(tmp_path / "rank0.json.gz", training()))


def failing(summary: dict[str, Any]) -> dict[str, str]:
    result = Result("reports")
    check_summary(result, "x", summary)
    assert len(result.checks) >= 5
    return {check.name: check.said for check in result.checks if check.verdict == "fail"}


def test_a_sound_report_passes(summary: dict[str, Any]) -> None:
    assert failing(summary) == {}


def test_a_lost_nanosecond_is_found(summary: dict[str, Any]) -> None:
    summary["devices"][0]["steps"][2]["idle_ns"] -= 1
    assert "off by 1 ns" in failing(summary)["x: conservation"]


def test_idle_time_without_a_cause_is_found(summary: dict[str, Any]) -> None:
    summary["idle_causes"][0]["duration_ns"] -= 5
    assert list(failing(summary)) == ["x: idle causes"]


def test_a_kernel_of_no_known_kind_is_named(tmp_path: Path) -> None:
    trace = training()
    trace["traceEvents"] += launched("zzyzx", 99, 50.0, 120.0)
    said = failing(summary_of(written(tmp_path / "rank0.json.gz", trace)))["x: kinds of work"]
    assert "zzyzx" in said


def test_kernels_without_a_launch_are_found(tmp_path: Path) -> None:
    trace = training()
    trace["traceEvents"].append(event("kernel", "gemm", 50.0, 1.0, device=0, stream=7, correlation=4711))
    found = failing(summary_of(written(tmp_path / "rank0.json.gz", trace)))
    assert found["x: launches"] == "6 of 7 kernels have a known launch"


@pytest.mark.parametrize(("wanted", "verdict"), [("bf16", "pass"), ("fp32", "fail")])
def test_the_precision_that_ran_is_compared_with_the_one_asked_for(
    summary: dict[str, Any], wanted: str, verdict: str
) -> None:
    result = Result("reports")
    check_precision(result, "x", summary, wanted)
    assert [(c.verdict, c.said) for c in result.checks] == [(verdict, "bf16 100.0 %")]


def test_the_finding_is_the_first_of_the_summary(tmp_path: Path) -> None:
    whole = measure([written(tmp_path / "rank0.json.gz", training(idle=700.0))])
    found = finding(whole.model_dump())
    assert found.cause == "host-stall"
    assert found.each_ns == pytest.approx(700_000, rel=0.02)
    assert finding({"findings": []}) == (None, None)


@pytest.mark.parametrize(
    ("fault", "said_ns", "right"),
    [
        *((OF_LOOPS[0], said, right) for said, right in ((110, True), (70, False), (130, False))),
        *((FP32, said, right) for said, right in ((40, True), (130, False))),
    ],
)
def test_milliseconds_are_right_within_a_quarter_and_a_lower_bound_may_be_low(
    fault: Fault, said_ns: float, right: bool
) -> None:
    assert is_right(fault, said_ns, cost_ns=100) is right
