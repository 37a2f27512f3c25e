"""The settings below a dry run's script with the flags that set them, and docs/script.md beside the course's slide."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pages import our_options, slides_options

from harness.launch.render import BELOW
from tests.launch.launch_shared import Harness


@pytest.mark.parametrize(
    ("line", "changed", "lines"),
    [
        ("-e 2 -n 2", "--ds-no-overlap", ['"overlap_comm": false, # flag --ds-no-overlap']),
        ("-e 2 -n 2", "--ds-hpz-partition 8", ['"zero_hpz_partition_size": 8 # flag --ds-hpz-partition']),
        ("-e 1", "-g 2", ["num_processes: 2 # flag -g"]),
        ("-e 3", "--tp 2", []),
    ],
)
def test_a_dry_run_shows_the_settings_below_the_script_with_what_a_flag_set(
    harness: Harness, line: str, changed: str, lines: list[str]
) -> None:
    plain, other = (
        harness("--dry-run", "--site", "leonardo", *words.split()).stdout for words in (line, f"{line} {changed}")
    )
    below = [text.partition(BELOW)[2].splitlines() for text in (plain, other)]
    assert bool(below[0]) == bool(lines)
    assert [each.removeprefix("#").strip() for each in below[1] if each not in below[0]] == lines


def test_the_page_compares_every_option_of_the_slide_and_of_ours() -> None:
    """Options of the slide: 11 of nsys, 2 of the container (one twice), 4 of accelerate, 10 of the training."""
    ours, rows = our_options(), slides_options()
    assert sorted(name for row in rows for name in row.ours) == sorted(ours)
    assert len([row for row in rows if row.slide.startswith("-")]) == 11 + 2 + 4 + 10
    same = {row.slide: [text for name in row.ours for text in ours[name]] for row in rows if row.why == "the same"}
    assert [slide for slide, texts in same.items() if texts != [slide] and "…" not in slide] == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--capture-duration 9", True),
        ("--capture-delay 9", False),
        ("--nsys-options {}/clock.json", True),
        ("--nsys-options {}/range.json", False),  # nsys itself takes the duration of a range
    ],
)
def test_the_script_says_who_ends_a_recording_by_the_clock(
    harness: Harness, tmp_path: Path, words: str, told: bool
) -> None:
    for name, more in (("clock", {}), ("range", {"capture-range": "cudaProfilerApi"})):
        (tmp_path / f"{name}.json").write_text(json.dumps({"trace": "cuda", "duration": "9", **more}))
    line = f"--dry-run -e 1 --site leonardo --profiler nsys {words.format(tmp_path)}"
    (nsys,) = [each for each in harness(*line.split()).stdout.splitlines() if each.startswith("NSYS=(")]
    assert ("; the harness ends it after --duration, and the training continues" in nsys) == told
