"""The sample of benchmarks/mutants.py: a mutant is one change that Python accepts, the same ones for the same seed."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mutant_places import Mutant, Places, changed, drawn
from mutants import EQUAL, Reach, shown, table

ROOT = Path(__file__).parents[2]
FILE = "harness/theory/devices.py"
UNTOUCHED = '''"""A docstring of 1 or 2."""
__all__ = ["a"] + ["b"]
if TYPE_CHECKING:
    from a import b
if sys.version_info >= (3, 12):
    x = 1 + 2
LIMIT: Literal[1] | None = None
Either = int | None


def f(a: int | Literal[2] = None) -> int | None:
    """1 < 2"""
    option(help=f"{1 + 2} and 3" * 2)
    return f"{a + 1}" + "not 1 == 2"
'''


def places(text: str) -> list[tuple[str, str, str]]:
    return [(each.kind, each.before, each.after) for each in Places("harness/x/y.py", text.encode()).all()]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = a +  b", [("operator", "+", "-")]),
        ("x = (a)  # + b\n", []),
        ("x = (a  # not - this\n  // (b))", [("operator", "//", "*")]),
        ("x <<= é", [("operator", "<<=", ">>=")]),
        ("x = -a", [("operator", "-", "")]),
        ("x = not(a)", [("operator", "not", "")]),
        ("x = a is  not b in c", [("comparison", "is  not", "is"), ("comparison", "in", "not in")]),
        ("x = a < b", [("comparison", "<", "<=")]),
        ("x = a and b and c", [("branch", "and", "or"), ("branch", "and", "or")]),
        ("if a: b", [("branch", "a", "not (a)")]),
        ("if not a: b", [("operator", "not ", "")]),
        ("if a == b: c", [("comparison", "==", "!=")]),
        ("if a >= b: c", [("branch", "a >= b", "not (a >= b)"), ("comparison", ">=", ">")]),
        ("while (a := b): c", [("branch", "a := b", "not (a := b)")]),
        ("x = [a for b in c if d]", [("branch", "d", "not (d)")]),
        ("x = 1, 0.5, True, 0.0, '1'", [("constant", "1", "2"), ("constant", "0.5", "1.0"),
                                         ("constant", "True", "False"), ("constant", "0.0", "1.0")]),
        ("f(a)\nb", [("call", "f(a)", "pass")]),
        ("@dataclass(frozen=True)\nclass A:\n    b: C[1]", []),
    ],
)  # fmt: skip
def test_each_kind_of_change_has_its_place(text: str, expected: list[tuple[str, str, str]]) -> None:
    assert places(text) == expected


def test_texts_annotations_and_code_for_no_python_of_the_sample_are_left() -> None:
    assert places(UNTOUCHED) == [("call", 'option(help=f"{1 + 2} and 3" * 2)', "pass")]


def test_a_mutant_is_one_change_of_the_text_that_python_accepts() -> None:
    source = (ROOT / FILE).read_bytes()
    mutants = Places(FILE, source).all()
    assert len(mutants) > 20 and len({each.id for each in mutants}) == len(mutants)
    for each in mutants:
        text, before, after = changed(source, each), each.before.encode(), each.after.encode()
        compile(text, FILE, "exec")
        lines = source.splitlines(keepends=True)
        begin = len(b"".join(lines[: each.line - 1])) + each.column
        assert text == source[:begin] + after + source[begin + len(before) :] != source
    with pytest.raises(ValueError, match=f"{FILE}:{mutants[0].line}: there is "):
        changed(b"\n" + source, mutants[0])


def test_a_line_above_leaves_a_mutant_its_name() -> None:
    first, second = (Places(FILE, text.encode()).all() for text in ("a = b + 1\n", "\n\na = b + 1\n"))
    assert [each.id for each in first] == [each.id for each in second] and len(first) == 2


def test_the_same_seed_draws_the_same_sample_from_each_room_by_its_size() -> None:
    text = b"def f(a):\n" + b"    a = a + 1 < 2 and not g(a)\n    g(a)\n" * 20
    sources = {f"harness/{room}/a{i}.py": text for room, files in (("b", 3), ("c", 1)) for i in range(files)}
    sample = drawn(sources, 20, seed=1)
    assert sample == drawn(dict(reversed(sources.items())), 20, seed=1) != drawn(sources, 20, seed=2)
    assert [each.room for each in sample] == ["harness/b"] * 15 + ["harness/c"] * 5
    assert len({(each.file, each.line) for each in sample}) == 20
    assert len({each.kind for each in sample}) == 5


def test_what_a_function_does_is_not_done_at_import() -> None:
    found = Places("harness/x/y.py", b"A = 1\ndef f(a=2):\n    return (3 +\n  a)\nB = lambda: 4\n").all()
    told = {each.before: (each.at_import, each.lines) for each in found}
    assert told == {"1": (True, (1, 1)), "2": (True, (2, 2)), "3": (False, (3, 4)), "+": (False, (3, 4)),
                    "4": (False, (5, 5))}  # fmt: skip


def mutant(name: str = "0", line: int = 1, at_import: bool = False) -> Mutant:
    place = ("harness/theory", "harness/theory/peak.py", line, 0)
    return Mutant(name, *place, "call", "f()", "pass", (line, line + 1), at_import)


@pytest.fixture
def mapped(tmp_path: Path) -> Any:
    """Two files of tests, in the form of the map: seconds of each test, and the lines of each context."""
    files = {
        "tests/a/test_a.py": {"quick": (1, {9}), "slow": (25, {2}), "slower": (26, {2})},
        "tests/theory/test_peak.py": {"shared": (1, {5}), "skipped": (1, {2})},
    }
    parts: dict[str, Any] = {}
    for number, (file, tests) in enumerate(files.items()):
        told = {
            f"{file}::{name}": {
                "s": s,
                "long": name == "slower",
                "outcome": "skipped" if name == "skipped" else "passed",
                "fixtures": ["training"] if name == "shared" else [],
            }
            for name, (s, _) in tests.items()
        }
        parts[file] = {"file": file, "tests": told, "collect_s": 2, "fixtures": {"training": 40}}
        lines = {f"{file}::{name}": lines for name, (_, lines) in tests.items()}
        lines |= {"fixture training": {2}, "": {20}} if number else {"": {20}}
        with closing(sqlite3.connect(tmp_path / str(number))) as data, data:
            data.execute("CREATE TABLE file (id, path)")
            data.execute("CREATE TABLE context (id, context)")
            data.execute("CREATE TABLE line_bits (file_id, context_id, numbits)")
            data.execute("INSERT INTO file VALUES (1, 'harness/theory/peak.py')")
            for i, (context, executed) in enumerate(lines.items()):
                bits = sum(1 << line for line in executed).to_bytes(3, "little")
                data.execute("INSERT INTO context VALUES (?, ?)", (i, context))
                data.execute("INSERT INTO line_bits VALUES (1, ?, ?)", (i, bits))
    return SimpleNamespace(parts=lambda: parts, measured=lambda file: tmp_path / str(list(files).index(file)))


def test_a_mutant_is_judged_by_the_tests_that_reach_its_line_themselves_or_in_what_they_share(mapped: Any) -> None:
    sample = [mutant("function", 1), mutant("module", 20, at_import=True), mutant("elsewhere", 30)]
    reach = Reach(mapped, sample, unsteady=set())
    assert reach.tests["function"] == {
        *("tests/a/test_a.py::slow", "tests/a/test_a.py::slower", "tests/theory/test_peak.py::shared")
    }
    assert reach.tests["module"] == reach.tests["function"] | {"tests/a/test_a.py::quick"}
    assert reach.tests["elsewhere"] == set()
    assert Reach(mapped, sample, {"tests/a/test_a.py::slow"}).tests["function"] == {
        *("tests/a/test_a.py::slower", "tests/theory/test_peak.py::shared")
    }


def test_the_nearest_and_quickest_tests_come_first_and_the_limit_counts_what_tests_share(mapped: Any) -> None:
    reach = Reach(mapped, [mutant(line=1), mutant("1", 20, at_import=True)], unsteady=set())
    quick, slow, shared = "tests/a/test_a.py::quick", "tests/a/test_a.py::slow", "tests/theory/test_peak.py::shared"
    assert reach.batches(mutant(), False, limit_s=70) == [[shared], [slow]]  # 43 s, of which two words make a quarter
    assert reach.batches(mutant(), False, limit_s=69) == [[shared]]
    assert reach.batches(mutant(), True, limit_s=1) == [["tests/a/test_a.py::slower"]]
    assert reach.batches(mutant("1", 20), False, limit_s=120) == [[quick], [shared, slow]]


def test_the_table_counts_equal_mutants_apart() -> None:
    sample = [mutant(str(i), i) for i in range(5)]
    killed = {"outcome": "killed", "folder": "tests/theory", "is_long": True}
    results = {"0": killed, "1": killed | {"outcome": "timeout", "is_long": False}}
    results |= {each: {"outcome": "survived", "ran": 2, "reached": 3} for each in ("2", "3")}
    lines = list(table(sample, results, {"2"}))
    assert lines[2] == "| harness/theory | 5 | 1 | 1 | 1 | 1 | 0 | 1 | 1 | 67 % | theory 2 |"
    assert lines[4:] == ["", "3 harness/theory/peak.py:3 call: f() → pass: survived, 2 of 3 tests"]
    assert shown(sample[3]) in lines[5]


def test_each_equal_mutant_has_a_reason() -> None:
    lines = [line for line in EQUAL.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    assert [line for line in lines if not re.fullmatch(r"[0-9a-f]{10} \S+:\d+ \w+: .+ → .+ because .+", line)] == []
