"""The page of all runs: valid and inert, its bars add up, and a browser sorts, filters, and chooses two runs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.summary import JobTime
from harness.cli.main import main
from harness.experiment.exercises import DDP, OwnTraining
from harness.replay.attribute.causes import CAUSES
from harness.run import Run
from harness.run.record import Status
from tests.launch.launch_shared import a_run
from tests.launch.test_ls import MS, completed, lost, quality, replayed, steps
from tests.report.given_summary import of_devices, summary
from tests.report.test_report_page import all_of, parse, texts
from tests.synthetic.job import HOSTILE

DATA = "data loading"


def slow(root: Path, job_id: str, step_ms: int, data_ms: int, **changes: Any) -> Run:
    """A completed run that waits for data in each step, and communicates for 10 ms."""
    compute_ms = step_ms - data_ms - 10
    replay = replayed().model_copy(update={"step_ns": step_ms * MS, "unexplained_ns": (step_ms - data_ms) * MS})
    found = lost("data-stall", data_ms / step_ms).model_copy(update={"lost_ns": data_ms * MS})
    run = completed(root, job_id)
    idle = {"data loading": data_ms}
    made = summary(compute_ms, 10, idle=idle, steps=steps(step_ms * MS), replay=replay, findings=[found], **changes)
    run.summary.write_text(of_devices(made, window_ns=step_ms * MS).model_dump_json())
    return run


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four runs: a slow one with a page, a hostile one, a hidden one, and one whose summary is damaged."""
    root = tmp_path_factory.mktemp("runs")
    slow(root, "local-9", 200, 50, job_time=JobTime(elapsed_ns=10**9, useful_share=0.5)).page.write_text("a page")
    hostile = slow(root, "local-10", 100, 50)
    asked = OwnTraining(command=("train.py", HOSTILE, "</script><script>window.hacked=1</script>"), start_in="/")
    hostile.write_record(hostile.record.model_copy(update={"experiment": asked}))
    slow(root, "local-11", 80, 40, quality=quality(withheld="findings"))
    completed(root, "local-12", DDP(nodes=2)).summary.write_text("half a summ")
    return root


@pytest.fixture
def page(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HARNESS_RUNS", str(root))
    assert main(["ls", "--html"]) == 0
    return root / "runs.html"


def test_a_row_has_what_ls_tells_with_a_bar_on_one_scale_and_names_are_text(page: Path) -> None:
    tree, text = parse(page.read_text()), page.read_text()
    assert texts(tree, "th") == ["id", "state", "asked", "step", "mean step", "verdict", "submitted", "size"]
    rows = [texts(row, "td") for row in all_of(tree, "tr")[1:]]
    assert [row[0] for row in rows] == ["local-12", "local-11", "local-10", "local-9"], "the newest first"
    assert rows[0][:6] == ["local-12", "completed", "-e 1 -n 2", "–", "–", "–"]
    bar = f"compute 140 · exposed communication 10 · idle: {DATA} 50 ms, all avoidable"
    assert rows[3][3:6] == ["200 ms", bar, f"{CAUSES['data-stall'].label} 25 %"]
    (link,) = all_of(tree, "a")
    assert (page.parent / str(link.get("href"))).read_text() == "a page"
    bars = [div for div in all_of(tree, "div") if div.get("class") == "step"]
    widths = [float(re.findall(r"width: ([\d.]+)%", str(bar.get("style")))[0]) for bar in bars]
    assert widths == [40, 50, 100], "the longest is as wide as its column"
    grow = [int(n) for part in all_of(bars[2], "span") for n in re.findall(r"flex-grow: (\d+)", str(part.get("style")))]
    assert grow == [140 * MS, 10 * MS, 50 * MS]
    hidden = " ".join(rows[1])
    assert "idle" in rows[1][4] and DATA not in hidden and CAUSES["data-stall"].label not in hidden
    assert HOSTILE not in text and "<script>window.hacked" not in text
    assert "useful" not in text, "the page explains no column that only the terminal has"
    assert shlex.quote(HOSTILE) in rows[2][2]


def test_the_page_is_written_where_it_is_asked_for_and_has_all_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARNESS_RUNS", str(tmp_path))
    for number in range(1, 23):
        a_run(tmp_path, f"local-{number}").write_status(Status(state="completed"))
    page = tmp_path / "elsewhere" / "my page.html"
    page.parent.mkdir()
    for flags, count in ((["--html", str(page)], 22), ([f"--html={page}", "-n", "3"], 3)):
        assert main(["ls", *flags]) == 0
        assert f"  page:   {page}\n" in capsys.readouterr().out
        assert len(all_of(parse(page.read_text()), "tr")) == 1 + count
    assert main(["ls", "--html"]) == 0
    assert capsys.readouterr().out == f"  page:   {tmp_path / 'runs.html'}\n"


pytest.importorskip("websocket", reason="pip install websocket-client: it speaks with the browser")
from chromium import Browser, Chromium  # noqa: E402 - skipped without a way to speak with it


@pytest.fixture(scope="module")
def started(chromium: Chromium) -> Iterator[Browser]:
    with chromium.page(width=400) as browser:
        yield browser


@pytest.fixture
def browser(started: Browser, page: Path) -> Browser:
    started.open(page, dark=True)
    return started


def ids(browser: Browser) -> list[str]:
    """Of the shown rows, in their order."""
    rows = browser.evaluate(
        "[...document.querySelectorAll('tbody tr:not([hidden])')].map((row) => row.cells[1].innerText)"
    )
    return list(rows)


def test_a_click_on_a_head_sorts_by_number_and_a_filter_keeps_the_rows_with_all_its_words(browser: Browser) -> None:
    click = "[...document.querySelectorAll('th button')].find((each) => each.textContent === '{}').click()"
    rising = ["local-9", "local-10", "local-11", "local-12"]
    for head, order in (("step", ["local-11", "local-10", "local-9", "local-12"]), ("step", rising), ("id", rising)):
        browser.evaluate(click.format(head))
        assert ids(browser) == order, "a run without a number is last"
    browser.evaluate("filter = document.getElementById('filter'); filter.value = 'TRAIN.py completed';")
    browser.evaluate("filter.dispatchEvent(new Event('input'))")
    assert ids(browser) == ["local-10"]
    assert browser.evaluate("document.getElementById('shown').textContent") == "1 of 4"
    assert browser.evaluate("document.querySelector('tbody tr:not([hidden]) .step').style.width") == "100%"


def test_two_clicks_give_the_command_that_compares_two_runs(browser: Browser) -> None:
    command = "document.getElementById('command').textContent"
    assert browser.evaluate(command) == "bash slurm.sh compare A B" and browser.evaluate("copy.disabled")
    for job_id in ("local-9", "local-12"):
        browser.evaluate(f"document.querySelector('[value={job_id}]').click()")
    assert browser.evaluate(command) == "bash slurm.sh compare local-9 local-12"
    assert not browser.evaluate("copy.disabled")
    browser.evaluate("document.querySelector('[value=local-10]').click()")
    assert browser.evaluate(command) == "bash slurm.sh compare local-12 local-10", "the first is let go"
    assert browser.evaluate("document.querySelectorAll(':checked').length") == 2


def test_the_page_fits_a_phone_has_a_theme_and_asks_for_nothing(browser: Browser, page: Path) -> None:
    assert browser.evaluate("document.documentElement.scrollWidth") == 400
    assert browser.evaluate("document.querySelector('.scroll[aria-label=Runs]').scrollWidth") <= 400
    assert browser.evaluate("document.documentElement.dataset.theme") == "dark"
    browser.evaluate("document.getElementById('theme').click()")
    assert browser.evaluate("document.documentElement.dataset.theme") == "light"
    assert browser.problems == [] and set(browser.requests) == {page.as_uri()}
    assert browser.evaluate("typeof hacked") == "undefined"
