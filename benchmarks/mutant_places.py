"""The places of a module that a mutant can change, and a sample of them, for `mutants.py`.

A mutant changes one operator, constant, comparison, branch or call, and no other byte of the file. It is left out where
no Python runs the code, where the change could only raise TypeError, and where the code only forbids or helps.
"""

from __future__ import annotations

import ast
import math
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from hashlib import sha1
from itertools import accumulate, pairwise
from typing import NamedTuple

UNMUTATED = {"help", "metavar", "epilog", "description", "frozen", "slots", "kw_only", "strict"}  # keyword arguments
OPERATORS = {"+": "-", "-": "+", "*": "/", "/": "*", "//": "*", "%": "*", "**": "*", "&": "|", "|": "&", "^": "&"}
OPERATORS |= {"<<": ">>", ">>": "<<"}
OPERATORS |= {f"{sign}=": f"{other}=" for sign, other in OPERATORS.items()}
COMPARISONS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "is": "is not", "is not": "is"}
COMPARISONS |= {"in": "not in", "not in": "in"}
BRANCHES = {"and": "or", "or": "and"}
SIGN = re.compile(rb"is\s+not\b|not\s+in\b|[^\s()\\]+")


class Mutant(NamedTuple):
    """One change. column: in bytes, as Python's. lines: of its statement's head. at_import: it is in no function."""

    id: str
    room: str
    file: str
    line: int
    column: int
    kind: str
    before: str
    after: str
    lines: tuple[int, int]
    at_import: bool


def room_of(file: str) -> str:
    """A folder of the first level, as harness/theory."""
    return "/".join(file.split("/")[:-1][:2])


def changed(source: bytes, mutant: Mutant) -> bytes:
    """The file's bytes with the change, and no other."""
    begin = sum(map(len, source.splitlines(keepends=True)[: mutant.line - 1])) + mutant.column
    end = begin + len(mutant.before.encode())
    if source[begin:end] != mutant.before.encode():
        raise ValueError(f"{mutant.file}:{mutant.line}: there is {source[begin:end]!r}, not {mutant.before!r}")
    return source[:begin] + mutant.after.encode() + source[end:]


class Places:
    """All mutants of a module, in the order of its text."""

    def __init__(self, file: str, source: bytes) -> None:
        self.file, self.source, self.rows = file, source, source.splitlines(keepends=True)
        self.offsets = list(accumulate(map(len, self.rows), initial=0))
        self.lines, self.at_import, self.seen = (1, 1), True, Counter[str]()

    def all(self) -> list[Mutant]:
        return sorted(self._of(ast.parse(self.source)), key=lambda each: (each.line, each.column, each.after))

    def _of(self, node: ast.AST) -> Iterator[Mutant]:
        outer = self.lines, self.at_import
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            self.lines = (node.lineno, max(node.lineno, body[0].lineno - 1) if body else node.end_lineno or node.lineno)
        yield from self._at(node)
        for name, value in ast.iter_fields(node):
            is_called = name == "body" and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            self.at_import = outer[1] and not is_called
            for child in value if isinstance(value, list) else [value]:
                if name not in ("annotation", "returns") and isinstance(child, ast.AST) and not _is_skipped(child):
                    yield from self._of(child)
        self.lines, self.at_import = outer

    def _at(self, node: ast.AST) -> Iterator[Mutant]:
        match node:
            case ast.BinOp(left, operator, right) | ast.AugAssign(left, operator, right):
                is_type = isinstance(operator, ast.BitOr) and self.at_import
                if not is_type and not _is_literal(left) and not _is_literal(right):
                    yield from self._sign("operator", left, right, OPERATORS)
            case ast.UnaryOp(ast.Not() | ast.USub()) if found := re.match(r"not\s*|-", self._text(node)):
                yield self._mutant("operator", self._begin(node), found[0], "")
            case ast.Compare(left, _, others):
                for first, second in pairwise([left, *others]):
                    yield from self._sign("comparison", first, second, COMPARISONS)
            case ast.BoolOp(_, values):
                for first, second in pairwise(values):
                    yield from self._sign("branch", first, second, BRANCHES)
            case ast.If(test) | ast.While(test) | ast.IfExp(test):
                yield from self._negated(test)
            case ast.comprehension(ifs=tests):
                for test in tests:
                    yield from self._negated(test)
            case ast.Constant(bool() | int() | float() as value):
                other = (
                    not value if isinstance(value, bool) else value + 1 if isinstance(value, int) else 2 * value or 1.0
                )
                yield self._mutant("constant", self._begin(node), self._text(node), repr(other))
            case ast.Expr(ast.Call() as call):
                yield self._mutant("call", self._begin(call), self._text(call), "pass")

    def _negated(self, test: ast.expr) -> Iterator[Mutant]:
        """Where no other kind gives the same."""
        match test:
            case ast.Constant() | ast.UnaryOp(ast.Not()):
                return
            case ast.Compare(ops=[ast.Eq() | ast.NotEq() | ast.Is() | ast.IsNot() | ast.In() | ast.NotIn()]):
                return
        yield self._mutant("branch", self._begin(test), self._text(test), f"not ({self._text(test)})")

    def _sign(self, kind: str, left: ast.expr, right: ast.expr, others: dict[str, str]) -> Iterator[Mutant]:
        """Between two operands is the sign, with blanks, brackets and comments."""
        gap = self.source[self._end(left) : self._begin(right)]
        found = SIGN.search(re.sub(rb"#[^\n]*", lambda comment: b" " * len(comment[0]), gap))
        if found and (after := others.get(" ".join(found[0].decode().split()))):
            yield self._mutant(kind, self._end(left) + found.start(), found[0].decode(), after)

    def _mutant(self, kind: str, offset: int, before: str, after: str) -> Mutant:
        line = next(number for number, begin in enumerate(self.offsets) if begin > offset)
        column = offset - self.offsets[line - 1]
        key = (
            f"{self.file} {self.rows[line - 1].strip()!r} {column} {before} {after}"  # does not know the line's number
        )
        self.seen[key] += 1
        name = sha1(f"{key} {self.seen[key]}".encode()).hexdigest()[:10]
        return Mutant(
            name, room_of(self.file), self.file, line, column, kind, before, after, self.lines, self.at_import
        )

    def _begin(self, node: ast.AST) -> int:
        return self.offsets[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined,no-any-return]

    def _end(self, node: ast.AST) -> int:
        return self.offsets[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined,no-any-return]

    def _text(self, node: ast.AST) -> str:
        return self.source[self._begin(node) : self._end(node)].decode()


def _is_literal(node: ast.AST) -> bool:
    """Another sign beside a text or a list only raises TypeError."""
    lists = (ast.JoinedStr, ast.List, ast.Tuple, ast.Dict, ast.ListComp)
    return isinstance(node, lists) or (isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes)))


def _is_skipped(node: ast.AST) -> bool:
    """Code for other Pythons and for none, and f-strings, in which Python 3.11 gives wrong places."""
    match node:
        case ast.JoinedStr() | ast.Assign(targets=[ast.Name("__all__")]):
            return True
        case ast.If(test):
            names = {getattr(each, "attr", getattr(each, "id", "")) for each in ast.walk(test)}
            return bool(names & {"TYPE_CHECKING", "version_info", "platform"})
        case ast.keyword(arg=name):
            return name in UNMUTATED
    return False


def drawn(sources: dict[str, bytes], count: int, seed: int) -> list[Mutant]:
    """A room has as many as its share of statements, at least one; in a room each kind has the same chance."""
    statements, places = Counter[str](), defaultdict[str, list[Mutant]](list)
    for file, source in sorted(sources.items()):
        if found := Places(file, source).all():
            statements[room_of(file)] += sum(isinstance(node, ast.stmt) for node in ast.walk(ast.parse(source)))
            places[room_of(file)] += found
    exact = {room: count * number / statements.total() for room, number in statements.items()}
    shares = {room: max(1, math.floor(share)) for room, share in exact.items()}
    for room in sorted(exact, key=lambda each: shares[each] - exact[each])[: max(0, count - sum(shares.values()))]:
        shares[room] += 1
    return [mutant for room in sorted(places) for mutant in _of_room(places[room], shares[room], f"{seed} {room}")]


def _of_room(places: list[Mutant], count: int, seed: str) -> Iterator[Mutant]:
    chance, kinds = random.Random(seed), defaultdict[str, list[Mutant]](list)
    for place in places:
        kinds[place.kind].append(place)
    for mutants in kinds.values():
        chance.shuffle(mutants)
    seen = set[tuple[str, int]]()  # one in a line
    while kinds and len(seen) < count:
        kind = chance.choice(sorted(kinds))
        mutant = kinds[kind].pop()
        if not kinds[kind]:
            del kinds[kind]
        if (mutant.file, mutant.line) not in seen:
            seen.add((mutant.file, mutant.line))
            yield mutant
