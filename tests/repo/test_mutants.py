"""The sample of benchmarks/mutants.py: a mutant is one change that Python accepts, the same ones for the same seed."""

from __future__ import annotations

from pathlib import Path

import pytest
from mutant_places import Places, changed, drawn

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
