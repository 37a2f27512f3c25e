"""Which changes of the product the tests notice: a sample of mutants, each with one operator, constant, comparison,
branch or call changed, run with the tests that reach its line.

    .venv/bin/python benchmarks/mutants.py map FOLDER [tests/theory …]   # which test executes which line; hours for all
    .venv/bin/python benchmarks/mutants.py sample FOLDER                 # 300 mutants into FOLDER/sample.json
    .venv/bin/python benchmarks/mutants.py run FOLDER                    # a line in FOLDER/results.jsonl for each
    .venv/bin/python benchmarks/mutants.py table FOLDER                  # by room: killed, survived, not reached
    .venv/bin/python benchmarks/mutants.py renew FOLDER                  # take the tests of the checkout's HEAD

An interrupted command goes on where it stopped. Everything runs in boxes (mutant_box.py) with a clone of HEAD.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from mutant_box import HIDDEN, Boxes, Order, Told
from mutant_places import Mutant, changed, drawn, room_of

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("harness", "exercises")
EQUAL = Path(__file__).with_name("mutants_equal.txt")
FIRST_S, MAP_LIMIT_S = 30, 3600


class Folder:
    """FOLDER: the clone of the checkout, the map, the sample and the results."""

    def __init__(self, path: Path) -> None:
        self.path, self.clone, self.map = path, path / "clone", path / "map"
        stamp = Path(sys.prefix) / "harness-stamp"  # its second line: the checkout that .venv was made for
        place = Path(stamp.read_text(encoding="utf-8").splitlines()[1]) if stamp.is_file() else ROOT
        for hidden in (*HIDDEN, place, ROOT):
            if path.is_relative_to(hidden):
                raise SystemExit(
                    f"{path} is in {hidden}, of which a box has its own: take a folder elsewhere, as in /tmp"
                )
        self.boxes = Boxes(path, self.clone, place)
        if not self.clone.is_dir():
            self.map.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(path / "new", ignore_errors=True)
            subprocess.run(["git", "clone", "--quiet", ROOT, path / "new"], check=True)
            self._prepare(path / "new")
            (path / "new").rename(self.clone)

    def is_old(self) -> bool:
        return self.git("rev-parse", "HEAD") != _git(ROOT, "rev-parse", "HEAD")

    def _prepare(self, clone: Path) -> None:
        (clone / ".venv").mkdir(exist_ok=True)  # a place for the mount
        subprocess.run([sys.executable, "-m", "compileall", "-q", *PRODUCT, "tests"], cwd=clone, check=False)

    def git(self, *words: str) -> str:
        return _git(self.clone, *words)

    def renew(self) -> None:
        """Take the checkout's HEAD; changed files of tests are mapped again."""
        self.git("fetch", "--quiet", "origin", "HEAD")
        if self.git("diff", "--name-only", "HEAD", "FETCH_HEAD", "--", *PRODUCT):
            raise SystemExit("harness/ or exercises/ has changed, so its lines are others: take a new FOLDER")
        self.git("checkout", "--quiet", "--detach", "FETCH_HEAD")
        self._prepare(self.clone)

    def sources(self) -> dict[str, bytes]:
        names = self.git("ls-files", "--", *(f"{name}/*.py" for name in PRODUCT)).splitlines()
        return {name: (self.clone / name).read_bytes() for name in names}

    def sample(self) -> list[Mutant]:
        if not (self.path / "sample.json").is_file():
            raise SystemExit("there is no sample: mutants.py sample FOLDER")
        return [Mutant(**each) for each in json.loads((self.path / "sample.json").read_text())["mutants"]]

    def results(self) -> dict[str, dict[str, Any]]:
        file = self.path / "results.jsonl"
        lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
        return {each["id"]: each for each in map(json.loads, lines)}

    def parts(self) -> dict[str, dict[str, Any]]:
        """What is known of each mapped file of tests."""
        return {told["file"]: told for told in (json.loads(each.read_text()) for each in self.map.glob("*.json"))}

    def measured(self, file: str) -> Path:
        return self.map / f"{file.replace('/', '__')}.coverage"


def _git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


def map_tests(folder: Folder, asked: list[str], again: list[str], jobs: int, *, long: bool) -> None:
    """A pytest for each file of tests, so that its imports are seen too. A file that is mapped and the same is left,
    if no test of it ended as one of `again`. long: also the tests with that mark."""
    if importlib.util.find_spec("coverage") is None:
        raise SystemExit(f"coverage.py is missing: {sys.executable} -m pip install coverage")
    known = folder.parts()
    files = folder.git("ls-files", "--", "tests/**/test_*.py").splitlines()
    files = [file for file in files if not asked or any(Path(file).is_relative_to(each) for each in asked)]
    versions = {file: folder.git("rev-parse", f"HEAD:{file}") for file in files}
    todo = [file for file in files if not _is_mapped(known.get(file), versions[file], again, long=long)]
    print(f"{len(files)} files of tests, {len(files) - len(todo)} of them mapped", flush=True)

    def one(number: int, file: str) -> str:
        told = folder.boxes.run(number, Order([file], ("--all",) * long, is_mapped=True), MAP_LIMIT_S, {})
        if not told.tests and told.exit != pytest.ExitCode.NO_TESTS_COLLECTED:
            return f"{file}: not mapped; pytest ended with {told.exit} after\n{told.said}"
        _merge(folder, folder.boxes.inside(number) / "data", folder.measured(file))
        target = folder.measured(file).with_suffix(".json")
        part = told._asdict() | {"file": file, "version": versions[file], "has_long": long}
        target.with_suffix(".new").write_text(json.dumps(part), encoding="utf-8")
        target.with_suffix(".new").rename(target)
        ends = Counter(each["outcome"] for each in told.tests.values())
        return f"{file}: {', '.join(f'{count} {end}' for end, count in ends.items()) or 'no test'}; exit {told.exit}"

    folder.boxes.work(todo, jobs, one)


def _is_mapped(part: dict[str, Any] | None, version: str, again: list[str], *, long: bool) -> bool:
    if part is None or part["version"] != version or (long and not part["has_long"]):
        return False
    return not any(told["outcome"] in again for told in part["tests"].values())


def _merge(folder: Folder, data: Path, target: Path) -> None:
    """The measurements of all processes as one, with the product's paths from its root."""
    coverage = importlib.import_module("coverage")

    def product(name: str) -> str:
        """Also of the copies that tests make of the product, and of the wheel."""
        found = (name[name.rfind(f"/{each}/") + 1 :] for each in PRODUCT if f"/{each}/" in name)
        return next((each for each in found if (folder.clone / each).is_file()), name)

    new = target.with_suffix(".merged")
    new.unlink(missing_ok=True)
    merged = coverage.CoverageData(str(new))
    for file in data.iterdir():
        one = coverage.CoverageData(str(file))
        try:
            one.read()
            merged.update(one, map_path=product)
        except coverage.CoverageException:  # its process was killed while it wrote
            continue
    merged.close()
    if new.is_file():
        new.rename(target)


class Reach:
    """Which tests reach a mutant, and what they cost. A test that is skipped, compares times or fails anyway judges
    none."""

    def __init__(self, folder: Folder, sample: list[Mutant], unsteady: set[str]) -> None:
        self.parts, self.tests = folder.parts(), defaultdict[str, set[str]](set)
        of_file = defaultdict[str, list[Mutant]](list)
        for mutant in sample:
            of_file[mutant.file].append(mutant)
        for file, part in self.parts.items():
            users = defaultdict[str, set[str]](set)  # of what a context executed
            for test, told in part["tests"].items():
                if told["outcome"] != "skipped" and test not in unsteady:
                    for context in (test, "", *(f"fixture {each}" for each in told["fixtures"])):
                        users[context].add(test)
            at, anywhere = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
            for name, context, lines in _executed(folder.measured(file), set(of_file)):
                anywhere[name] |= {context} - {""}
                for mutant in of_file[name]:
                    if not lines.isdisjoint(range(mutant.lines[0], mutant.lines[1] + 1)):
                        at[mutant.id].add(context)
            for mutant in sample:
                contexts = at[mutant.id]
                if contexts and mutant.at_import:  # another test may have imported the module
                    contexts = anywhere[mutant.file] or contexts
                self.tests[mutant.id] |= {test for each in contexts for test in users[each]}

    def told(self, test: str) -> dict[str, Any]:
        """What the map knows of it; a mutant may make a test that no map knows."""
        tests: dict[str, dict[str, Any]] = self.parts.get(_file(test), {"tests": {}})["tests"]
        return tests.get(test, {"fixtures": [], "s": 0.0, "long": False})

    def costs_s(self, test: str) -> dict[tuple[str, str], float]:
        """Of the test, and of what it shares with others of its file: the collection, fixtures."""
        file, told = _file(test), self.told(test)
        fixtures = self.parts[file]["fixtures"]
        shared = {(file, name): fixtures[name] for name in told["fixtures"] if name in fixtures}
        return {("", test): told.get("s", 0.0), (file, ""): self.parts[file]["collect_s"]} | shared

    def batches(self, mutant: Mutant, is_long: bool, limit_s: float) -> list[list[str]]:
        """The quickest tests, of FIRST_S in all, then the next ones up to the limit. Each word that the mutant's path
        and the test's file share makes a test count as half as long."""
        words = _words(mutant.file)
        costs = {test: self.costs_s(test) for test in self.tests[mutant.id] if self.told(test)["long"] == is_long}
        lengths = {test: sum(s.values()) * 0.5 ** len(words & _words(_file(test))) for test, s in costs.items()}
        batches, shared = [list[str](), list[str]()], set[tuple[str, str]]()
        took_s, most_s = 0.0, min(FIRST_S, limit_s)
        for test in sorted(costs, key=lambda each: (lengths[each], each)):
            more_s = sum(s for name, s in costs[test].items() if name not in shared)
            if batches[0] and not batches[1] and took_s + more_s > most_s:
                shared, most_s, more_s = set(), limit_s, sum(costs[test].values())
            if not batches[0] or took_s + more_s <= most_s:
                batches[most_s > FIRST_S].append(test)
                took_s += more_s
                shared |= set(costs[test])
        return [batch for batch in batches if batch]


def _executed(measured: Path, names: set[str]) -> Iterator[tuple[str, str, set[int]]]:
    """File, context, and the lines that it executed: coverage.py keeps a bit for each, which its pages explain."""
    if not measured.is_file():
        return
    with closing(sqlite3.connect(measured)) as data:
        for name, context, bits in data.execute(
            "SELECT path, context, numbits FROM line_bits JOIN file ON file.id = file_id "
            "JOIN context ON context.id = context_id"
        ):
            if name in names:
                whole = int.from_bytes(bits, "little")
                yield name, context, {line for line in range(8 * len(bits)) if whole >> line & 1}


def _file(test: str) -> str:
    return test.partition("::")[0]


def _words(file: str) -> set[str]:
    return set(re.findall(r"[a-z0-9]+", file)) - {"harness", "test", "tests", "init", "py"}


class Judge:
    """Runs the tests that reach a mutant until one of them fails twice."""

    def __init__(self, folder: Folder, reach: Reach, limit_s: float, only: str | None) -> None:
        self.folder, self.reach, self.limit_s, self.lock = folder, reach, limit_s, threading.Lock()
        self.lengths = {"default": (False,), "long": (True,), None: (False, True)}[only]

    def __call__(self, number: int, mutant: Mutant) -> str:
        begin = time.monotonic()
        reached = [test for test in self.reach.tests[mutant.id] if self.reach.told(test)["long"] in self.lengths]
        result: dict[str, Any] = {"id": mutant.id, "outcome": "survived" if reached else "not reached"}
        result |= {"reached": len(reached), "ran": 0, "unsure": []}
        for is_long in self.lengths:
            for batch in self.reach.batches(mutant, is_long, self.limit_s):
                if result["outcome"] == "survived":
                    self._judge(number, mutant, batch, result, is_long=is_long)
        result["seconds"] = round(time.monotonic() - begin, 1)
        with self.lock, (self.folder.path / "results.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(result) + "\n")
        return f"{shown(mutant)}: {result['outcome']} {result.get('test', '')}"

    def _judge(self, number: int, mutant: Mutant, batch: list[str], result: dict[str, Any], *, is_long: bool) -> None:
        while batch:
            told = self._told(number, mutant, batch, is_long=is_long)
            result["ran"] += len(told.tests)
            if told.exit in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
                return
            test = next(iter(told.failed), told.now)
            if not test.startswith("tests/"):  # what tests share, or the start
                test = _file(batch[0])
            alone = partial(self._told, number, mutant, [test], is_long=is_long)
            if told.exit is None or "::" not in test or alone().exit != pytest.ExitCode.OK:
                folder = "/".join(test.split("/")[:2])
                result["outcome"] = "timeout" if told.exit is None else "killed"
                result |= {"test": test, "folder": folder, "is_long": is_long}
                return
            result["unsure"].append(test)  # alone it passes
            batch = [each for each in batch if each != test and each not in told.tests]

    def _told(self, number: int, mutant: Mutant, tests: list[str], *, is_long: bool) -> Told:
        files = list(dict.fromkeys(map(_file, tests)))
        known = tuple(test for file in files for test in self.reach.parts[file]["tests"])
        usual_s = {name: s for test in tests for name, s in self.reach.costs_s(test).items()}
        text = changed((self.folder.clone / mutant.file).read_bytes(), mutant)
        order = Order(files, ("-x", *("--all",) * is_long), tests, known)  # no map without them knows the long ones
        return self.folder.boxes.run(number, order, self.limit_s + sum(usual_s.values()), {mutant.file: text})


def unsteady(folder: Folder, jobs: int) -> set[str]:
    """Tests that failed as they were mapped, and fail without a mutant and without coverage too."""
    file = folder.path / "unsteady.json"
    told: dict[str, bool] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    failed = defaultdict[str, list[str]](list)
    for part in folder.parts().values():
        for test, each in part["tests"].items():
            if each["outcome"] == "failed" and test not in told:
                failed[part["file"]].append(test)

    def one(number: int, path: str) -> str:
        ends = folder.boxes.run(number, Order([path], ("--all",), failed[path]), MAP_LIMIT_S, {}).tests
        fails = {test: ends.get(test, {}).get("outcome") != "passed" for test in failed[path]}
        told.update(fails)
        file.write_text(json.dumps(told, indent=1), encoding="utf-8")
        return f"{path}: {len(fails)} tests failed under coverage.py, {sum(fails.values())} fail without it"

    folder.boxes.work(list(failed), jobs, one)
    return {test for test, fails in told.items() if fails}


def shown(mutant: Mutant) -> str:
    """In one line, as in mutants_equal.txt."""
    before, after = (re.sub(r"\s+", " ", text) for text in (mutant.before, mutant.after))
    return f"{mutant.id} {mutant.file}:{mutant.line} {mutant.kind}: {before} → {after or 'nothing'}"


def table(sample: list[Mutant], results: dict[str, dict[str, Any]], equal: set[str]) -> Iterator[str]:
    """By room; then each mutant that no test killed."""
    rooms, folders = defaultdict[str, Counter[str]](Counter), defaultdict[str, Counter[str]](Counter)
    left = []
    for mutant in sample:
        result = results.get(mutant.id, {"outcome": "not run"})
        end = "equal" if mutant.id in equal else result["outcome"]
        for room in (mutant.room, "all"):
            rooms[room].update((end, "mutants"))
            if end in ("killed", "timeout"):
                rooms[room]["by long tests"] += result["is_long"]
                folders[room][result["folder"].removeprefix("tests/")] += 1
        if end in ("survived", "not reached"):
            left.append(f"{shown(mutant)}: {end}, {result['ran']} of {result['reached']} tests")
    ends = ("mutants", "killed", "timeout", "by long tests", "survived", "not reached", "equal", "not run")
    yield f"| room | {' | '.join(ends)} | killed, of those not equal | by the tests of |"
    yield "|---" * (len(ends) + 3) + "|"
    for room in [*sorted(set(rooms) - {"all"}), "all"]:
        counts = rooms[room]
        judged = counts["mutants"] - counts["equal"] - counts["not run"]
        share = f"{100 * (counts['killed'] + counts['timeout']) / judged:.0f} %" if judged else ""
        by = ", ".join(f"{name} {count}" for name, count in folders[room].most_common())
        yield f"| {room} | {' | '.join(str(counts[end]) for end in ends)} | {share} | {by} |"
    yield from ("", *left)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["map", "sample", "run", "table", "renew"])
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("tests", nargs="*", metavar="TESTS", help="map: files or folders of tests [all]")
    parser.add_argument("--jobs", type=int, default=2, help="map, run: boxes at a time [2]")
    parser.add_argument("--count", type=int, default=300, help="sample: how many mutants [300]")
    parser.add_argument("--seed", type=int, default=1, help="sample [1]")
    parser.add_argument("--room", action="append", help="sample: only this room, as harness/theory; several: repeat it")
    parser.add_argument("--only", choices=["long", "default"], help="tests with or without the mark `long` [both]")
    parser.add_argument("--limit-s", type=float, default=120, help="run: seconds of tests for a mutant [120]")
    parser.add_argument(
        "--again", action="append", default=[], metavar="OUTCOME", help="run: also what survived, …; map: what failed"
    )
    asked = parser.parse_args()
    folder = Folder(asked.folder.resolve())
    if folder.is_old() and asked.command != "renew":
        print("FOLDER has another commit than the checkout; mutants.py renew takes that", file=sys.stderr)
    if asked.command == "map":
        map_tests(folder, asked.tests, asked.again, asked.jobs, long=asked.only != "default")
    elif asked.command == "sample":
        rooms = {file: text for file, text in folder.sources().items() if not asked.room or room_of(file) in asked.room}
        mutants = [each._asdict() for each in drawn(rooms, asked.count, asked.seed)]
        content = {"seed": asked.seed, "commit": folder.git("rev-parse", "HEAD"), "mutants": mutants}
        (folder.path / "sample.json").write_text(json.dumps(content, indent=1), encoding="utf-8")
        print(f"{len(mutants)} mutants of {len({each['room'] for each in mutants})} rooms")
    elif asked.command == "run":
        results = folder.results()
        todo = [
            each for each in folder.sample() if results.get(each.id, {"outcome": ""})["outcome"] in ("", *asked.again)
        ]
        reach = Reach(folder, todo, unsteady(folder, asked.jobs))
        folder.boxes.work(todo, asked.jobs, Judge(folder, reach, asked.limit_s, asked.only))
    elif asked.command == "renew":
        folder.renew()
    else:
        lines = EQUAL.read_text(encoding="utf-8").splitlines()
        equal = {line.split()[0] for line in lines if line and not line.startswith("#")}
        print("\n".join(table(folder.sample(), folder.results(), equal)))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
