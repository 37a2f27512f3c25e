"""Why a run ended as it did: what its ranks, its launchers, its container and its exit status say, and what it left
open."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from harness.common.display.format import cut
from harness.common.display.printable import printable
from harness.common.faults.fault import parse_fault
from harness.common.paths import COMMAND, PROGRAM, README_OF_IMAGES
from harness.common.run_folder.run_files import ERR, METRICS
from harness.common.run_folder.run_store import UnreadFileError
from harness.common.system import processes
from harness.common.system.programs import shell_status
from harness.experiment.exercises import OwnTraining, ProfiledTraining
from harness.heartbeats.dead import LOG_BYTES, exit_codes, first_death
from harness.heartbeats.hang import read_hang
from harness.run import Run
from harness.run.mystery import injected
from harness.run.record import FINAL, NodeStatus, RunRecord, State
from harness.site.site import Container

STOPPED = 143  # by TERM
COPY = f"copy it again, or build it ({README_OF_IMAGES})"
_CLOSING_S = 3.0  # helpers of Python's multiprocessing end a moment after their rank
_SHOWN = 5
_MOST_TOLD = 300  # characters of what a program said
_NO_STEP = (
    "no step was observed: it called no optimizer and no model's forward, or its Python ran with -I, -E or -S and so "
    "without the observer"
)
LEAST_BYTES = 1 << 16  # a disk with less is full: a log and a status are as large
USUALLY = {
    "KILL": "the system does this if memory runs out: try a smaller batch or model",
    "SEGV": "a library crashed: its last lines are in the log",
    "ABRT": "a library aborted: its last lines in the log give the reason",
    "BUS": "often /dev/shm is full, which the ranks share",
    "TERM": f"something other than {PROGRAM} cancel asked it to stop",
    "FPE": "a library divided by zero",
    "XFSZ": "a file became larger than the limit of this account (ulimit -f)",
    "XCPU": "it used more CPU time than this account may use (ulimit -t)",
}
PROGRAMS = {126: "a program could not be executed", 127: "a program was not found"}

# Of torchrun's and accelerate's last words: on a node, when which exit status was the first.
_ROOT_CAUSE = re.compile(
    rb"Root Cause \(first observed failure\):\s+\[\d+\]:\s+time\s*:\s*(\S+)\s+host\s*:\s*(\S+)\s+rank\s*:[^\n]*\n"
    rb"\s*exitcode\s*:\s*(-?\d+)"
)
_ALONE = re.compile(
    rb"CalledProcessError: Command .* (?:returned non-zero exit status (\d+)|died with <[\w.]+: (\d+)>)\."
)

# As argparse writes it, before it ends with 2: how the program is called, then what was wrong.
_REFUSED = re.compile(r"^usage: (?:.*\n)+?(?P<program>\S[^:\n]*): error: (?P<said>.+)$", re.MULTILINE)

# As Apptainer and Singularity write it, in a terminal's red; Python's logging puts one blank after its colon.
_SAID = re.compile(r"^(?:\x1b\[\d+m)?(?:FATAL: {3}|ERROR {2}: )(?P<said>.+)$", re.MULTILINE)
# What the log says, and the sentence on it: with the names of the pattern, and with those of `why_not_begun`.
_OF_APPTAINER = {
    r"could not open image .*(no such file|does not exist)": (
        "the image {image} does not exist on {hosts}: put it on a file system that all nodes share"
    ),
    r"could not open image .*(not readable|permission denied)": (
        "the image {image} cannot be read on {hosts}: its owner types chmod a+r"
    ),
    r"image format not recognized": f"{{image}} is no image of Apptainer or Singularity: {COPY}",
    r"(architecture \(|image targets ')(?P<built>\w+)['\)]?.*(the host's \(|cannot run on ')(?P<here>\w+)": (
        "the image {image} was built for {built}, and {hosts} is {here}: build it on such a machine"
    ),
    r"mount source (?P<path>.+?) doesn't exist": (
        "{path}, which is bound into the container, does not exist on {hosts}: make it, or take it out of "
        f"container.binds, or of a variable that names it ({COMMAND} doctor --in-job)"
    ),
    r"user namespace": (
        "{hosts} does not let users make user namespaces, which this {runtime} needs: ask its administrators, or drop "
        "--userns if it has setuid"
    ),
    r"no space left on device": (
        "a disk is full on {hosts}: the container could not be set up; its temporary files go to APPTAINER_TMPDIR, or "
        "TMPDIR"
    ),
    r"bad superblock|image is corrupted|squashfs.*(error|corrupt)|can't find a (valid )?squashfs": (
        f"the image {{image}} is damaged or incomplete: {COPY}"
    ),
    r'"(?P<program>[^"\n]+)": executable file not found in \$PATH': (
        "the container has no program {program}: name its Python in container.python of the site file"
    ),
}
_OF_PYTHON = {  # and of the job's script
    r"^(?P<neither>neither \w+ nor \w+) is on the PATH of ": (
        "{neither} is on the PATH of {hosts}: name the module that brings one in the site file (modules), or its path "
        "(container.command)"
    ),
    r"SyntaxError: future feature annotations is not defined": (
        "the container's Python ({python}) is older than 3.8: name another one in container.python"
    ),
    r"^(?P<said>\S+ is Python [\d.]+, and .*)$": "in the container, {said}: name another one in container.python",
    r"ModuleNotFoundError: No module named '(?P<module>torch|accelerate|deepspeed)'": (
        "the container's Python ({python}) has no {module}: name another one in container.python, or build the image "
        f"with it ({README_OF_IMAGES})"
    ),
}


def what_is_open(run: Run) -> str:
    """A sentence on a training that ended with status 0; empty if nothing is open, or it is an exercise's."""
    asked = run.record.experiment
    if not isinstance(asked, OwnTraining):
        return ""
    end_s = time.monotonic() + _CLOSING_S
    while (left := list(_started_by(run))) and time.monotonic() < end_s:
        time.sleep(0.2)
    if left:
        pids = ", ".join(map(str, left[:_SHOWN])) + (", …" if len(left) > _SHOWN else "")
        many = f"{len(left)} processes of it were" if len(left) > 1 else "a process of it was"
        return f"{many} still running when the program had ended (pid {pids}): what came after is not recorded"
    took, window = max(_steps(run), default=0), asked.window
    if not took:
        return _NO_STEP
    none_wanted = run.record.job.get("profiler") == "none" or asked.recorded_by_time
    if none_wanted or took >= window.end or run.traces():
        return ""
    return (
        f"nothing was profiled: it took {took} step{'s' * (took > 1)}, and the profiled ones are {window.start + 1} to "
        f"{window.end}: let it take more, or lower --skip-steps, --warmup-steps and --active-steps"
    )


def not_injected(run: Run) -> str:
    """A sentence on the faults that were asked for and took nothing from any step, if they record it; empty if none."""
    record = run.known_record
    asked = [parse_fault(text) for text in getattr(record.experiment, "faults", ())] if record else []
    if not asked:
        return ""
    endings = {fault.name for fault in asked if fault.kind.ends}  # a line of theirs is written before they act
    acted = {line.fault for line in injected(run.path) if line.ns > 0 or line.fault in endings}
    idle = [fault for fault in asked if fault.kind.recorded and fault.name not in acted]
    why = {"step": "no step of this training has its moment", "file": "this training has no file of that kind"}
    never = "this training never came to its moment"
    return "; ".join(f"nothing was injected by --fault {x}: {why.get(x.kind.per, never)}" for x in idle)


def _started_by(run: Run) -> Iterator[int]:
    """The processes of the training that live on this machine."""
    wanted = f"HARNESS_OBSERVE={run.path}/".encode()
    own = {os.getpid(), os.getppid()}
    for pid in processes.pids():
        if pid not in own and any(each.startswith(wanted) for each in processes.environment(pid)):
            yield pid


def _steps(run: Run) -> list[int]:
    found = []
    for path in run.metrics():
        with suppress(UnreadFileError):
            found.append(sum(line.get("event") == "step" for line in METRICS.objects(path)))
    return found


def what_it_means(code: int | None) -> str:
    """A sentence for a status that a shell gave a meaning to; empty for any other.

    >>> what_it_means(139)
    'exit 139: ended by the signal SEGV; a library crashed: its last lines are in the log'
    >>> what_it_means(7)
    ''
    """
    if code in PROGRAMS:
        return f"exit {code}: {PROGRAMS[code]}; the log names it"
    if code is None or not 128 < code < 128 + signal.NSIG:
        return ""
    try:
        name = signal.Signals(code - 128).name.removeprefix("SIG")
    except ValueError:
        return ""
    usually = f"; {USUALLY[name]}" if name in USUALLY else ""
    return f"exit {code}: ended by the signal {name}{usually}"


def why_it_wrote_no_more(run: Run) -> str:
    """That its disk is full, of a run that could not write how it ended; empty if there is space."""
    own = run.status()
    if own is not None and own.state in FINAL:
        return ""
    try:
        disk = os.statvfs(run.path)
    except OSError:
        return ""
    if disk.f_bavail * disk.f_frsize >= LEAST_BYTES:
        return ""
    return f"it ended without an exit status: the disk of {run.path} is full; free some space, and start it again"


def first_exits(log: Path) -> list[tuple[str, int]]:
    """Of each launcher whose ranks failed, its host and the exit status of the rank that was the first, negative for a
    signal, as it wrote them into the log; the earliest first. Its own exit status is 1 in any case. A host is empty if
    accelerate started a single process."""
    text = ERR.end(log, LOG_BYTES)
    found = sorted((at, host.decode("utf-8", "replace"), int(code)) for at, host, code in _ROOT_CAUSE.findall(text))
    if found:
        return [(host, code) for _, host, code in found]
    alone = [("", -int(number) if number else int(code)) for code, number in _ALONE.findall(text)]
    return alone or [("", code) for code in exit_codes(log).values() if code not in (0, -15)][:1]


def with_first_exits(nodes: Sequence[NodeStatus], exits: Sequence[tuple[str, int]]) -> list[NodeStatus]:
    """The nodes with the exit status of the rank that failed first in the place of their launcher's. exits: as
    `first_exits`. deepspeed's launcher passes a signal on as 256 - n."""
    left, found, hosts = list(exits), list[NodeStatus](), {node.host for node in nodes}
    for node in sorted(nodes, key=lambda each: each.ended_ns or 0):
        code = node.exit or 0
        if code == 1:
            names = [each[0].partition(".")[0] for each in left]  # one that is no node's is localhost, or not told
            own = next((each for each, at in zip(left, names, strict=True) if at == node.host or at not in hosts), None)
            if own is not None:
                left.remove(own)
                code = shell_status(own[1])
        elif 256 - signal.NSIG < code < 255:
            code = 128 + 256 - code
        found.append(node.model_copy(update={"exit": code}))
    return sorted(found, key=lambda each: each.node)


def why_it_ended(run: Run, state: State, exit_code: int) -> str:
    """What the heartbeats say of an end that was not as wished: who is stuck where, or who failed first."""
    if state == "completed":
        return ""
    hang = read_hang(run.path)
    if hang is not None and hang.until_ns is None:
        return hang.since_clock
    if state != "failed":
        return ""
    refused = _refused(run.err) if exit_code == 2 else ""
    death = first_death(run.path, run.err)
    if refused or death is None:
        return refused or _why_not_begun(run)
    return "; ".join(filter(None, [death.sentence, what_it_means(exit_code)]))


def _refused(log: Path) -> str:
    """A sentence on the first program that did not accept its arguments; empty if the log tells of none."""
    found = _REFUSED.search(ERR.end_text(log, LOG_BYTES))
    said = f"{found['program']} does not accept its arguments: {found['said']}" if found else ""
    return cut(printable(said), _MOST_TOLD)


def _why_not_begun(run: Run) -> str:
    """Of a training in a container, some ranks of which never wrote a line: what the container said."""
    container, image = run.record.site.container, run.record.job.get("image")
    asked = run.record.job["experiment"]
    if container is None or image is None or len(run.metrics()) >= asked["nodes"] * asked["gpus_per_node"]:
        return ""
    failed = [node.host for node in run.nodes() if node.exit not in (0, STOPPED)]
    return why_not_begun(run.err, failed, container, image if isinstance(image, str) else container.image)


def why_nothing_was_recorded(record: RunRecord, missing: list[str]) -> str:
    """Why a completed run probably has no report of nsys, and what to try; empty when it has one."""
    if not any(name.startswith("nsys/") for name in missing):
        return ""
    nothing = "nsys recorded nothing (its own messages are in log.err): "
    asked = record.experiment
    if isinstance(asked, ProfiledTraining) and asked.capture_delay is not None:
        return (
            f"{nothing}the training may have ended before the {asked.capture_delay} s of --capture-delay were over: "
            "use more --steps or a shorter delay"
        )
    if record.job.get("container") and not record.site.in_srun:
        return (
            f"{nothing}in the container the training probably could not load nsys's libraries; add their folder to the "
            "site's container.binds, or try --profiler torch"
        )
    return f"{nothing}nsys probably missed the profiled steps; try another version of nsys, or --profiler torch"


def why_not_begun(log: Path, hosts: Sequence[str], container: Container, image: str) -> str:
    """A sentence on what kept the container or its Python from starting; empty if the log says nothing of it. log: of a
    run some ranks of which never wrote a line. hosts: of the nodes that failed."""
    text = ERR.end_text(log, LOG_BYTES)
    where = " and ".join(dict.fromkeys(map(printable, hosts))) or "its node"
    said = [found["said"] for found in _SAID.finditer(text)]
    for known, lines in ((_OF_APPTAINER, "\n".join(said)), (_OF_PYTHON, text)):
        for pattern, sentence in known.items():
            if found := re.search(pattern, lines, re.MULTILINE | re.IGNORECASE):
                names = {name: printable(part) for name, part in found.groupdict().items()}
                place = {"hosts": where, "image": printable(image), "python": printable(container.python)}
                return cut(sentence.format(**names, **place, runtime=container.runtime), _MOST_TOLD)
    return cut(f"the container did not start on {where}: {printable(said[0])}", _MOST_TOLD) if said else ""
