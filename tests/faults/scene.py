"""A run that meets a fault: launched as a user launches it, in a runs folder of its own, and watched to its end.

It asks Slurm and /proc, never the harness: the harness's answers are held against what is found here.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from tests.exercises.launching import UNHURRIED
from tests.faults.fault import Fault, Place
from tests.faults.light_launch import write_customize
from tests.faults.light_train import MARKS
from tests.faults.processes import Process, is_alive, processes_of
from tests.slurm.slurm_cluster import UNFINISHED, Slurm
from tests.slurm.slurm_sh import SITE
from tests.waiting import limit_s, wait_until

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 200.0  # of each wait, on an idle machine: six runs share it
LOOK_S = 1.0  # between two looks at whether a run is over: each is a program that starts
LOCAL_SITE: dict[str, Any] = {
    "name": "here",
    "description": "this machine, as the tests of faults use it",
    "scheduler": "local",
    "device": "cpu",
    "time": "00:10:00",
}


class NotYetError(AssertionError):
    """What was waited for did not come."""


@dataclass
class Scene:
    """A fault's own place: `folder` has its site, its script and the marks of its ranks; `runs` is its runs folder."""

    fault: Fault
    place: Place
    folder: Path
    slurm: Slurm | None = None
    env: dict[str, str] = field(default_factory=dict)
    refused: subprocess.CompletedProcess[str] | None = None
    left: list[Process] = field(default_factory=list)
    at_the_end: list[Callable[[], object]] = field(default_factory=list)
    launcher: subprocess.Popen[str] | None = None
    broken: BaseException | None = None
    container: dict[str, Any] | None = None
    _next_look_s: float = 0.0

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    @property
    def environment(self) -> dict[str, str]:
        outer = self.slurm.env if self.slurm else dict(os.environ)
        ours = {"HARNESS_RUNS": str(self.runs), "COLUMNS": "200", "OMP_NUM_THREADS": "1"}
        return {**outer, **ours, **self.fault.setting.env, **self.env}

    # --- launching ------------------------------------------------------------------------------------------------

    def argv(self, *words: str | Path) -> list[str]:
        """A command of the harness, as slurm.sh starts it."""
        return [sys.executable, "-m", "harness", *map(str, words)]

    def harness(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        """A command, to its end."""
        return subprocess.run(
            self.argv(*words), cwd=ROOT, env=self.environment, capture_output=True, text=True, check=False,
            timeout=limit_s(LIMIT_S), errors="replace",
        )  # fmt: skip

    def launch(self) -> None:
        """Launch, and return when the run is there, or when it was refused."""
        self.start_launcher("--json")
        assert self.launcher is not None
        launcher = self.launcher
        wait_until(lambda: launcher.poll() is not None or self.found(), "the run, or a refusal", self.said, LIMIT_S)
        if self.place == "slurm" or not self.found():
            self.end_launcher()
        if not self.found():
            self.refused = self.said()

    def start_launcher(self, *more: str) -> None:
        """Start the command that launches, with its output into files."""
        for name in ("said.out", "said.err"):
            (self.folder / name).touch()
        with (self.folder / "said.out").open("w") as out, (self.folder / "said.err").open("w") as err:
            self.launcher = subprocess.Popen(
                self.argv(*self.launch_words(), *more), cwd=ROOT, env=self.environment, stdout=out, stderr=err,
                text=True, stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip

    def end_launcher(self) -> None:
        assert self.launcher is not None
        try:
            self.launcher.wait(timeout=limit_s(LIMIT_S))
        except subprocess.TimeoutExpired:
            raise NotYetError(f"{self.fault.name}, {self.place}: the launch does not end\n{self.heard()}") from None

    def said(self) -> subprocess.CompletedProcess[str]:
        """What the launch printed."""
        assert self.launcher is not None
        out, err = ((self.folder / f"said.{name}").read_text(errors="replace") for name in ("out", "err"))
        return subprocess.CompletedProcess([], self.launcher.returncode, out, err)

    def launch_words(self) -> list[str]:
        setting = self.fault.setting
        own = ["--script", str(self.script()), "--profiler", "torch", "--active-steps", str(setting.steps)]
        if setting.training == "real":
            own = ["--script", str(UNHURRIED), "--seq-length", "64", "--skip-steps", "1", "--wait-steps", "0"]
            own += ["--warmup-steps", "1", "--active-steps", str(setting.steps)]
        many = ["-e", "1", "-n", str(setting.nodes), "-g", str(setting.ranks)]
        return [*many, "--site", str(self.site()), *own, *setting.words]

    def site(self) -> Path:
        """The site's file: the fault's changes, and where the ranks leave their marks."""
        plain = SITE | {"gpus": {"per_node": 4, "request": "none"}} if self.place == "slurm" else LOCAL_SITE
        setting = self.fault.setting
        changes = dict(setting.site)
        env = {MARKS: str(self.marks), **changes.pop("env", {})}
        if setting.launcher == "light" and setting.training != "real":
            write_customize(self.folder / "light")
            counts = {"FAULTS_RANKS": str(setting.ranks), "FAULTS_NODES": str(setting.nodes)}
            env = {"PYTHONPATH": f"{self.folder / 'light'}:{ROOT}", **counts, **env}
        if self.container is not None:
            changes["container"] = self.container
        path = self.folder / "site.yaml"
        path.write_text(yaml.safe_dump({**plain, "env": env, **changes}))
        return path

    def script(self) -> Path:
        path = self.folder / "light.py"
        lines = [
            "import os, signal, sys, time",
            "import exercises.utils  # as the exercises' scripts: it refuses an old Python",
            "from tests.faults.light_train import at, hold, main",
        ]
        path.write_text("\n".join([*lines, self.fault.setting.training, "sys.exit(main())", ""]))
        return path

    # --- where it is ----------------------------------------------------------------------------------------------

    @property
    def marks(self) -> Path:
        return self.folder / "marks"

    def found(self) -> list[Path]:
        """The directories of the runs there are."""
        return sorted(path.parent for path in self.runs.glob("exercise_*/profiler/[!.]*/run.json"))

    @cached_property
    def path(self) -> Path:
        """The run's directory, also after its run.json was taken away."""
        return self.found()[0]

    @cached_property
    def job_id(self) -> str:
        return str(json.loads((self.path / "run.json").read_text())["job_id"])

    @property
    def logs(self) -> Path:
        return self.path.parents[1] / "logs" / self.job_id

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Return when the condition holds; fail at once when the run is over and it does not."""
        name = f"{self.fault.name}, {self.place}"

        def holds() -> bool:
            is_over = self._is_over()  # before the condition, which may come to hold at the end
            if condition():
                return True
            if is_over:
                raise NotYetError(f"{name}: it was over before {what}\n{self.heard()}")
            return False

        wait_until(holds, f"{name}: {what}", self.heard, LIMIT_S)

    def _is_over(self) -> bool:
        """Whether nothing more can happen: for Slurm the job has ended, or no process of the run is here."""
        if time.monotonic() < self._next_look_s or not self.found():
            return False
        self._next_look_s = time.monotonic() + LOOK_S
        if self.slurm is not None:
            return self.job().get("JobState", "PENDING") not in UNFINISHED
        return not self.processes()

    def heard(self) -> str:
        """What the launch printed, what Slurm says, and the end of the run's logs."""
        said = [str(self.said())] if self.launcher else []
        if self.slurm is not None and self.found():
            said.append(self.slurm.about(self.job_id))
        logs = sorted(self.runs.glob("*/logs/*/log.*"))
        return "\n".join([*said, *(f"{log}:\n{log.read_text(errors='replace')[-3000:]}" for log in logs)])

    def reached(self, moment: str, rank: int = 0) -> int:
        """The process id of a rank that has reached the moment."""
        _ = self.path, self.job_id  # known from now on, whatever happens to run.json
        pattern = f"*.rank{rank}.{moment}"
        self.until(lambda: list(self.marks.glob(pattern)), f"rank {rank} at {moment}")
        return int(next(self.marks.glob(pattern)).read_text())

    def process(self, word: str) -> int:
        """The oldest process of the run whose command has this word; none that starts the others with it."""
        found: list[int] = []

        def look() -> bool:
            for each in self.processes():
                if word in each.words and ("launch/on_node/node.py" not in each.words or each.words.startswith(word)):
                    found.append(each.pid)
            return bool(found)

        self.until(look, f"a process {word}")
        return found[0]

    def processes(self) -> list[Process]:
        return processes_of(self.runs)

    def kill(self, number: signal.Signals, *pids: int) -> None:
        for pid in pids:
            os.kill(pid, number)

    def training_pid(self, rank: int) -> int:
        """Of a real training: its process, once two profiled steps are done."""
        path = self.path / "metrics" / f"rank{rank}.jsonl"
        _ = self.job_id
        self.until(lambda: path.exists() and path.read_text().count('"active"') >= 2, f"steps of rank {rank}")
        return int(json.loads(path.read_text().splitlines()[0])["pid"])

    # --- Slurm ----------------------------------------------------------------------------------------------------

    def job(self) -> dict[str, str]:
        """Slurm's own answer; empty while its controller is down."""
        assert self.slurm is not None
        done = self.slurm.run("scontrol", "--oneliner", "show", "job", self.job_id, check=False)
        return dict(word.split("=", 1) for word in done.stdout.split() if "=" in word)

    def jobs(self) -> list[str]:
        """The ids of all jobs whose files are in the runs folder."""
        assert self.slurm is not None
        lines = self.slurm.run("scontrol", "--oneliner", "show", "job", check=False).stdout.splitlines()
        return [line.split()[0].removeprefix("JobId=") for line in lines if f"={self.runs}/" in line]

    def daemon(self, name: str) -> int:
        assert self.slurm is not None
        return int((self.slurm.root / "run" / f"{name}.pid").read_text())

    # --- the end --------------------------------------------------------------------------------------------------

    def wait_for_end(self) -> None:
        """Return when the job is over for Slurm, or the launch on this machine has returned."""
        if self.refused is None:
            if self.place == "slurm":
                self.until(lambda: self.job().get("JobState", "PENDING") not in UNFINISHED, "the job's end")
            elif self.launcher is not None:
                self.end_launcher()
        with suppress(AssertionError):  # the fault's own test says which are left
            wait_until(lambda: not self.processes(), "the end of all its processes", seconds=60)
        self.left = self.processes()

    def clean_up(self) -> None:
        """End what is left, so that no fault spoils the next one."""
        for each in self.processes():
            if is_alive(each.pid):
                os.kill(each.pid, signal.SIGKILL)
        if self.slurm is not None and (jobs := self.jobs()):
            self.slurm.run("scancel", *jobs, check=False)
