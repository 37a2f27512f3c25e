"""A check's result for a continuous integration: Markdown for its page, and JUnit XML for its list of tests."""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree import ElementTree

from harness.analysis.change import ChangeVerdict
from harness.common.format import metric_text
from harness.common.printable import printable
from harness.study.check.result import ArmValues, Checked

_SPECIAL = frozenset("\\`*_[]<>|#&~$@!")


def as_markdown(checked: Checked, lines: Sequence[str]) -> str:
    """The verdict, a row for A and one for B, and the whole text below. lines: the text of the terminal."""
    head = ["", "revision", "runs", checked.metric] if checked.a.revision else ["", "launch", "runs", checked.metric]
    rows = [head, ["---"] * len(head), *(_row(letter, arm, checked) for letter, arm in _arms(checked))]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    text = "\n".join(f"    {line}".rstrip() for line in lines)  # an indented block ends with no sign of its own
    return f"**{checked.verdict.value}**: {_escaped(checked.why)}\n\n{table}\n\n{text}\n"


def as_junit(checked: Checked, lines: Sequence[str]) -> str:
    """One test: it failed if B is worse, and is skipped if that cannot be told."""
    name = " against ".join(arm.revision or arm.asked for _, arm in reversed(_arms(checked)))
    counts = {
        "tests": 1,
        "failures": int(checked.verdict is ChangeVerdict.WORSE),
        "skipped": int(checked.verdict in (ChangeVerdict.UNKNOWN, ChangeVerdict.NOT_COMPARABLE)),
        "errors": 0,
    }
    suite = ElementTree.Element("testsuite", {"name": "check"} | {key: str(n) for key, n in counts.items()})
    case = ElementTree.SubElement(suite, "testcase", {"classname": f"check.{checked.metric}", "name": _xml(name)})
    what = "failure" if counts["failures"] else "skipped" if counts["skipped"] else None
    if what is not None:
        ElementTree.SubElement(case, what, {"message": _xml(f"{checked.verdict.value}: {checked.why}")})
    ElementTree.SubElement(case, "system-out").text = "\n".join(map(_xml, lines))
    ElementTree.indent(suite)
    written: bytes = ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True)
    return written.decode() + "\n"


def _arms(checked: Checked) -> list[tuple[str, ArmValues]]:
    return [("A", checked.a), ("B", checked.b)]


def _row(letter: str, arm: ArmValues, checked: Checked) -> list[str]:
    mean = "–" if arm.mean is None else metric_text(checked.metric, arm.mean)
    return [letter, _escaped(arm.revision or arm.asked), str(len(arm.runs)), mean]


def _escaped(text: str) -> str:
    return "".join(f"\\{sign}" if sign in _SPECIAL else sign for sign in printable(text))


def _xml(text: str) -> str:
    """Without the characters that no XML may hold."""
    return re.sub("[\ufffe\uffff]", "", printable(text))
