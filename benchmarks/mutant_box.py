"""Boxes in which `mutants.py` runs tests: namespaces of mounts and processes of their own, in which a clone lies in
place of the checkout, no change of the disk lasts, and no process outlives its pytest. A box needs root on Linux.

As a program it is what runs inside, copied there: it knows nothing of the modules beside it.
"""

from __future__ import annotations

import fcntl
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

import pytest

INSIDE = Path("/tmp/mutants")  # of a box, whose /tmp is its own
HIDDEN = (Path.home(), Path("/var"), Path("/run"))  # a box sees them with changes of its own

# Mounts the clone over the place that .venv was made for, with a /tmp of its own; what is written elsewhere is dropped.
BOX = """set -e
box=$1 clone=$2 place=$3 venv=$4
layer() {
  mkdir -p "$box/$1/upper" "$box/$1/work" "$box/$1/merged"
  mount -t overlay overlay -o "lowerdir=$2,upperdir=$box/$1/upper,workdir=$box/$1/work" "$box/$1/merged"
}
layer home "$HOME"
layer var /var
layer run /run
layer checkout "$clone"
layer venv "$venv"
mount --bind "$box/tmp" "$box/tmp"
mount -o remount,bind,ro /
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
cd "$box" # one mount may hide the box's path
mount -c --bind home/merged "$HOME"
mount -c --bind var/merged /var
mount -c --bind run/merged /run
mount -c --bind checkout/merged "$place"
mount -c --bind venv/merged "$venv"
mount -c --bind tmp /tmp
cd "$place"
ulimit -d 8000000 # KiB of memory for each process
"$venv/bin/python" /tmp/mutants/mutant_box.py
exit $?
"""
# What each Python of a box runs at its start while the tests are mapped. A child of fork has the test of its own time.
HOOK = """def started():
    import os, coverage
    def test():
        with open("/tmp/mutants/now", encoding="utf-8") as file:
            return file.read()
    def saving(real):
        def saved(*words):
            coverage.Coverage.current() and coverage.Coverage.current().save()
            real(*words)
        return saved
    def named():
        coverage.Coverage.current() and coverage.Coverage.current().switch_context(test())
    os.environ["COVERAGE_PROCESS_START"] = "/tmp/mutants/coveragerc"
    coverage.process_startup()
    del os.environ["COVERAGE_PROCESS_START"]
    named()
    os.register_at_fork(after_in_child=named)
    os.execv, os.execve = saving(os.execv), saving(os.execve)
started()
"""
PTH = 'import os; os.path.exists("/tmp/mutants/hook.py") and exec(open("/tmp/mutants/hook.py").read())\n'
COVERAGERC = """[run]
data_file = /tmp/mutants/data/c
parallel = true
sigterm = true
patch = _exit, fork
include = */harness/*, */exercises/*
disable_warnings = no-data-collected, module-not-imported, module-not-measured, couldnt-parse, trace-changed
"""


class Order(NamedTuple):
    """What a pytest is to do. wanted: the only tests, and such as are not `known` because a mutant gave them other
    parameters; None: all tests. is_mapped: coverage.py measures which test executes which line."""

    files: list[str]
    words: tuple[str, ...] = ()
    wanted: list[str] | None = None
    known: tuple[str, ...] = ()
    is_mapped: bool = False


class Told(NamedTuple):
    """What a pytest told. exit: None where it was stopped at the limit. now: the test at work when it ended. said: the
    end of its output. tests: by name outcome, s, fixtures, marks; none where pytest itself was ended. fixtures: seconds
    of those that tests share."""

    exit: int | None
    now: str
    said: str
    tests: dict[str, dict[str, Any]]
    fixtures: dict[str, float]
    failed: list[str]
    collect_s: float


class Boxes:
    """Boxes 0, 1 … in `folder`, in which `clone` lies at `place`."""

    def __init__(self, folder: Path, clone: Path, place: Path) -> None:
        self.folder, self.clone, self.place, self.venv = folder, clone, place, Path(sys.prefix).resolve()
        self.live, self.is_stopping = set[subprocess.Popen[bytes]](), threading.Event()

    def inside(self, number: int) -> Path:
        return self.folder / f"box-{number}" / "tmp" / INSIDE.name

    def run(self, number: int, order: Order, limit_s: float, files: dict[str, bytes]) -> Told:
        """One pytest in a fresh box, where these files have these bytes."""
        box, inside = self.folder / f"box-{number}", self.inside(number)
        shutil.rmtree(box, ignore_errors=True)
        (inside / "data").mkdir(parents=True)
        (box / "tmp").chmod(0o1777)
        shutil.copy(__file__, inside)
        (inside / "order.json").write_text(json.dumps(order._asdict()), encoding="utf-8")
        (inside / "now").touch()
        if order.is_mapped:
            (inside / "hook.py").write_text(HOOK, encoding="utf-8")
            (inside / "coveragerc").write_text(COVERAGERC, encoding="utf-8")
            packages = box / "venv/upper" / Path(pytest.__file__).resolve().parents[1].relative_to(self.venv)
            packages.mkdir(parents=True)
            (packages / "mutants.pth").write_text(PTH, encoding="utf-8")
        for name, text in files.items():
            file = box / "checkout/upper" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(text)
            if (was := self.clone / name).is_file():  # what is compiled is known by its second and its size
                os.utime(file, (was.stat().st_mtime + 1, was.stat().st_mtime + 1))
        code = self._ended(box, limit_s)
        if self.is_stopping.is_set():
            raise InterruptedError
        told: dict[str, Any] = {"tests": {}, "fixtures": {}, "failed": [], "collect_s": 0.0}
        if (inside / "told.json").is_file():
            told = json.loads((inside / "told.json").read_text(encoding="utf-8"))
        said = (box / "output").read_text(encoding="utf-8", errors="replace")[-5000:]
        return Told(code, (inside / "now").read_text(encoding="utf-8"), said, **told)

    def _ended(self, box: Path, limit_s: float) -> int | None:
        unshare = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child", "bash", "-c", BOX, "box"]
        environ = {name: text for name, text in os.environ.items() if name not in ("PYTHONDONTWRITEBYTECODE", "TMPDIR")}
        with (box / "output").open("wb") as output:
            process = subprocess.Popen(
                [*unshare, box, self.clone, self.place, self.venv],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={"OMP_NUM_THREADS": "1"} | environ,
                start_new_session=True,
            )
        self.live.add(process)
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            process.kill()
            process.wait()
            self.live.discard(process)

    def work(self, todo: Iterable[Any], jobs: int, do: Callable[[int, Any], str]) -> None:
        """do(box, each) for all, some at a time. Ctrl-C and SIGTERM end the boxes; what they were at is not kept."""
        free = SimpleQueue[int]()
        for number in range(jobs):
            free.put(number)

        def one(each: Any) -> str:
            number = free.get()
            try:
                return "" if self.is_stopping.is_set() else do(number, each)
            finally:
                free.put(number)

        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with (self.folder / "lock").open("w") as lock, ThreadPoolExecutor(jobs) as pool:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise SystemExit(f"another command works in {self.folder}") from None
            try:
                for done in as_completed([pool.submit(one, each) for each in todo]):
                    if said := done.result():
                        print(said, flush=True)
            finally:  # an error too ends what is at work
                self.is_stopping.set()
                for process in list(self.live):
                    process.kill()
        for number in range(jobs):
            shutil.rmtree(self.folder / f"box-{number}", ignore_errors=True)
        self.is_stopping.clear()


class Plugin:
    """Of pytest in a box: keeps to the tests of the order, says which one is at work, and keeps how each ended."""

    def __init__(self, order: Order) -> None:
        self.order, self.began, self.name = order, time.monotonic(), ""
        self.told: dict[str, Any] = {"tests": {}, "fixtures": {}, "failed": [], "collect_s": 0.0}
        self.coverage = importlib.import_module("coverage").Coverage.current() if order.is_mapped else None

    def at(self, name: str) -> None:
        self.name = name
        (INSIDE / "now").write_text(name, encoding="utf-8")
        if self.coverage:
            self.coverage.switch_context(name)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self.told["collect_s"] = time.monotonic() - self.began
        if self.order.wanted is None:
            return
        wanted, known = set(self.order.wanted), set(self.order.known)
        functions = {each.partition("[")[0] for each in wanted}
        new = [each for each in items if each.nodeid not in known and each.nodeid.partition("[")[0] in functions]
        items[:] = [each for each in items if each.nodeid in wanted] + new

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        is_long = item.get_closest_marker("long") is not None
        test: dict[str, Any] = {"outcome": "passed", "fixtures": [], "fixtures_s": 0.0, "long": is_long}
        self.told["tests"][item.nodeid] = test
        self.at(item.nodeid)
        begin = time.monotonic()
        ended = yield
        test["s"] = time.monotonic() - begin - test["fixtures_s"]
        self.at("")
        return ended

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        asked = getattr(getattr(item, "_request", None), "_fixture_defs", ())  # also while the test ran
        self.told["tests"][item.nodeid]["fixtures"] = sorted({*getattr(item, "fixturenames", ()), *asked})

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
        """What several tests share is a context of its own, which each of them has."""
        outer, begin = self.name, time.monotonic()
        if fixturedef.scope == "function":
            return (yield)
        self.at(f"fixture {fixturedef.argname}")
        try:
            return (yield)
        finally:
            took_s = time.monotonic() - begin
            self.told["fixtures"][fixturedef.argname] = took_s
            if outer in self.told["tests"]:
                self.told["tests"][outer]["fixtures_s"] += took_s
            self.at(outer)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.outcome != "passed":
            self.told["tests"][report.nodeid]["outcome"] = report.outcome
        self.pytest_collectreport(report)

    def pytest_collectreport(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.failed:
            self.told["failed"].append(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        (INSIDE / "told.json").write_text(json.dumps(self.told), encoding="utf-8")


def main() -> int:
    order = Order(**json.loads((INSIDE / "order.json").read_text(encoding="utf-8")))
    sys.path[0] = str(Path.cwd())
    words = ["-q", "-p", "no:cacheprovider", "--hypothesis-profile=ci", *order.words, *order.files]
    return pytest.main(words, plugins=[Plugin(order)])


if __name__ == "__main__":
    sys.exit(main())
