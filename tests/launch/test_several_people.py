"""Two users, one checkout, one folder of runs: the second sees and reports, alters nothing, and gets one sentence."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from harness.common.system.users import user_name
from harness.run import Run
from harness.run.record import Status
from tests.launch.launch_shared import ROOT, a_run
from tests.synthetic.job import write_traces
from tests.waiting import limit_s

OTHER = 65534  # nobody, whom every system has
ME, THEM = user_name(os.getuid()), user_name(OTHER)
ASK = f"belongs to {ME}; ask {ME} for access"
DRIVER = """
import contextlib, io, json, os, sys
from harness.cli.main import main
answers = []
for words, environ in json.load(sys.stdin):
    os.environ.update(environ)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    answers.append([code, out.getvalue(), err.getvalue()])
json.dump(answers, sys.stdout)
"""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a second user")


class Said(NamedTuple):
    """What a command line answered."""

    code: int
    out: str
    err: str


@cache
def their_python() -> str:
    """A Python that the second user may run; skips where there is none."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for program in (sys.executable, shutil.which(version, path="/usr/local/bin:/usr/bin:/bin")):
        if program is None:
            continue
        asked = [program, "-c", "import numpy, pydantic_core, typer"]
        try:
            done = subprocess.run(
                asked, user=OTHER, group=OTHER, extra_groups=[], env=_environment(), cwd="/", capture_output=True,
                check=False, timeout=limit_s(120),
            )  # fmt: skip
        except PermissionError:
            continue
        if done.returncode == 0:
            return program
    pytest.skip(f"user {THEM} may run no Python {version} with the packages of {sys.prefix}")


def _environment(**more: str) -> dict[str, str]:
    packages = [path for path in sys.path if path.endswith("site-packages")]
    return {"PATH": "/usr/bin:/bin", "PYTHONPATH": os.pathsep.join(packages), "OMP_NUM_THREADS": "1", **more}


class Shared(NamedTuple):
    """A folder that both users may enter, with a checkout of the first user's and a home of the second's."""

    folder: Path

    @property
    def checkout(self) -> Path:
        return self.folder / "checkout"

    @property
    def home(self) -> Path:
        return self.folder / "home"

    def python(self, code: str, given: str = "", groups: Sequence[int] = (), **environ: str) -> str:
        """What the second user's Python prints for this code, in the checkout."""
        env = _environment(**{"HOME": str(self.home), **environ})
        env["PYTHONPATH"] = os.pathsep.join([str(self.checkout), env["PYTHONPATH"]])
        done = subprocess.run(
            [their_python(), "-c", code], input=given, env=env, cwd=self.home, text=True, user=OTHER, group=OTHER,
            extra_groups=list(groups), capture_output=True, check=False, timeout=limit_s(300),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def answers(self, runs: Path, asked: Sequence[Sequence[str]], **environ: str) -> list[Said]:
        """What the second user is told by these command lines, where HARNESS_RUNS is `runs`."""
        lines = [[list(words), {"HARNESS_RUNS": str(runs), "HARNESS_SITE": "local"}] for words in asked]
        return [Said(*each) for each in json.loads(self.python(DRIVER, json.dumps(lines), (), **environ))]


@pytest.fixture(scope="module")
def shared() -> Iterator[Shared]:
    """Below /tmp: pytest's own folders are closed to others."""
    folder = Path(tempfile.mkdtemp(prefix="several-people-"))
    folder.chmod(0o755)
    place = Shared(folder)
    before = os.umask(0o022)
    left_out = shutil.ignore_patterns("__pycache__", "logs", "profiler", ".local")
    try:
        for name in ("harness", "configs", "templates", "exercises"):
            shutil.copytree(ROOT / name, place.checkout / name, ignore=left_out)
        place.home.mkdir()
        os.chown(place.home, OTHER, OTHER)
        yield place
    finally:
        os.umask(before)
        shutil.rmtree(folder)


def with_run(root: Path) -> Run:
    """The first user's completed run, with traces and a log."""
    run = a_run(root, "local-1")
    run.write_record(run.record.model_copy(update={"user": ME}))
    run.write_status(Status(state="completed", exit_code=0, started_ns=1, ended_ns=2))
    (run.path / "torch").mkdir()
    for trace in write_traces(root / "made"):
        (run.path / "torch" / f"{trace.name}.gz").write_bytes(gzip.compress(trace.read_bytes()))
    shutil.rmtree(root / "made")
    run.out.write_text("it trained\n")
    (root / ".local" / "1").mkdir(parents=True)
    return run


def contents(root: Path) -> dict[str, tuple[int, int, int]]:
    """Every file below, with its mode, size and time."""
    found = ((path, path.lstat()) for path in root.rglob("*"))
    return {str(path): (s.st_mode, s.st_size, s.st_mtime_ns) for path, s in found}


# Words, exit code, and what the second user must read; RUN is the run's folder, HOME the second user's.
OPEN: list[tuple[list[str], int, list[str]]] = [
    (["ls"], 0, ["local-1  completed"]),
    (["status", "local-1"], 0, ["local-1  completed, exit 0"]),
    (["logs", "local-1"], 0, ["it trained"]),
    (
        ["report", "local-1"],
        0,
        [
            "  a step  ",
            "neither the page nor the numbers were kept: RUN/report.html: cannot be written (Permission denied): "
            f"RUN {ASK}; --html FILE writes a page elsewhere",
        ],
    ),
    (["report", "local-1", "--full"], 0, ["Where the time went", "neither the page nor the numbers were kept"]),
    (["report", "local-1", "--html", "HOME/page.html"], 0, ["  page:    HOME/page.html"]),
    (["compare", "local-1", "RUN/torch/"], 0, ["Configuration: "]),
    (["whatif", "local-1"], 0, ["A step takes"]),
    (
        ["export", "perfetto", "local-1"],
        1,
        [f"RUN/torch/trace.perfetto.gz cannot be written: Permission denied: RUN/torch {ASK}; --out PREFIX writes"],
    ),
    (["export", "perfetto", "local-1", "--out", "HOME/a"], 0, ["HOME/a.perfetto.gz"]),
    (["export", "paraver", "local-1"], 1, ["RUN/torch/trace.prv cannot be written: Permission denied: RUN/torch"]),
    (["export", "paraver", "local-1", "--out", "HOME/b"], 0, ["HOME/b.prv"]),
    (["cancel", "local-1"], 2, [f"slurm.sh: local-1 belongs to {ME}: only {ME} can cancel it\n"]),
    (["run", "local-1"], 2, [f"a launch asks first: it belongs to {ME}\n", "add --yes to run the commands of "]),
    (["run", "local-1", "--dry-run"], 0, ["RUN/run.json would run or use:\n", "#!/bin/bash\n"]),
    (["run", "local-1", "--yes"], 1, ["cannot be written", f"{ASK}: choose another place with HARNESS_RUNS\n"]),
    (["-e", "1"], 1, [f"ROOT/exercise_1_DDP: cannot be written (Permission denied): it {ASK}: choose another place"]),
    (["-e", "2"], 1, [f"ROOT/exercise_2_DeepSpeed: cannot be written (Permission denied): ROOT {ASK}: choose another"]),
    (["sweep", "gas", "--yes"], 1, ["cannot be written (Permission denied)", f"{ASK}: choose another place with"]),
]  # fmt: skip


def test_the_second_user_sees_and_reports_and_alters_nothing(shared: Shared) -> None:
    root = shared.folder / "open"
    run = with_run(root)
    before = contents(root)
    answers = shared.answers(root, [_filled(words, run, shared) for words, _, _ in OPEN])
    for (words, code, wanted), said in zip(OPEN, answers, strict=True):
        assert (said.code, "Traceback" in said.err) == (code, False), (words, said)
        for text in _filled(wanted, run, shared):
            assert text in said.out + said.err, (words, text, said)
    assert contents(root) == before


def _filled(words: Sequence[str], run: Run, shared: Shared) -> list[str]:
    names = {"RUN": run.path, "HOME": shared.home, "ROOT": run.path.parents[2]}
    filled = list(words)
    for name, path in names.items():
        filled = [word.replace(f"{name}/", f"{path}/").replace(f"{name} ", f"{path} ") for word in filled]
    return filled


ANY = (["ls"], ["status", "last"], ["report", "local-1"], ["logs", "last"], ["cancel", "last"], ["run", "last"])


def test_a_folder_that_the_umask_077_of_its_owner_closed_is_said_and_whom_to_ask(shared: Shared) -> None:
    root = shared.folder / "closed"
    before = os.umask(0o077)
    try:
        with_run(root)
    finally:
        os.umask(before)
    answers = shared.answers(root, [*ANY, ["-e", "1"]])
    for said in answers[:-1]:
        assert said.code == 2
        assert f"{root}: may not be read: it {ASK}, or set HARNESS_RUNS to the folder of your own" in said.err
        assert said.err.count("\n") == 1
    assert answers[-1].code == 1
    assert answers[-1].err.splitlines()[-1].endswith(f"{root} {ASK}: choose another place with HARNESS_RUNS")


def test_one_closed_run_is_left_out_of_the_list_and_said(shared: Shared) -> None:
    root = shared.folder / "one-closed"
    with_run(root)
    shut = a_run(root, "local-2")
    shut.path.chmod(0o700)
    listed, asked, last = shared.answers(root, [["ls"], ["report", "local-2"], ["status", "last"]])
    assert "local-1  completed" in listed.out
    assert listed.err == f"not shown: you may not read {shut.path}: it {ASK}\n"
    assert (asked.code, f"; {shut.path} may not be read: it {ASK}" in asked.err) == (2, True)
    assert "local-1" in last.out


START = """
import os, sys
os.umask(0o077)
from harness.run import Run, Stage, claim_local_id
from pathlib import Path
root = Path(sys.stdin.read())
job_id, folder = claim_local_id(root)
with Stage(root / "exercise_1_DDP") as stage:
    Run(stage.path).script.write_text("")
    print(job_id, stage.publish(f"run-{job_id}", job_id).name)
"""


@pytest.mark.parametrize(("mode", "groups"), [(0o1777, ()), (0o2775, (4242,))], ids=["sticky", "group"])
def test_both_start_runs_in_a_folder_that_they_share_whatever_their_umask(
    shared: Shared, mode: int, groups: tuple[int, ...]
) -> None:
    root = shared.folder / f"shared-{mode:o}"
    root.mkdir()
    os.chown(root, -1, groups[0] if groups else -1)
    root.chmod(mode)
    mine = subprocess.run(
        [sys.executable, "-c", START], input=str(root), env={**os.environ, "HARNESS_RUNS": str(root)}, cwd=ROOT,
        text=True, capture_output=True, check=True, timeout=limit_s(),
    ).stdout  # fmt: skip
    theirs = shared.python(START, str(root), groups, HARNESS_RUNS=str(root))
    assert (mine, theirs) == ("local-1 run-local-1\n", "local-2 run-local-2\n")
    runs = {path.name: path.stat() for path in (root / "exercise_1_DDP" / "profiler").iterdir()}
    assert {name: user_name(s.st_uid) for name, s in runs.items()} == {"run-local-1": ME, "run-local-2": THEM}
    assert not any(s.st_mode & 0o022 for s in runs.values()), "a run is its owner's alone to alter"
