"""How a run ended and why, as its witnesses say: its ranks, its launchers, its container, its log and its exit status;
and what it left open."""

from __future__ import annotations

import errno
import os
import re
import shlex
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from harness.common.display.format import cut
from harness.common.display.printable import printable
from harness.common.faults.fault import parse_fault
from harness.common.paths import COMMAND, PROGRAM, README_OF_IMAGES
from harness.common.run_folder.job_folder import BACKEND
from harness.common.run_folder.run_files import ERR, METRICS, SAME_RANK
from harness.common.run_folder.run_store import UnreadFileError
from harness.common.system.programs import shell_status
from harness.experiment.exercises import OwnTraining
from harness.experiment.parse import command_of
from harness.heartbeats.dead import certain_death, deaths, exit_codes, first_death, last_logged, restarted
from harness.heartbeats.hang import read_hang
from harness.heartbeats.log_errors import LOG_BYTES, MOST_TOLD, ROOT_CAUSE, last_line
from harness.heartbeats.out_of_memory import Shortage
from harness.run import Run
from harness.run.ending import STOPPED, Ending, Witnesses, decide
from harness.run.mystery import injected
from harness.run.record import FINAL, NodeStatus, RunRecord, State, Status
from harness.site.site import Container

COPY = f"copy it again, or build it ({README_OF_IMAGES})"
LONGEST_LINE = 1 << 16  # bytes of a rank's last line, and more
_NO_STEP = (
    "no step was observed: it called no optimizer and no model's forward, its Python ran with -I, -E or -S and so "
    "without the observer, or it still ran when the program had ended"
)
LEAST_BYTES = 1 << 16  # a disk with less is full: a log and a status are as large
_OF_DISK = {
    errno.ENOSPC: "is full; free some space, or delete files if `df -i` has no inodes left",
    errno.EDQUOT: "has nothing left of your quota; free some space",
    errno.EROFS: "is read-only; make it writable, or set HARNESS_RUNS",
}
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

_ALONE = re.compile(
    rb"CalledProcessError: Command .* (?:returned non-zero exit status (\d+)|died with <[\w.]+: (\d+)>)\."
)

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
        "container.binds, or of a variable that names it"
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
    r"^(?P<program>apptainer|singularity): cannot be started (?:on \S+ )?\(No such file": (
        "{program} is not on the PATH of {hosts}: name the module that brings it in the site file (modules), its path "
        "(container.command), or the other of the two (container.runtime)"
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


def end_of(run: Run, code: int | None, asked: str = "", asked_ns: int = 0, missing: bool = False) -> Ending:
    """How a run ended that is over. code: of its script or command; None: nobody wrote it. asked, asked_ns: the state
    that it was asked to end for, and when."""
    ends = deaths(run.path, run.err)
    # The moments when the training was over, of each rank; else of each node.
    over_ns = [death.unix_ns for death in ends] or [node.ended_ns or 0 for node in run.nodes()]
    found = decide(
        Witnesses(
            exit_code=None if code is None else _exit_of_training(run, code),
            asked=asked,
            before=all(at_ns < asked_ns for at_ns in over_ns),
            # On a full disk a trace may be cut off, though the training ended well.
            well=bool(run.metrics()) and all(map(_came_to_its_end, run.metrics())) and not why_it_wrote_no_more(run),
            missing=missing,
            died=first.sentence if (first := certain_death(ends)) is not None else "",
        )
    )
    again = f"it was started again after this: {before}" if (before := restarted(run.path)) else ""
    if found.state == "completed":
        cut_off = [death for death in ends if death.step and not death.left]
        notes = [f"the process of rank {death.rank} ended in step {death.step} and told no error" for death in cut_off]
        return found._replace(note="; ".join(filter(None, [same_rank(run.path), found.note, again, *notes[:1]])))
    why = found.why or why_it_ended(run, found.state, found.exit_code)
    return found._replace(why="; ".join(filter(None, [why, again])))


def same_rank(run: Path) -> str:
    """A sentence on processes of a run that are a rank which another one is already; empty if there are none."""
    told = list(filter(None, map(SAME_RANK.known, SAME_RANK.paths(run))))
    more = f" (and {len(told) - 1} more)" if len(told) > 1 else ""
    return cut(printable(told[0].strip()), 2 * MOST_TOLD) + more if told else ""


def as_written(run: Run, status: Status) -> Ending:
    """The end that the job itself wrote, with what its ranks say: of a training that was only observed, nobody waited
    for that, and perhaps for no exit status."""
    written = Ending(status.state, status.exit_code, status.why, status.note)
    record = run.known_record
    if status.why or status.note or record is None or record.backend != BACKEND:
        return written
    if status.exit_code is None and status.state == "completed":
        return end_of(run, 0)
    return written._replace(why=why_it_ended(run, status.state, status.exit_code))


def _came_to_its_end(metrics: Path) -> bool:
    """Whether a rank wrote that it completed: one that was stopped, or killed, did not."""
    last = METRICS.end(metrics, LONGEST_LINE).rstrip().rpartition(b"\n")[2]
    return last.startswith(b'{"event": "end"') and b'"status": "completed"' in last


def nodes_of(run: Run) -> list[NodeStatus]:
    """The nodes that have ended, each with the exit status of its rank that failed first."""
    return with_first_exits(run.nodes(), first_exits(run.err))


def _exit_of_training(run: Run, code: int) -> int:
    """The training's own exit status counts, not the launcher's: when one node fails, srun ends the others and may
    report their end instead."""
    nodes = nodes_of(run)
    failed = [node.exit for node in sorted(nodes, key=lambda each: each.ended_ns or 0) if node.exit]
    own = [each for each in failed if each != STOPPED]  # a node that was stopped because another failed
    if failed:
        return (own or failed)[0]
    # The nodes of an observed command may end after its first one.
    expected = 0 if run.record.backend == BACKEND else run.record.job["experiment"]["nodes"]
    return code if len(nodes) >= expected else code or 1


def what_is_open(run: Run) -> str:
    """A sentence on a training that ended with status 0; empty if nothing is open, or it is an exercise's."""
    asked = run.record.experiment
    if not isinstance(asked, OwnTraining):
        return ""
    took, window = max(_steps(run), default=0), asked.window
    if not took:
        logged = last_logged(run.err)
        return _NO_STEP + (f"; in its log: {logged.sentence}" if logged is not None else "")
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
    """What is wrong with its disk, of a run that could not write how it ended; empty if it can be written now."""
    own, probe, why = run.status(), run.path / f".probe-{os.getpid()}", None
    if own is None or own.state not in FINAL:
        try:
            probe.write_bytes(bytes(LEAST_BYTES))
        except OSError as error:
            why = _OF_DISK.get(error.errno or 0)
        with suppress(OSError):
            probe.unlink()
    return f"it ended without an exit status: the disk of {run.path} {why}, and start it again" if why else ""


def first_exits(log: Path) -> list[tuple[str, int]]:
    """Of each launcher whose ranks failed, its host and the exit status of the rank that was the first, negative for a
    signal, as it wrote them into the log; the earliest first. Its own exit status is 1 in any case. A host is empty if
    accelerate started a single process."""
    text = ERR.end(log, LOG_BYTES)
    found = sorted((at, host.decode("utf-8", "replace"), int(code)) for at, host, _, code in ROOT_CAUSE.findall(text))
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


def why_it_ended(run: Run, state: State, exit_code: int | None) -> str:
    """What the heartbeats say of an end that was not as wished: who is stuck where, or who failed first."""
    if state == "completed":
        return ""
    hang = read_hang(run.path)
    if hang is not None and hang.until_ns is None:
        return hang.since_clock
    if state != "failed":
        return ""
    if of_container := _why_not_begun(run):
        return of_container
    death, means = first_death(run.path, run.err), what_it_means(exit_code)
    if death is None or (exit_code is None and not death.is_certain):
        last = last_line(run.err)
        says = f"its log ends with: {last}" if last else "no rank reported an error, and its log shows none"
        return means or ("" if exit_code is None else f"exit {exit_code}: {says}")
    if death.shortage is not None:
        means = _change(run, death.shortage)
    return "; ".join(filter(None, [death.sentence, means]))


def _change(run: Run, shortage: Shortage) -> str:
    """What would have needed less memory, as far as its kind tells it."""
    asked, site = run.record.experiment, run.record.site
    own = isinstance(asked, OwnTraining)
    if shortage.kind == "growth":
        return f"the same command with {'--memory' if own else '--memory-snapshot'} shows what keeps it"
    if shortage.kind != "peak":
        return ""
    if shortage.of == "host" and run.record.job.get("device") == "cuda":
        return "fewer workers of data loaders need less, or request more (memory in the site file)"
    words = None if own or asked is None else command_of(asked, site.name, site.defaults)
    if words is None:
        return "a smaller batch needs less"
    end = words.index("--") if "--" in words else len(words)
    command = f"{COMMAND} {shlex.join([*words[:end], '--plan', *words[end:]])}"
    return f"{command} shows what it needs, and if that is too much the nearest setting that fits"


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
                return cut(sentence.format(**names, **place, runtime=container.runtime), MOST_TOLD)
    return cut(f"the container did not start on {where}: {printable(said[0])}", MOST_TOLD) if said else ""
