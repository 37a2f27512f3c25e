"""Refuses names and phrases that have a plainer one in the glossary, docs/development/words.md: `language.py [FILE…]`.

Names are those of classes, parameters, fields and modules in the product; phrases are read in Markdown, YAML, shell,
templates and the texts of Python. Without files: all that git tracks and a user can read. Prints `file:line: text →
what to write`; exit status 1 if there is any.

`language.py --types` counts, for each parameter's name in the product, the types that it has; exit status 1 if one has
more than three. Generic names, which the glossary lists, may have any.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from textwrap import shorten
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
GLOSSARY = "docs/development/words.md"
READ = ("*.md", "*.py", "*.sh", "*.j2", "configs/*.yaml", "slurm.sh", "scripts/*")
NOT_READ = re.compile(rf"CHANGELOG\.md|{GLOSSARY}|scripts/language\.py")  # the changelog tells of what was
PRODUCT = ("harness/", "exercises/")
MOST_TYPES = 3
SEVERAL = {
    "list",
    "set",
    "frozenset",
    "deque",
    "Sequence",
    "Collection",
    "Iterable",
    "Iterator",
    "Set",
    "Container",
    "Counter",
}
MAPPINGS = {"dict", "Mapping", "MutableMapping", "defaultdict"}
GENERAL = {
    "SummaryPart",
    "NamedTuple",
    "Struct",
    "BaseModel",
    "Enum",
    "IntEnum",
    "Protocol",
    "str",
    "int",
    "Exception",
    "Generic",
}
_ARRAYS = ("NDArray", "I64", "I32", "F64", "U8", "Ints", "Bytes", "Mask", "RowIndex", "AnyColumn", "ndarray", "slice")
NUMBERS = {
    **dict.fromkeys(("int", "float", *_ARRAYS), "number"),
    **dict.fromkeys(("bytes", "Word", "Raw"), "str"),
    "None": "",
    "Literal": "str",
}
TITLE = re.compile(r"\b(title|caption)=")
HEADING = re.compile(r"^#+ .*\?\s*$", re.MULTILINE)
CODE = re.compile(r"`([^`]+)`")
_INVERTED = r"(?:(?:Is|Are|Was|Were|Had|Does|Should)\s(?:it|that|they|the|these|this|there)|Do they|Differs)\b"
INVERTED = re.compile(rf"{_INVERTED}[^?]*?(?:[.!]\s|\Z)".replace(" ", r"\s+"))


class Refused(NamedTuple):
    """One place that is refused."""

    place: str
    text: str
    instead: str


class Glossary(NamedTuple):
    """The page of words, read. names: refused name -> noun. nouns: noun -> its names in the code. generic: names of
    parameters that may have any number of types."""

    names: dict[str, str]
    phrases: list[tuple[re.Pattern[str], str]]
    nouns: dict[str, list[str]]
    generic: set[str]


class TypesOfName(NamedTuple):
    """A parameter's name, the types that it has in the product, and a place of each."""

    name: str
    places: dict[str, str]


def read_glossary(page: str) -> Glossary:
    """The tables of the page. Raises ValueError: a table is missing, or a name is refused for two nouns."""
    nouns, generic, phrases = (_rows(page, heading) for heading in ("## Nouns", "## Generic names", "## Phrases"))
    names: dict[str, str] = {}
    for noun, _, _, refused in nouns:
        for name in CODE.findall(refused):
            if name in names:
                raise ValueError(f"{GLOSSARY}: `{name}` is refused for {names[name]} and for {noun}")
            names[name] = noun
    patterns = [(_pattern(phrase), instead) for cell, instead in phrases for phrase in CODE.findall(cell)]
    in_the_code = {noun: CODE.findall(code) for noun, _, code, _ in nouns}
    return Glossary(names, patterns, in_the_code, {name for cell, _ in generic for name in CODE.findall(cell)})


def _rows(page: str, heading: str) -> list[list[str]]:
    """The cells of the table below a heading."""
    section = page.partition(f"\n{heading}\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    if len(rows) < 3:
        raise ValueError(f"{GLOSSARY}: there is no table below {heading!r}")
    return [[cell.strip() for cell in row] for row in rows[2:]]


def _pattern(phrase: str) -> re.Pattern[str]:
    """`…` stands for up to five words of the sentence, a space for any white space."""
    words = (re.escape(word) for word in phrase.split(" "))
    return re.compile(rf"\b{' '.join(words)}\b".replace(r" … ", r"(?: [^.\s]+){0,5}? ").replace(" ", r"\s+"))


@cache
def glossary() -> Glossary:
    """The glossary of this checkout."""
    return read_glossary((ROOT / GLOSSARY).read_text(encoding="utf-8"))


def refused_in(name: str, text: str) -> Iterator[Refused]:
    """What is refused in one file, by its name from the checkout's root."""
    if name.endswith(".py"):
        if name.startswith("tests/") and not TITLE.search(text):  # of tests nothing else is read
            return
        tree = ast.parse(text)
        if name.startswith(PRODUCT):
            yield from _names(name, tree)
        yield from _titles(name, tree)
        pieces = [] if name.startswith("tests/") else list(_literals(tree))
    else:
        pieces = [(1, text)]
    if name.endswith(".md"):
        yield from (Refused(_place(name, 1, text, m), m[0].strip(), "a statement") for m in HEADING.finditer(text))
    patterns = [(INVERTED, "begin the condition with `If`, or write a question"), *glossary().phrases]
    for line, piece in pieces:
        for pattern, instead in patterns:
            for match in pattern.finditer(piece):
                yield Refused(_place(name, line, piece, match), shorten(match[0], 80), instead)


def _place(name: str, line: int, text: str, match: re.Match[str]) -> str:
    return f"{name}:{line + text.count(chr(10), 0, match.start())}"


def _literals(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Each text of a module with its line; the parts of an f-string as one, with `{}` for what is filled in."""
    inside: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            inside |= {id(part) for part in ast.walk(node)} - {id(node)}
            yield (node.lineno, "".join(str(p.value) if isinstance(p, ast.Constant) else "{}" for p in node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield node.lineno, node.value


def _titles(name: str, tree: ast.AST) -> Iterator[Refused]:
    """Titles and captions of pages and tables that are questions."""
    for node in ast.walk(tree):
        match node:
            case ast.keyword(arg="title" | "caption", value=ast.Constant(value=str(title))) if title.endswith("?"):
                yield Refused(f"{name}:{node.value.lineno}", title, "a statement")


def _names(name: str, tree: ast.AST) -> Iterator[Refused]:
    """The module, classes, parameters and fields whose name the glossary has for no noun."""
    declared = [(1, Path(name).stem), *((line, each) for node in ast.walk(tree) for line, each in _declared(node))]
    for line, each in declared:
        if noun := glossary().names.get(snake_case(each)):
            yield Refused(f"{name}:{line}", each, f"{noun} ({GLOSSARY})")


def _declared(node: ast.AST) -> Iterator[tuple[int, str]]:
    """The line and the name of each class, parameter and field that this node declares."""
    match node:
        case ast.ClassDef():
            yield node.lineno, node.name
            for statement in node.body:
                match statement:
                    case ast.AnnAssign(target=ast.Name() as field):
                        yield field.lineno, field.id
                    case ast.Assign():
                        yield from ((each.lineno, each.id) for each in statement.targets if isinstance(each, ast.Name))
        case ast.arg():
            yield node.lineno, node.arg


def snake_case(name: str) -> str:
    """A name as the glossary has it: without leading underscores, the words of a class apart.

    >>> snake_case("_GradAcc")
    'grad_acc'
    """
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.strip("_")).lower()


class Kinds:
    """What the parameters of the product are, as their annotations say it. `X | None`, several X, and a table of X are
    X; integers, floats and arrays of them are numbers; a class counts as the name of its parameter if the name is its
    last word, or that of a class from which it derives (`request: CheckRequest`)."""

    def __init__(self, texts: Iterable[tuple[str, str]]) -> None:
        self._trees = [(name, ast.parse(text)) for name, text in texts]
        self._bases: defaultdict[str, set[str]] = defaultdict(set)
        self._variables: dict[str, str] = {}  # TypeVar -> its bound; empty: any
        self._flags: set[str] = set()  # aliases of typer's annotations
        for _, tree in self._trees:
            for node in ast.walk(tree):
                match node:
                    case ast.ClassDef():
                        self._bases[node.name] |= {_last(base) for base in node.bases}
                    case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=ast.Name("TypeVar")) as call):
                        bounds = [_last(each.value) for each in call.keywords if each.arg == "bound"]
                        self._variables[name] = bounds[0].strip("'") if bounds else ""
                    case ast.Assign(targets=[ast.Name(id=name)], value=ast.Subscript(value=ast.Name("Annotated"))):
                        self._flags.add(name)

    def of_names(self) -> list[TypesOfName]:
        """The parameters of all functions, those with most kinds first."""
        places: defaultdict[str, dict[str, str]] = defaultdict(dict)
        for name, tree in self._trees:
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    for parameter in self._parameters(node):
                        if kind := self._kind(parameter):
                            places[parameter.arg].setdefault(kind, f"{name}:{parameter.lineno}")
        return sorted((TypesOfName(*each) for each in places.items()), key=lambda each: (-len(each.places), each.name))

    def _parameters(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.arg]:
        """Without those of a command, whose names are its flags."""
        parameters = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
        words = {
            word.id
            for each in parameters
            if each.annotation
            for word in ast.walk(each.annotation)
            if isinstance(word, ast.Name)
        }
        return [] if words & {"Annotated", *self._flags} else parameters

    def _kind(self, parameter: ast.arg) -> str:
        """Empty: anything."""
        names = {NUMBERS.get(name, name) for name in self._classes(parameter.annotation)} - {
            "Any",
            "object",
            "Hashable",
            "",
        }
        special = names - {"str", "Path", "number"}
        names = special or ({"str"} if "Path" in names and "str" in names else names)
        if names and all(self._is_named(name, parameter.arg) for name in names):
            return f"its {parameter.arg}"
        return " | ".join(sorted(self._root(name) for name in names))

    def _classes(self, annotation: ast.expr | None) -> set[str]:
        """The names of the classes in an annotation, without the containers around them."""
        match annotation:
            case ast.Constant(value=str(text)):  # of a class that is declared below
                return self._classes(ast.parse(text, mode="eval").body)
            case ast.Name(id=name) | ast.Attribute(attr=name):
                return {self._variables.get(name, name)}
            case ast.BinOp(left=left, right=right):
                return self._classes(left) | self._classes(right)
            case ast.Subscript(value=kind, slice=ast.Tuple(elts=[one, *_, last])):
                same = _last(kind) == "tuple" and ast.unparse(last) == "..."
                inner = last if _last(kind) in MAPPINGS else one if same or _last(kind) in SEVERAL else kind
            case ast.Subscript(value=kind, slice=one):
                inner = one if _last(kind) in SEVERAL else kind
            case _:
                return set()
        return self._classes(inner)

    def _above(self, name: str) -> set[str]:
        """A class and all from which it derives, but not what every table or enumeration derives from."""
        bases = self._bases.get(name, set()) - GENERAL
        return {name}.union(*(self._above(base) for base in bases))

    def _root(self, name: str) -> str:
        return "Experiment" if "Experiment" in self._above(name) else name

    def _is_named(self, name: str, parameter: str) -> bool:
        words = {
            parameter,
            parameter.removesuffix("s"),
            f"{parameter.removesuffix('ies')}y",
            parameter.removesuffix("es"),
        }
        above = {snake_case(each) for each in self._above(name)}
        return any(
            each == word or each.endswith(f"_{word}") or word.endswith(f"_{each}") for each in above for word in words
        )


def _last(expression: ast.expr) -> str:
    """The name of a class without its module and its arguments."""
    return ast.unparse(expression).partition("[")[0].rpartition(".")[2]


def tracked(*patterns: str) -> list[str]:
    """The files of these patterns that a user can read, as git knows them."""
    listed = ["git", "ls-files", "-z", *patterns]
    done = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True)
    there = (name for name in done.stdout.split("\0") if name and (ROOT / name).is_file())
    return [name for name in there if not NOT_READ.match(name)]


def check_types(show: Callable[[str], object] = print) -> int:
    """Show the names that have too many types, with one place of each type."""
    files = tracked(*(f"{folder}*.py" for folder in PRODUCT))
    kinds = Kinds((name, (ROOT / name).read_text(encoding="utf-8")) for name in files)
    many = [each for each in kinds.of_names() if len(each.places) > MOST_TYPES and each.name not in glossary().generic]
    for each in many:
        show(f"{each.name}: {len(each.places)} types: " + ", ".join(f"{t} ({at})" for t, at in each.places.items()))
    return int(bool(many))


def main(names: list[str]) -> int:
    """Print what is refused in the files, or in all of them."""
    if names == ["--types"]:
        return check_types()
    texts = ((name, (ROOT / name).read_text(encoding="utf-8")) for name in names or tracked(*READ))
    refused = [each for name, text in texts for each in refused_in(name, text)]
    for each in refused:
        print(f"{each.place}: {each.text} → {each.instead}")
    return int(bool(refused))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
