"""The program of a node: it runs nsys, a container and a training inside each other, with the monitor beside them, and
writes how they ended.

    node.py [OPTION…] nsys profile WORD… :: singularity exec WORD… :: accelerate launch WORD…

Each part before `::` may be left out; `:then:` begins a second command. `%q{SLURM_NODEID}` in a word is the node's
number. The job's script starts it by its path, once on each node, with -E: PYTHONPATH and a module's PYTHONHOME are the
training's. Light: it imports no pydantic.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[3]
if __name__ == "__main__":
    sys.path[0] = str(ROOT)

from harness.common.errors import HarnessError, WorkError
from harness.common.run_folder.heartbeats import MEMORY
from harness.common.run_folder.run_files import EVIDENCE, HANG, MONITORS
from harness.common.system import processes
from harness.common.system.programs import shell_status
from harness.common.system.secrets import kept_from_nsys, masked_words, told_of_nsys
from harness.launch.argv import OF_NODE
from harness.launch.on_node import leftovers
from harness.launch.on_node.node_monitor import Monitor
from harness.launch.on_node.node_status import NodeStatusFile
from harness.launch.profilers import below_nsys
from harness.launch.profilers.nsys import import_reports, options_of_start, prepare, program_of, without_whole_node
from harness.launch.profilers.record import output_of, session_of
from harness.run.files import DiskError

PART, THEN = "::", ":then:"
END_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
STOPPED = 143  # by TERM, as a shell reports it
KILL_S = 40.0  # PyTorch's launcher itself kills ranks that have not ended 30 s after its own signal
NSYS_TIMES = 3
_NUMBER, _SET_UP = "HARNESS_NODE", "HARNESS_SET_UP"  # which node of this machine it is; the site's lines have run
_SELF = (sys.executable, "-E")
_OWN = ("HARNESS_JOB_ID", "HARNESS_PORT", "HARNESS_SUPERVISED")  # of the script, not of what it starts


class NodeArguments(NamedTuple):
    """The options of the program, and the words after them; `_parse` says what each is."""

    setup: list[str]
    cleanup: list[str]
    hz: float
    on_hang: str
    nsys_per: str
    folder: str | None
    nodes: int
    only: bool
    words: list[str]


class CommandParts(NamedTuple):
    """One command's parts; empty lists: it has none."""

    nsys: list[str]
    container: list[str]
    training: list[str]


def commands_of(words: Sequence[str]) -> list[CommandParts]:
    """The commands of a command line.

    >>> commands_of(["nsys", "profile", "::", "python", "x.py"])
    [CommandParts(nsys=['nsys', 'profile'], container=[], training=['python', 'x.py'])]
    """
    commands: list[CommandParts] = []
    for command in _split(words, THEN):
        *before, training = _split(command, PART)
        nsys = before.pop(0) if before and before[0][:2] == ["nsys", "profile"] else []
        commands.append(CommandParts(nsys, [word for part in before for word in part], training))
    return commands


def _split(words: Sequence[str], at: str) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    for word in words:
        if word == at:
            parts.append([])
        else:
            parts[-1].append(word)
    return parts


class NodeRun:
    """One node of a run while its commands run. stopped: it was asked to end."""

    def __init__(self, arguments: NodeArguments, number: int) -> None:
        self.run, self.number, self.arguments = Path(os.environ["RUN_DIR"]), number, arguments
        self.status = NodeStatusFile(self.run, number)
        self.host = self.status.host
        self.watched = f"{self.host}-{number}" if arguments.nodes > 1 else self.host
        self.stopped = False
        self._child: subprocess.Popen[bytes] | None = None
        self._starting = threading.Lock()
        self._program = ""
        for signum in END_SIGNALS:
            signal.signal(signum, self._end)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, END_SIGNALS)
        # If Slurm tracks a step's processes by cgroup, a signal reaches only the first of them, which is this one. The
        # canary, which only waits, shows whether the others got the signal too: no process gets it twice.
        nowhere = subprocess.DEVNULL
        self._canary = subprocess.Popen(
            ["tail", f"--pid={os.getpid()}", "-f", "/dev/null"], stdin=nowhere, stdout=nowhere, stderr=nowhere
        )

    def _end(self, *_: object) -> None:
        if not self.stopped:
            self.stopped = True
            threading.Thread(target=self._pass_on, daemon=True).start()

    def _pass_on(self) -> None:
        time.sleep(1)
        with self._starting:
            child = self._child
        # A step of its own, which Slurm asks itself: a kill of srun would end its tasks with KILL.
        is_step = child is not None and Path(self._program).name == "srun"
        if self._canary.poll() is None and child is not None and not is_step:
            processes.signal_all([child.pid, *processes.descendants(child.pid)], signal.SIGTERM)
        if HANG.path(self.run).exists() and any(EVIDENCE.paths(self.run)):
            leftovers.kill_stuck(os.environ[MEMORY])

    def start(self, words: Sequence[str], environ: dict[str, str]) -> int:
        """Run a program to its end; returns its exit status as a shell reports it."""
        folder = self.arguments.folder
        try:
            with self._starting:
                if self.stopped:
                    return STOPPED
                self._program = words[0]
                self._child = subprocess.Popen(words, env=environ, cwd=folder)
        except OSError as error:
            if folder is not None and error.filename == folder:
                what = f"{self.host} does not see the folder {folder}, where the training starts"
                self.say(f"{what}: put it on a file system that all nodes share")
                return 1
            self.say(f"{words[0]}: cannot be started on {self.host} ({error.strerror})")
            return 126 if isinstance(error, PermissionError) else 127
        code = shell_status(processes.wait(self._child))
        self._child = None
        return code

    def say(self, sentence: str) -> None:
        print(sentence, file=sys.stderr, flush=True)

    def leave_out(self, sentence: str) -> None:
        self.status.left_out.append(sentence)
        self.say(f"nsys: {sentence}")

    # --- the commands ---------------------------------------------------------------------------------------------

    def go(self, commands: Sequence[CommandParts]) -> int:
        """Run them one after the other, with the monitor beside them; returns the first exit status that is not 0."""
        environ = {name: text for name, text in os.environ.items() if name not in _OWN}
        environ[MEMORY] = _memory()
        os.environ[MEMORY] = environ[MEMORY]
        of_this_node = (MONITORS.path(self.run, self.watched), self.status.path.parent)
        for folder in (*of_this_node, self.run / "nsys", self.run / "torch"):
            with suppress(OSError):  # a full disk: who needs the folder says so
                folder.mkdir(parents=True, exist_ok=True)
        monitor = Monitor(self, self.arguments.hz, self.arguments.on_hang)
        code = 0
        for command in commands:
            try:
                code = self._command(command, dict(environ))
            except (HarnessError, OSError) as error:
                self.say(f"nsys: {error}")
                code = 1
            if code:
                break
        code = STOPPED if self.stopped and code == 1 else code  # accelerate's and torchrun's status is 1 in any case
        self._clean_up()
        for signum in END_SIGNALS:  # as soon as one node has ended, srun asks the others once more to end
            signal.signal(signum, signal.SIG_IGN)
        monitor.end()
        self._canary.kill()
        self._canary.wait()
        self._end_what_is_left(code, environ[MEMORY])
        self._write(code)
        if code not in (0, STOPPED) and (self.arguments.nodes > 1 or os.environ.get("SLURM_NNODES", "1") != "1"):
            time.sleep(3)  # other nodes often fail from the same cause a moment later: let them write it
        return code

    def _command(self, command: CommandParts, environ: dict[str, str]) -> int:
        nsys, container, training = command
        if container:
            environ.pop("PYTHONHOME", None)  # of a module: the Python in the container is another one
        program = [*container, *training]
        code = (
            self._profiled(CommandParts(nsys, container, training), environ) if nsys else self._shown(program, environ)
        )
        if container and (output := output_of([*nsys, *container])):  # of pyxis, the container's words have nsys's
            import_reports(output)
        return code

    def _profiled(self, command: CommandParts, environ: dict[str, str]) -> int:
        nsys, container, training = command
        names = kept_from_nsys(environ)
        for name in names:
            del environ[name]
        if names:
            self.say(f"nsys: {told_of_nsys(names)}")
        installed, (words, said) = prepare(nsys)
        for sentence in said:
            self.leave_out(sentence)
        command = CommandParts(words, container, training)
        if self.arguments.nsys_per == "rank":
            return self._per_rank(command, environ)
        return self._recorded(command, options_of_start(installed, words), environ)

    def _recorded(self, command: CommandParts, again: list[str] | None, environ: dict[str, str]) -> int:
        """Run the training under nsys, which is started again when it has ended before it began the training."""
        words, container, training = command
        output = output_of(words) or self.run / "nsys/report"
        waits = output.with_name(f".{output.name}.waits")
        program = [*container, *training]
        count = str(len(container) - 1) if container else "0"
        below = [sys.executable, "-I", below_nsys.__file__, str(waits), count, *program]
        code = 1
        for left in reversed(range(NSYS_TIMES)):
            with suppress(OSError):  # a full disk: then what has begun cannot be told
                waits.touch()
            there = waits.exists()
            name = f"harness-{os.getpid()}-{left}"
            session = session_of(words, name, again)
            self._tell([*session.words, *program])
            if session.beside is not None:
                threading.Thread(target=session.beside, args=(self._records,), daemon=True).start()
            code = self.start([*session.words, *below], environ | session.variables)
            if code or waits.exists():
                leftovers.end_agent(name)
            if self.stopped or not there or not waits.exists():
                break
            code, ended_with = code or 1, code
            time.sleep(1)
            if self.stopped or not waits.exists():  # it has begun late, without nsys: it is not begun twice
                break
            then = "it is started again" if left else f"{NSYS_TIMES} times: --profiler torch records without it"
            self.say(f"nsys ended with status {ended_with} before it had started the training; {then}")
        waits.unlink(missing_ok=True)
        with suppress(OSError, ValueError):  # the binds that this nsys needed
            ran = Path(f"{waits}.ran")
            self.status.commands[-1][-len(program) :] = masked_words(json.loads(ran.read_text(encoding="utf-8")))
            ran.unlink()
        return code

    def _records(self) -> bool:
        """Whether nsys lives, or is about to."""
        return self._child is None or self._child.poll() is None

    def _per_rank(self, command: CommandParts, environ: dict[str, str]) -> int:
        """The launcher starts one nsys for each rank, in its container if there is one, with the words in a file."""
        words, container, training = command
        nsys = str(program_of(Path(shutil.which("nsys") or "nsys")))
        first = [nsys, *words[1:]]
        file = self.run / f"nsys_node{self.number}.json"
        file.write_text(json.dumps({"first": first, "others": without_whole_node(first)}, indent=1) + "\n", "utf-8")
        if container:
            environ["HARNESS_NSYS"] = nsys
            try:
                container = below_nsys.with_binds(container, len(container) - 1, environ)
            except ValueError as error:
                raise WorkError(str(error).removeprefix("nsys: ")) from None
        self.status.commands.append(masked_words(first))
        return self._shown([*container, *training], environ)

    def _shown(self, words: list[str], environ: dict[str, str]) -> int:
        self._tell(words)
        return self.start(words, environ)

    def _tell(self, words: list[str]) -> None:
        """Keep what is started in the node's status."""
        self.status.commands.append(masked_words(words))
        self._write(None)

    # --- the end --------------------------------------------------------------------------------------------------

    def _clean_up(self) -> None:
        for line in self.arguments.cleanup:
            if subprocess.run(["bash", "-c", line], check=False).returncode:
                self.say(f"warning: {self.host}: a line of node_cleanup failed")

    def _end_what_is_left(self, code: int, heartbeats: str) -> None:
        """Stuck, a rank hears no TERM; of a launcher or container that was killed, the ranks may still train. A
        launcher without a handler of its own ends before the ranks that were asked with it."""
        stuck = self.stopped and HANG.path(self.run).exists()
        if stuck or (code >= 128 and not self.stopped):
            leftovers.end_orphans(heartbeats, os.getpid())
        elif self.stopped:
            leftovers.wait_for_ranks(heartbeats, KILL_S)
        shutil.rmtree(heartbeats, ignore_errors=True)

    def _write(self, code: int | None) -> None:
        try:
            self.status.write(code)
        except DiskError as error:
            self.say(str(error))


def _memory() -> str:
    """A folder of its own in the node's memory: each rank leaves its heartbeats there, and the monitor reads them."""
    try:
        return tempfile.mkdtemp(prefix="harness-", dir="/dev/shm")
    except OSError:
        return tempfile.mkdtemp(prefix="harness-")


def start_all(nodes: int) -> int:
    """Run every node of a job on this machine, each as a process group; returns the first exit status that is not 0."""
    argv = [*_SELF, *sys.argv]
    devices = [each for each in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if each]
    share = len(devices) // nodes
    started: list[subprocess.Popen[bytes]] = []
    ends_s: list[float] = []  # when what is left is killed

    def stop(*_: object) -> None:
        ends_s[:] = ends_s or [time.monotonic() + KILL_S]
        for each in started:
            _signal_group(each, signal.SIGTERM)

    for signum in END_SIGNALS:
        signal.signal(signum, stop)
    for node in range(nodes):
        own = ",".join(devices[node * share : (node + 1) * share])
        environ = os.environ | {_NUMBER: str(node)} | ({"CUDA_VISIBLE_DEVICES": own} if devices else {})
        started.append(subprocess.Popen(argv, env=environ, preexec_fn=os.setpgrp))  # noqa: PLW1509 - one thread
    code = 0
    while None in [each.poll() for each in started]:
        failed = next((each.returncode for each in started if each.returncode), 0)
        if failed and not code:
            code = shell_status(failed)
            stop()  # the others would wait for it for ever
        if ends_s and time.monotonic() > ends_s[0]:
            for each in started:
                _signal_group(each, signal.SIGKILL)
        time.sleep(0.1)
    return code or shell_status(next((each.returncode for each in started if each.returncode), 0))


def _signal_group(process: subprocess.Popen[bytes], number: int) -> None:
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)


def _set_up(lines: Sequence[str], argv: Sequence[str]) -> None:
    """Become a shell that runs the site's lines and then this program again. A signal that comes meanwhile waits."""
    signal.pthread_sigmask(signal.SIG_BLOCK, END_SIGNALS)
    warn = 'echo "warning: $host: a line of node_setup failed" >&2'
    text = "".join(f"if ! {{\n:\n{line}\n}}; then {warn}; fi\n" for line in lines)  # ":" for one that is only a comment
    os.environ[_SET_UP] = "1"
    os.execvp("bash", ["bash", "-c", f'host=$(hostname -s)\n{text}exec "$@"', "bash", *_SELF, *argv])


def _parse(argv: Sequence[str]) -> NodeArguments:
    parser = argparse.ArgumentParser(prog="node.py", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--setup", action="append", default=[], metavar="LINE", help="of the site, before all else")
    parser.add_argument("--cleanup", action="append", default=[], metavar="LINE", help="of the site, after all else")
    parser.add_argument("--hz", type=float, default=1.0, help="samples of the devices per second")
    parser.add_argument("--on-hang", choices=("report", "stop"), default="report", help="what to do if it is stuck")
    parser.add_argument("--nsys-per", choices=("node", "rank"), default="node", help="what one nsys records")
    parser.add_argument("--folder", help="where the commands start")
    parser.add_argument("--nodes", type=int, default=1, help="run so many nodes on this machine")
    parser.add_argument("--only", action="store_true", help="run the words without monitor and status")
    parser.add_argument("words", nargs=argparse.REMAINDER)
    return NodeArguments(**vars(parser.parse_args(argv)))


def main(argv: Sequence[str]) -> int:
    """Returns the node's exit status as a shell reports it."""
    arguments = _parse(argv)
    if arguments.nodes > 1 and _NUMBER not in os.environ:
        return start_all(arguments.nodes)
    if arguments.setup and not os.environ.pop(_SET_UP, ""):
        _set_up(arguments.setup, sys.argv)
    number = os.environ.pop(_NUMBER, "") or os.environ.get("SLURM_NODEID", "0")
    of_node = {"SLURM_NODEID": number, "SLURMD_NODENAME": os.environ.get("SLURMD_NODENAME", "")}
    words = [OF_NODE.sub(lambda variable: of_node[variable[1]], word) for word in arguments.words]
    if arguments.only:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, END_SIGNALS)
        os.execvp(words[0], words)
    return NodeRun(arguments, int(number)).go(commands_of(words))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
