"""A recording that nsys loses is made again, whatever way it is lost, and counted; any other failure is one at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.real_nsys import LostRecordingError, checked, kept, recorded

LOST = "Connection to the Agent lost."
NSYS = """#!/bin/sh
echo x >> "$(dirname "$0")/starts"
case $(wc -l < "$(dirname "$0")/starts") in
1) echo 'Failed to connect to Agent'; exit 1;;
2) echo 'Connection to the Agent lost.';;
3) : > {report};;
*) echo ranges > {report};;
esac
"""


def test_a_recording_without_a_report_or_without_its_ranges_is_made_again(tmp_path: Path) -> None:
    report = tmp_path / "report.nsys-rep"
    nsys = tmp_path / "nsys"
    nsys.write_text(NSYS.format(report=report))
    nsys.chmod(0o755)
    with pytest.warns(UserWarning, match="nsys lost recording") as warned:
        done = recorded([nsys, "profile"], report, Path.read_text)
    assert (done.returncode, report.read_text(), len(warned)) == (0, "ranges\n", 3)


def test_a_launch_that_failed_for_the_agent_is_made_again_and_no_other() -> None:
    said = iter([LOST, LOST, ""])
    with pytest.warns(UserWarning, match="nsys lost recording") as warned:
        kept(lambda: checked(len(text := next(said)), text), lambda _: True)
    assert len(warned) == 2
    with pytest.raises(AssertionError, match="no space left"):
        kept(lambda: checked(1, "no space left"), bool)
    with pytest.raises(LostRecordingError), pytest.warns(UserWarning, match="nsys lost recording"):
        kept(lambda: checked(1, LOST), bool)
