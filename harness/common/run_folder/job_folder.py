"""The run's folder of a job that was not launched by the harness: all of its processes find the same one, by the job's
id, without a word between them.

    <runs>/own/profiler/<script>-<id>/     the run
    <runs>/own/.jobs/<id>/<number>.json    a training of the job; beside it, a file for each process of it

Files are made under another name and linked: one of several processes wins, and no reader sees half of a file. Standard
library only, Python 3.8: it also runs inside of somebody's training.
"""

from __future__ import annotations

import getpass
import json
import os
import re
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from harness.common.run_folder.heartbeats import MEMORY
from harness.common.run_folder.run_files import HEARTBEATS, LINES, METRICS, OBSERVE, RECORD, STATUS
from harness.common.system.files import write_whole_text
from harness.common.system.secrets import holds_secret

VARIABLE = "HARNESS_OBSERVE"  # the settings' file of the run that a process belongs to
WORD = "observe"  # the word before the command
OFF = ("off", "0", "no")  # its values for a user who does not want it
BACKEND = "observed"  # the name of what says the state of such runs
WINDOW = {"skip": 5, "wait": 0, "warmup": 2, "active": 10}  # as of `run -- train.py`
HERE = "here"  # in the name of a run outside of a batch job
_FAILED = "failed.json"  # of a command that failed before anything trained
_LONGEST_NAME = 60
_MOST_TRAININGS = 10_000  # of one job
_OLD_S = 86_400.0  # without a write, of a folder in the node's memory
_MOST_LOOKED_AT = 50  # trainings of this machine that processes of the same launcher may belong to


class NoFolderError(Exception):
    """There is no place for a run, and why."""


class JoinedProcess(NamedTuple):
    """A process's place in a run.

    first_here: the process is the first on its node, and starts what runs beside the training. first: of these it is
    the one that makes the run.
    memory: the node's folder for heartbeats; None: the node has no place for one. node: the node's number in the run.
    claim: the folder with a file for each process.
    """

    path: Path
    job_id: str
    first: bool
    first_here: bool
    node: int
    memory: Path | None
    claim: Path


class GroupMember(NamedTuple):
    """A process among those of one training. group: the same text for all of them; empty: it is alone. name: its own in
    the group, which no other has."""

    group: str
    name: str


def slurm_job(environ: Mapping[str, str]) -> str | None:
    """The job's id as its user types it; None: there is no job around this process.

    >>> slurm_job({"SLURM_JOB_ID": "12", "SLURM_ARRAY_JOB_ID": "11", "SLURM_ARRAY_TASK_ID": "3"})
    '11_3'
    >>> slurm_job({"SLURM_JOB_ID": "13", "SLURM_JOB_ID_HET_GROUP_0": "12"})
    '12'
    """
    array, task = environ.get("SLURM_ARRAY_JOB_ID", ""), environ.get("SLURM_ARRAY_TASK_ID", "")
    if array.isdecimal() and task.isdecimal():
        return f"{array}_{task}"
    number = environ.get("SLURM_JOB_ID_HET_GROUP_0") or environ.get("SLURM_JOB_ID", "")
    return number if number.isdecimal() else None


def member_of(environ: Mapping[str, str]) -> GroupMember:
    """Who this process is, by what torchrun, mpirun, srun or another launcher has set.

    >>> member_of({"SLURM_STEP_ID": "2", "SLURM_PROCID": "5"})
    GroupMember(group='step 2', name='task 5')
    """
    again = environ.get("SLURM_RESTART_COUNT", "0")
    step = environ.get("SLURM_STEP_ID", "")
    if environ.get("RANK", "").isdecimal() and environ.get("MASTER_PORT"):
        restarts = environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        where = [environ.get("TORCHELASTIC_RUN_ID", ""), environ.get("MASTER_ADDR", ""), environ["MASTER_PORT"]]
        return GroupMember(" ".join(["ranks", again, step, *where]), f"rank {environ['RANK']} {restarts}")
    for job, rank in (("PMIX_NAMESPACE", "PMIX_RANK"), ("OMPI_MCA_ess_base_jobid", "OMPI_COMM_WORLD_RANK")):
        if job in environ and environ.get(rank, "").isdecimal():
            return GroupMember(f"mpi {again} {environ[job]}", f"rank {environ[rank]}")
    if step.isdecimal() and environ.get("SLURM_PROCID", "").isdecimal():
        return GroupMember(f"step {step}" + f" again {again}" * (again != "0"), f"task {environ['SLURM_PROCID']}")
    return GroupMember("", f"{socket.gethostname()} {os.getpid()} {time.time_ns()}")


def roots(environ: Mapping[str, str], start_in: str) -> list[Path]:
    """Where such runs may be, the best place first: HARNESS_RUNS alone, else SCRATCH and where the job was started."""
    given = environ.get("HARNESS_RUNS")
    if given:
        return [Path(os.path.expanduser(given)).absolute()]  # noqa: PTH111 - as harness.common.paths has it
    scratch = environ.get("SCRATCH", "")
    return [*([Path(scratch) / "runs"] if Path(scratch).is_absolute() else []), Path(start_in) / "runs"]


def join(environ: Mapping[str, str], label: str, start_in: str) -> JoinedProcess:
    """Find this process's run, or begin it; the folder is there afterwards. label: what trains, for the name.

    Raises NoFolderError: none of the places can be written.
    """
    reasons = []
    for root in roots(environ, start_in):
        if root.parent.is_dir() or environ.get("HARNESS_RUNS"):
            try:
                return _joined(root, environ, label)
            except OSError as error:
                reasons.append(f"{error.filename or root}: {error.strerror}")
    raise NoFolderError("; ".join(reasons) or "there is no folder for its runs")


def _joined(root: Path, environ: Mapping[str, str], label: str) -> JoinedProcess:
    own = root / "own"
    _make_shared(own, root)
    with suppress(OSError), (own / ".gitignore").open("x", encoding="utf-8") as file:
        file.write("*\n")  # no `git add .` of the user's repository shall take traces with it
    job, member = slurm_job(environ), member_of(environ)
    base = own / ".jobs" / (job or HERE)
    _make_shared(base, root)
    number = _claimed(base, member)
    claim = base / str(number)
    # The first training of a job has its id; a later one has a number after it, as runs of one allocation have.
    job_id = f"{HERE}-{number + 1}" if job is None else f"{job}-{number}" if number else job
    about = json.loads(_linked(claim / "name.json", {"name": f"{_safe(label)}-{job_id}"}))
    path = own / "profiler" / str(about["name"])
    _make_shared(path, root)
    memory, first_here = _memory(f"{job_id}-{_checksum(str(path))}")
    node = _node(claim, environ) if first_here else -1
    # Among the first processes of the nodes: these stay to the end, and the run has one that writes it.
    is_first = first_here and _linked_if_new(claim / "first.json", json.dumps({"host": socket.gethostname()}))
    return JoinedProcess(path, job_id, is_first, first_here, node, memory, claim)


def _claimed(base: Path, member: GroupMember) -> int:
    """The number of the process's training in the job."""
    taken = sorted(int(each.stem) for each in base.glob("*.json") if each.stem.isdecimal())
    begin = taken[-1] + 1 if taken else 0
    if member.group:  # the newest first: an older training of the same group has this process's name already
        for number in reversed(taken[-_MOST_LOOKED_AT:]):
            if _group_of(base, number) == member.group and _enters(base / str(number), member):
                return number
    for number in range(begin, begin + _MOST_TRAININGS):
        mine = _linked_if_new(base / f"{number}.json", json.dumps({"group": member.group}))
        if mine or (member.group and _group_of(base, number) == member.group):
            (base / str(number)).mkdir(exist_ok=True)
            if _enters(base / str(number), member):
                return number
    raise OSError(0, "too many trainings in one job", str(base))


def _group_of(base: Path, number: int) -> str | None:
    try:
        return str(json.loads((base / f"{number}.json").read_text(encoding="utf-8"))["group"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _enters(claim: Path, member: GroupMember) -> bool:
    """Write that this process takes part; False: one of its name does already."""
    claim.mkdir(exist_ok=True)
    process = {"host": socket.gethostname(), "pid": os.getpid(), "unix_ns": time.time_ns()}
    return _linked_if_new(claim / f"{_checksum(member.name)}.member", json.dumps(process))


def members_here(claim: Path) -> list[int]:
    """The processes of this node that joined, by their ids."""
    found = []
    for each in claim.glob("*.member"):
        with suppress(OSError, ValueError, KeyError, TypeError):
            about = json.loads(each.read_text(encoding="utf-8"))
            if about["host"] == socket.gethostname():
                found.append(int(about["pid"]))
    return found


def _node(claim: Path, environ: Mapping[str, str]) -> int:
    """A number that no other node of the run has: Slurm's own, unless a part of a heterogeneous job has it already."""
    own = environ.get("SLURM_NODEID", "") if environ.get("SLURM_STEP_ID") else environ.get("GROUP_RANK", "")
    numbers = [*([int(own)] if own.isdecimal() else []), *range(_MOST_TRAININGS)]
    host = socket.gethostname()
    return next((each for each in numbers if _linked_if_new(claim / f"{each}.node", host)), 0)


def _memory(name: str) -> tuple[Path | None, bool]:
    """This run's folder in the node's memory, and whether this process made it. Raises nothing: without a folder of our
    own there are no heartbeats, and each process is the first."""
    for place in ("/dev/shm", tempfile.gettempdir()):
        folder = Path(place) / f"harness-{os.getuid()}-{name}"
        try:
            folder.mkdir(mode=0o700)
            _forget_old(Path(place))
            return folder, True
        except FileExistsError:
            about = folder.lstat()
            if about.st_uid == os.getuid() and folder.is_dir() and not folder.is_symlink():
                return folder, False
        except OSError:
            continue
    return None, True


def _forget_old(parent: Path) -> None:
    """Remove this user's folders of jobs that were killed: a rank that lives writes into its own twice a second."""
    for folder in parent.glob(f"harness-{os.getuid()}-*"):
        with suppress(OSError):
            newest_s = max(path.stat().st_mtime for path in (folder, *folder.iterdir()))
            if time.time() - newest_s > _OLD_S:
                shutil.rmtree(str(folder), ignore_errors=True)


def _make_shared(folder: Path, root: Path) -> None:
    """Make the folder; below a root that several people share, as open as that is."""
    folder.mkdir(parents=True, exist_ok=True)
    with suppress(OSError):
        mode = root.stat().st_mode & 0o7777
        if mode & 0o1022:
            for each in (folder, *folder.parents):
                if each == root or each.stat().st_uid != os.getuid() or each.stat().st_mode & 0o7777 == mode:
                    break
                each.chmod(mode)


def _safe(label: str) -> str:
    name = re.sub(r"[^\w-]", "_", re.sub(r"\.py$", "", label), flags=re.ASCII).strip("-_")
    return name[:_LONGEST_NAME] or "training"


def _checksum(text: str) -> str:
    import hashlib

    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]


def _linked_if_new(path: Path, text: str) -> bool:
    """Write a file as a whole, if it is not there; whether it was not."""
    temporary = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    try:
        os.link(str(temporary), str(path))
    except FileExistsError:
        return False
    except OSError:  # a file system without links
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            return False
    finally:
        temporary.unlink()
    return True


def _linked(path: Path, content: dict[str, Any]) -> str:
    """The text of a file that the first of several processes writes."""
    _linked_if_new(path, json.dumps(content))
    return path.read_text(encoding="utf-8")


# -- the run's first files ---------------------------------------------------------------------------------------------


class RunRequest(NamedTuple):
    """What was asked for. command: the user's, as typed; typed: the whole line. profiler: torch or none. memory: who
    holds it is recorded."""

    command: Sequence[str]
    typed: Sequence[str]
    start_in: str
    profiler: str = "none"
    memory: bool = False
    window: Mapping[str, int] = WINDOW
    on_hang: str = "report"


def settings_of(request: RunRequest, environ: Mapping[str, str]) -> dict[str, Any]:
    """What the observer reads, as `observe.json` has it. Its launcher is python where none starts ranks of this
    command. A job that this job submits inherits its variables, and is another one."""
    first, *rest = [*request.command, ""]
    alone = re.match(r"python[\d.]*$", os.path.basename(first)) and "-m" not in rest  # noqa: PTH119 - a word, no path
    about = {"profiler": request.profiler, "window": dict(request.window), "faults": [], "memory": request.memory}
    return {**about, "launcher": "python" if alone else None, "job": _number_of_job(environ)}


def is_of_this_job(settings: Path, environ: Mapping[str, str]) -> bool:
    """Whether settings that a process has inherited are of the job around it. A run that was launched by us names no
    job."""
    try:
        job = json.loads(settings.read_text(encoding="utf-8")).get("job")
    except (OSError, ValueError, AttributeError):
        return False
    return job in (None, _number_of_job(environ))


def _number_of_job(environ: Mapping[str, str]) -> str | None:
    return environ.get("SLURM_JOB_ID_HET_GROUP_0") or environ.get("SLURM_JOB_ID")


def write_settings(joined: JoinedProcess, request: RunRequest, environ: Mapping[str, str]) -> Path:
    """Write the settings, the same from each process; returns the file."""
    path = OBSERVE.path(joined.path)
    _linked_if_new(path, json.dumps(settings_of(request, environ), indent=1) + "\n")
    return path


def write_run(
    joined: JoinedProcess,
    request: RunRequest,
    environ: Mapping[str, str],
    more: Mapping[str, Any],
    started_ns: int | None = None,
) -> None:
    """Write run.json and status.json of a run that begins. more: further fields of the record. started_ns: unix time of
    its begin; None: now.

    The record is the one of harness/run/record.py, written here without its packages, which a training may not have.
    """
    is_slurm = slurm_job(environ) is not None
    experiment = {
        "exercise": "own",
        "command": list(request.command),
        "start_in": request.start_in,
        "nodes": _nodes(environ),
        "profiler": request.profiler,
        "memory": request.memory,
        "on_hang": request.on_hang,
        **{f"{name}_steps": count for name, count in request.window.items()},
    }
    where = "a job of the user's own" if is_slurm else "this machine"
    record = {
        "job_id": joined.job_id,
        "backend": BACKEND,
        "experiment": experiment,
        "site": {"name": "slurm" if is_slurm else "local", "description": where, "scheduler": BACKEND},
        "job": {"experiment": experiment, "expects": [], "profiler": request.profiler},
        "command": list(request.typed),
        "git": {},
        "versions": {},
        "user": _user(),
        "submit_host": socket.gethostname(),
        "created_ns": time.time_ns(),
        **more,
    }
    _replace(RECORD.path(joined.path), record, 0o600 if holds_secret(request.command) else None)
    about = {"state": "running", "pid": os.getpid(), "host": socket.gethostname()}
    _replace(STATUS.path(joined.path), {**about, "started_ns": started_ns or time.time_ns()})


def write_end(joined: JoinedProcess, state: str, code: int | None, **more: str) -> None:
    """Write how the run ended, with its begin as it is written. more: further fields of the status."""
    path = STATUS.path(joined.path)
    started_ns = (STATUS.as_json.known(path) or {}).get("started_ns")
    about = {"state": state, "exit_code": code, "host": socket.gethostname(), "started_ns": started_ns, **more}
    _replace(path, {**about, "ended_ns": time.time_ns()})


def _replace(path: Path, content: Mapping[str, Any], mode: int | None = None) -> None:
    """Write JSON as a whole or not at all. mode: who may read it; None: as the umask has it. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole_text(path, json.dumps(content, indent=1) + "\n", mode)


def _nodes(environ: Mapping[str, str]) -> int:
    names = ("SLURM_STEP_NUM_NODES", "GROUP_WORLD_SIZE") if "SLURM_STEP_ID" in environ else ("GROUP_WORLD_SIZE",)
    return next((int(environ[name]) for name in names if environ.get(name, "").isdecimal() and int(environ[name])), 1)


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container that knows no names
        return str(os.getuid())


def withdraw(joined: JoinedProcess, environ: Mapping[str, str], code: int) -> None:
    """Remove a run in which nothing trained, and the folders that are empty then. Of a command that failed in a job its
    exit status stays, as the job has failed."""
    shutil.rmtree(str(joined.path), ignore_errors=True)
    own = joined.path.parents[1]
    with suppress(OSError):
        if code and slurm_job(environ):
            _linked_if_new(joined.claim / _FAILED, json.dumps({"exit_code": code}))
        else:
            shutil.rmtree(str(joined.claim), ignore_errors=True)
            joined.claim.with_suffix(".json").unlink()
        for folder in (joined.path.parent, joined.claim.parent, own / ".jobs"):
            folder.rmdir()
        (own / ".gitignore").unlink()
        own.rmdir()
        if not environ.get("HARNESS_RUNS"):
            own.parent.rmdir()


def failed_commands(own: Path, job: str) -> dict[str, int]:
    """The commands of a job that failed before anything trained, with their exit statuses. own: the folder of runs."""
    found = {}
    for path in sorted((own / ".jobs" / job).glob(f"*/{_FAILED}")):
        with suppress(OSError, ValueError, KeyError, TypeError):
            name, code = (json.loads(each.read_text(encoding="utf-8")) for each in (path.with_name("name.json"), path))
            found[str(name["name"])] = int(code["exit_code"])
    return found


def trained(run: Path) -> Iterator[Path]:
    """What the observers of ranks have written, and heartbeats of nodes that had ranks."""
    for file in (METRICS, LINES):
        yield from file.path(run).parent.glob("*")
    for path in HEARTBEATS.paths(run):
        if '"event":"rank"' in path.read_text(encoding="utf-8"):
            yield path


def beside(environ: Mapping[str, str], joined: JoinedProcess, settings: Path, observer: Path) -> dict[str, str]:
    """The variables by which all Python processes below find the observer and the run."""
    before = environ.get("PYTHONPATH")
    found = {VARIABLE: str(settings), "PYTHONPATH": os.pathsep.join([str(observer), *([before] if before else [])])}
    return found if joined.memory is None else {**found, MEMORY: str(joined.memory)}
