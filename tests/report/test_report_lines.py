"""The lines of the user's code that a finding names: in the answer, in the terminal, on the page, in the JSON."""

from __future__ import annotations

import re
from typing import Any

from harness.analysis.summary import CodeLocation, LineShare, Replay, Summary, TimeLost
from harness.explain.answer import answer
from harness.report.first_screen import first_screen
from harness.report.page.compose import compose, render_page
from harness.report.page.inputs import Inputs
from tests.report.given_summary import MS, summary


def line(file: str, number: int, share: float, **more: Any) -> LineShare:
    function = more.pop("function", "train")
    source = [f"    before {number}", f"        step({number})", "    after"]
    given: dict[str, Any] = {"source": source, "first_line": number - 1} | more
    return LineShare(where=CodeLocation(file=file, line=number, function=function), share=share, **given)


def lost(*lines: LineShare, cause: str = "host-stall", ms: int = 3) -> TimeLost:
    return TimeLost(
        cause=cause,
        ranks=[0],
        lost_ns=ms * MS,
        share=ms / 10,
        low_ns=ms * MS,
        high_ns=ms * MS,
        every=1,
        evidence="",
        lines=list(lines),
        where=lines[0].where if lines else None,
    )


def of(*found: TimeLost, start_in: str = "/home/me/project") -> Summary:
    replay = Replay(steps=10, processes=1, step_ns=10 * MS, replayed_ns=10 * MS, error=0)
    asked = {"exercise": "own", "command": ["train.py"], "start_in": start_in}
    return summary(findings=list(found), replay=replay, experiment=asked, ranks=[0])


HERE = "/home/me/project/train.py"


def test_a_finding_names_its_lines_from_where_the_training_was_started() -> None:
    s = of(lost(line(HERE, 42, 0.618), line("/opt/data/load.py", 7, 0.2, function="<module>")))
    said = answer(s).further[0]
    assert said.endswith("62 % of it is at train.py:42 in `train`, 20 % at /opt/data/load.py:7.")
    assert "The place in the code" not in said
    assert "\n  where:   62 % at train.py:42 in train\n" in first_screen(s).plain


def test_a_line_is_told_with_what_it_calls_and_where_it_is_called() -> None:
    inside, call = (CodeLocation(file=HERE, line=n, function=f) for n, f in ((7, "padded"), (88, "main")))
    for given, ways in (
        ({"inside": inside, "called_at": call}, "(mostly at train.py:7 in `padded`; called at train.py:88 in `main`)."),
        ({"called_at": call}, "(called at train.py:88 in `main`)."),
    ):
        said = answer(of(lost(line(HERE, 42, 0.9, **given)))).further[0]
        assert said.endswith(f"90 % of it is at train.py:42 in `train` {ways}")


def test_a_further_finding_names_its_first_line() -> None:
    s = of(lost(line(HERE, 42, 0.9)), lost(line(HERE, 9, 0.8), line(HERE, 10, 0.2), cause="data-stall", ms=1))
    further = next(said for said in answer(s).further if said.startswith("Also"))
    assert further.endswith("80 % of it is at train.py:9 in `train`.")


def test_the_page_shows_three_lines_of_source_and_marks_the_one_that_counts() -> None:
    s = of(lost(line(HERE, 42, 0.6), line(HERE, 50, 0.3), line(HERE, 60, 0.1)), lost(line(HERE, 9, 0.8), ms=1))
    page = render_page(compose(s, Inputs()))
    blocks = re.findall(r'<figure class="source">(.*?)</figure>', page, re.DOTALL)
    assert [re.findall(r'class="marked"><span class="number">(\d+)', block) for block in blocks] == [
        ["42"],
        ["50"],
        ["9"],
    ]
    assert "<figcaption>train.py:42 in train, 60 % of the loss</figcaption>" in blocks[0]
    assert '<span class="number">41</span> before 42' in blocks[0]
    assert '<span class="number">43</span> after' in blocks[0]
    first, further = page.index(blocks[0]), page.index(blocks[2])
    assert page.index("<details") < page.index("60 % of it") < first < page.index("Also: a stall") < further


def test_hostile_names_and_source_stay_text() -> None:
    evil = "</pre><script>alert(1)</script>`rm -rf`\x1b[31m"
    s = of(lost(line(f"/x/{evil}.py", 42, 0.6, function=evil, source=[evil, evil, evil])))
    page = render_page(compose(s, Inputs()))
    assert "<script>alert" not in page and "\x1b" not in page
    assert "&lt;/pre&gt;&lt;script&gt;alert(1)" in page
    assert "\x1b" not in first_screen(s).plain
