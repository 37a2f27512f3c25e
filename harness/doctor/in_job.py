"""A compute node's part of `doctor --in-job`: look, and write what was found into the folder that all nodes share."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal

from pydantic import BaseModel

from harness.common.errors import RequestError, WorkError
from harness.common.paths import COMMAND, TEMPLATES
from harness.common.system.bounded_read import read_bounded_text
from harness.doctor.checks import examine
from harness.doctor.surroundings import (
    CheckLine,
    CourseSize,
    Level,
    Surroundings,
    look_around,
    ok,
    problem,
    unseen,
    worst,
)
from harness.launch.backends.slurm import POLL_S, options_of
from harness.launch.job import Job
from harness.launch.render import render_template
from harness.run import disk_error, runs_root, write_atomically
from harness.site.site import Site, override
from harness.site.slurm_commands import JobId, in_queue, sbatch, scancel, squeue

ASKED = "asked.json"  # the question, in the folder of the job
TIME = "00:02:00"
NEEDED_FIRST = frozenset({"launch", "submission"})
USUAL_NODES = 2
FOLDER = ".doctor"  # in the runs' folder
GRACE_S = 20.0  # a shared file system may show an answer this much later than the queue forgets the job
SILENT_S = 600.0  # beyond the patience: a job of two minutes that began is over, whatever squeue says
SAY_EVERY_S = 30.0


class NodeRequest(BaseModel):
    """A look from the nodes: of how many, at what site, for what course."""

    site: Site
    nodes: int
    course: CourseSize

    def look_around(self, site: Site, node_kind: Literal["login", "node"]) -> Surroundings:
        return look_around(site, node_kind, self.course, self.nodes)


class Report(BaseModel):
    node: int
    host: str
    lines: list[CheckLine]


def report_file(folder: Path, node: int) -> Path:
    return folder / f"node{node}.json"


def main(argv: list[str]) -> int:
    """`FOLDER`: answer for this node."""
    folder = Path(argv[0])
    asked = NodeRequest.model_validate_json(read_bounded_text(folder / ASKED))
    around = asked.look_around(asked.site, "node")
    node = int(os.environ.get("SLURM_NODEID", "0"))
    report = Report(node=node, host=socket.gethostname().split(".")[0], lines=list(examine(around)))
    write_atomically(report_file(folder, node), report.model_dump_json())
    return 0


Say = Callable[[str], None]


def nodes_for(site: Site) -> int:
    """Two nodes, or one if the site's queue allows no more."""
    return min(USUAL_NODES, site.max_nodes or USUAL_NODES)


def look_after(
    check_lines: list[CheckLine], around: Surroundings, request: NodeRequest, patience_s: float, say: Say
) -> Iterator[CheckLine]:
    """The nodes' lines, if the checks before found no obstacle for a job; else a line that says why there are none.
    patience_s: how long the job may wait in the queue. Ctrl-C cancels it."""
    if around.node_kind == "here":
        yield CheckLine("job", ok("--in-job", "this machine is the compute node, and the checks above looked at it"))
    elif worst([line for line in check_lines if line.check in NEEDED_FIRST]) is Level.PROBLEM:
        yield CheckLine("job", unseen("--in-job", "nothing was submitted: first fix the problems above"))
    else:
        try:
            yield from look_in_job(request, patience_s, say)
        except (RequestError, WorkError) as error:
            again = f"{COMMAND} doctor --in-job -n {max(1, request.nodes - 1)}"
            yield CheckLine("job", problem(f"a job on {request.nodes} nodes", str(error), again))


def look_in_job(request: NodeRequest, patience_s: float, say: Say) -> list[CheckLine]:
    """Submit, wait and collect; a Ctrl-C cancels the job. say: gets a sentence when something has changed. Raises
    RequestError: the site resolves no job, or a folder's name cannot be used. WorkError: a file cannot be written, or
    sbatch refuses."""
    around = request.look_around(override(request.site, {"time": TIME, "signal_seconds": 0}), "login")
    folder = _staged(request, around.job)
    try:
        job = sbatch(*options_of(folder, [*around.job.directives, "--job-name=doctor"]), str(folder / "job.sbatch"))
    except WorkError:
        _remove(folder)
        raise
    try:
        say(f"job {job.number} on {request.nodes} node{'s' * (request.nodes > 1)}, for two minutes at most")
        stopped = _wait(job, folder, request.nodes, patience_s, say)
    except KeyboardInterrupt:
        with suppress(WorkError):  # it may have ended
            scancel(job)
        _remove(folder)
        say(f"job {job.number} was cancelled")
        raise
    return collected(job, folder, request.nodes, stopped)


def _staged(request: NodeRequest, job: Job) -> Path:
    """A folder of its own with the script and the question."""
    folder = runs_root() / FOLDER / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    try:
        (folder / "logs").mkdir(parents=True)
    except OSError as error:
        raise disk_error(folder, error) from None
    text = render_template(TEMPLATES / "doctor.j2", job=job, folder=str(folder), runs=str(runs_root()))
    write_atomically(folder / "job.sbatch", text)
    write_atomically(folder / ASKED, request.model_dump_json(indent=1))
    return folder


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):  # another one's answers are beside it
        folder.parent.rmdir()


def _wait(job: JobId, folder: Path, nodes: int, patience_s: float, say: Say) -> str:
    """Wait for every node's answer; returns why it was not waited for any longer, empty when all are there."""
    began_s, said_s, shown, gone_s = time.monotonic(), 0.0, "", None
    while not all(report_file(folder, node).exists() for node in range(nodes)):
        now_s = time.monotonic()
        state = squeue(job, "%T").text or None
        over_s = now_s - began_s - patience_s
        if (state == "PENDING" and over_s > 0) or over_s > SILENT_S:
            return _given_up(job, state, patience_s)
        if state is None and not in_queue(job):
            gone_s = gone_s or now_s
            if now_s - gone_s > GRACE_S:
                return "it left the queue"
        if state is not None and (state != shown or now_s - said_s > SAY_EVERY_S):
            say(f"job {job.number}: {state.lower()}, {now_s - began_s:.0f} s")
            shown, said_s = state, now_s
        time.sleep(min(POLL_S, 1.0))
    return ""


def _given_up(job: JobId, state: str | None, patience_s: float) -> str:
    reason = squeue(job, "%r").text or "no reason given"
    with suppress(WorkError):  # it may have ended
        scancel(job)
    if state != "PENDING":
        return "squeue does not list it any more, so it was cancelled"
    return f"it was still queued after {patience_s / 60:g} min (Slurm says {reason}) and was cancelled"


def collected(job: JobId, folder: Path, nodes: int, stopped: str) -> list[CheckLine]:
    """The nodes' lines, equal ones once. The folder is kept if an answer is missing."""
    reports = list(_reports(folder, nodes))
    lines = merged(reports)
    if len(reports) == nodes:
        _remove(folder)
        return [CheckLine("job", ok(f"job {job.number}", f"all {nodes} nodes answered")), *lines]
    why = f"{len(reports)} of {nodes} nodes answered: {stopped}"
    again = f"cat {folder}/logs/slurm-{job.number}.out"
    if "still queued" in stopped:
        _remove(folder)
        again = f"{COMMAND} doctor --in-job --patience 60   # minutes; or a reservation, in sbatch: of the site file"
    return [CheckLine("job", problem(f"job {job.number}", why, again)), *lines]


def _reports(folder: Path, nodes: int) -> Iterator[Report]:
    """The answers that are there."""
    for node in range(nodes):
        with suppress(OSError, ValueError):
            yield Report.model_validate_json(read_bounded_text(report_file(folder, node)))


def merged(reports: Iterable[Report]) -> list[CheckLine]:
    """All nodes' lines by check; a line that several nodes gave stands once, with their names."""
    hosts: dict[CheckLine, list[str]] = {}
    for report in reports:
        for line in report.lines:
            hosts.setdefault(line, []).append(report.host)
    order = list(dict.fromkeys(line.check for line in hosts))
    lines = [line._replace(hosts=tuple(names)) for line, names in hosts.items()]
    return sorted(lines, key=lambda line: order.index(line.check))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
