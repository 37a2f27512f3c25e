"""What a backend is: it starts a job's script, gives its state and stops it. Knows no backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from harness.experiment.exercises import Experiment
from harness.launch.argv import Word
from harness.run import Run, Stage
from harness.run.record import RunRecord, State
from harness.site.site import Site

Together = Literal["array", "series"]
"""Many runs in one submission: a job each, queued as one; or one after the other in one allocation."""


Render = Callable[[Path, list[str]], str]
"""From a template and the options of a submission to its script, which starts the scripts of all its runs."""


class Submission(NamedTuple):
    """A run whose files are staged, and what its backend needs to start it."""

    stage: Stage
    record: RunRecord  # without its job id, which the backend gives
    name_for: Callable[[str], str]  # job id to the name of the run
    directives: list[str]
    gpus: int  # of all nodes


class PolledState(NamedTuple):
    """A run's state now, and a sentence if the state alone is not enough.

    ending: it was asked to end, and its processes still close their files. suspended: its processes do not run for a
    while. silent: the scheduler did not answer, so `unknown` says nothing of the run. told_by: the scheduler's word for
    an end that the job did not write itself.
    """

    state: State
    why: str = ""
    ending: bool = False
    suspended: bool = False
    silent: bool = False
    told_by: str | None = None


class Listed(NamedTuple):
    """A run as its queue lists it. starts_ns, ends_ns: unix times at which it began or is expected to, and at which
    its time limit ends it; None: not known."""

    polled: PolledState
    starts_ns: int | None = None
    ends_ns: int | None = None


class Backend(Protocol):
    """A module with these names; `registry` lists the modules."""

    @property
    def TEMPLATE(self) -> Path:
        """The template of its script; it extends templates/job.j2."""

    @property
    def RUNS_HERE(self) -> bool:
        """True: on this machine, with its cores and its GPUs. False: on the nodes of a cluster."""

    @property
    def HELD(self) -> bool:
        """True: a run belongs to the terminal that started it: one at a time, followed, and ended by Ctrl-C. False: it
        waits in a queue and stays there."""

    @property
    def POLL_S(self) -> float:
        """Seconds between two looks at a run's state."""

    def directives(self, experiment: Experiment, site: Site, cpus: int | None, /) -> list[str]:
        """The options of the submission. `cpus`: per node."""

    def warnings(self, experiment: Experiment, site: Site, environ: Mapping[str, str], /) -> list[str]:
        """What works and is probably not intended, one sentence each. environ: what the job inherits."""

    def refusals(self, output_dir: str, /) -> list[str]:
        """Why it cannot run a job that writes to `output_dir`, one sentence each."""

    def submit(self, submission: Submission, /) -> Run:
        """Start the run, or queue it; returns it published. Raises WorkError: the backend refused, or a write failed;
        nothing is left behind."""

    def submit_together(
        self, submissions: Sequence[Submission], way: Together, at_once: int | None, render: Render, /
    ) -> list[Run]:
        """Queue staged runs as one submission; returns them published. at_once: of an array, the most that run. Raises
        RequestError: this backend has no queue. WorkError: it refused, or a write failed; nothing is left behind."""

    def most_together(self, way: Together, /) -> int:
        """The most runs that one submission may hold; 0: this backend has no queue."""

    def submit_after(self, run: Run, argv: list[Word], over: bool, /) -> str:
        """Queue one command that begins when the run has ended; returns the job's id. over: it has ended. Raises
        RequestError: this backend has no queue. WorkError: the backend refused."""

    def poll(self, run: Run, /) -> PolledState:
        """The run's state; where nobody answers in time, what the job itself last wrote."""

    def listed(self, runs: Sequence[Run], /) -> dict[Path, Listed] | None:
        """Runs by path as the queue lists them, asked in one question where there is a queue; a run that is not listed
        has left it. None: it does not answer."""

    def cancel(self, run: Run, /) -> list[Run]:
        """Stop the run, which keeps the traces that it has; returns the other runs that end with it. Raises WorkError:
        it could not be stopped."""

    def logs(self, run: Run, /) -> list[Path]:
        """The files that the scheduler writes about the run; a file may not exist."""
