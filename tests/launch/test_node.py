"""The program of a node: what it starts, what it writes, and how it ends. Each nsys here is a stand-in."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.launch.on_node.node import CommandParts, commands_of
from tests.launch.launch_shared import ROOT
from tests.launch.stand_ins import executable
from tests.waiting import limit_s, wait_until

# Fails the first times as nsys 2022.4 does, then starts the program; where it is told so, its report then fails.
NSYS = """#!/bin/bash
case "$*" in
  --version) echo version 2022.4.2; exit ;;
  *--help) printf '    -o, --output=\\n'; exit ;;
esac
echo x >>"$0.starts"
if (($(wc -l <"$0.starts") <= $(cat "$0.failures"))); then
  echo "End of file" >&2
  name=harness-$PPID-$((3 - $(wc -l <"$0.starts"))) # its agent stays, as that of a real nsys
  PYTHON -c 'import time; time.sleep(3600)' "--session-name=$name" "$0" >/dev/null 2>&1 &
  until tr "\\0" "\\n" <"/proc/$!/cmdline" | grep -q "^--session-name"; do sleep 0.02; done
  exit "$(cat "$0.status")"
fi
shift 2 # profile --output
[[ -e $0.lost ]] || exec "$@"
"$@"
exit 3
"""


@pytest.fixture
def nsys(tmp_path: Path) -> Path:
    # This interpreter, not the python3 of PATH: that of a version manager is a script which starts others in its place,
    # and while it does, the agent's process has no words by which anybody could find it.
    path = executable(tmp_path / "nsys", NSYS.replace("PYTHON", shlex.quote(sys.executable)))
    (tmp_path / "nsys.failures").write_text("0")
    (tmp_path / "nsys.status").write_text("1")
    return path


def node(folder: Path, *words: str, options: tuple[str, ...] = (), **more: Any) -> subprocess.Popen[str]:
    """The program of a node, with a monitor that is a stand-in only in that nothing is below it that trains."""
    argv = [sys.executable, "-E", str(ROOT / "harness/launch/on_node/node.py"), *options, *words]
    env = {**os.environ, "RUN_DIR": str(folder / "run"), "SLURM_NODEID": "1", "PYTHONPATH": "/somebody/elses"}
    env |= {"PATH": f"{folder}:{os.environ['PATH']}", **more.pop("env", {})}
    pipe = subprocess.PIPE
    return subprocess.Popen(argv, env=env, stdout=pipe, stderr=pipe, text=True, start_new_session=True, **more)


def ended(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    out, err = process.communicate(timeout=limit_s(60))
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def status(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "run/node-status/1.json").read_text())
    return found


def recorded(nsys: Path, *program: str, output: str = "") -> subprocess.CompletedProcess[str]:
    words = ["nsys", "profile", f"--output={output or nsys.parent / 'run/nsys/profile_node%q{SLURM_NODEID}'}"]
    return ended(node(nsys.parent, *words, "::", *program))


def has_agent(nsys: Path) -> bool:
    return not subprocess.run(["pgrep", "-f", f"session-name.* {nsys}"], check=False, timeout=limit_s()).returncode


def starts(nsys: Path) -> int:
    return len(nsys.with_name("nsys.starts").read_text().splitlines())


STOPPED = """#!/bin/bash
trap "sleep 0.5; exit 5" TERM INT USR1
echo x >>"$0.starts"
while :; do sleep 0.1; done
"""
SEVEN = ("sh", "-c", "echo it ran; exit 7")


@pytest.mark.parametrize("ends_with", [0, 1])
@pytest.mark.parametrize(("failures", "code", "ran"), [(0, 7, 1), (1, 7, 1), (2, 7, 1), (3, 1, 0)])
def test_with_a_fake_nsys_the_training_runs_once_or_not_at_all(
    nsys: Path, failures: int, code: int, ran: int, ends_with: int
) -> None:
    nsys.with_name("nsys.failures").write_text(str(failures))
    nsys.with_name("nsys.status").write_text(str(ends_with))
    done = recorded(nsys, *SEVEN)
    assert done.returncode == code, "that of the training, or of nsys"
    assert done.stdout.count("it ran") == ran
    assert starts(nsys) == min(failures + 1, 3)
    said = f"nsys ended with status {ends_with} before it had started the training; "
    assert done.stderr.count(f"{said}it is started again\n") == min(failures, 2)
    assert done.stderr.count(f"{said}3 times: --profiler torch records without it\n") == (failures == 3)
    assert [path.name for path in (nsys.parent / "run/nsys").iterdir()] == [], "no mark is left"
    assert not has_agent(nsys)
    assert status(nsys.parent)["exit"] == code


def test_a_fake_nsys_is_not_started_again_after_the_training_nor_where_no_mark_can_be_made(nsys: Path) -> None:
    nsys.with_name("nsys.lost").touch()
    done = recorded(nsys, *SEVEN)
    assert (done.returncode, done.stdout, starts(nsys)) == (3, "it ran\n", 1)
    nsys.with_name("nsys.starts").unlink()
    nsys.with_name("nsys.failures").write_text("2")
    done = recorded(nsys, *SEVEN, output="/proc/no/profile")
    assert (done.returncode, done.stderr, starts(nsys), has_agent(nsys)) == (1, "End of file\n", 1, False)


BOX = """#!/bin/bash
while [[ $1 == --bind ]]; do shift 2; done
exec "${@:2}" # after the image
"""
IMPORTER = """#!/bin/bash
cp "$3" "$5" # --force-overwrite --input-file IN --output-file OUT
"""


@pytest.mark.parametrize(("rank", "inside"), [("", False), ("_rank0", False), ("", True)])
def test_what_a_fake_nsys_could_not_import_in_a_container_becomes_a_report_outside(
    tmp_path: Path, rank: str, inside: bool
) -> None:
    programs = {"nsys": NSYS, "box": BOX, "../host-linux-x64/QdstrmImporter": IMPORTER}
    folder = tmp_path / "target-linux-x64"
    (tmp_path / "host-linux-x64").mkdir()
    for name, text in programs.items():
        executable(folder / name, text)
    (folder / "nsys.failures").write_text("0")
    made = folder / "run/nsys"
    output = f"--output={made}/profile_node%q{{SLURM_NODEID}}{rank.replace('0', '%q{RANK}')}"
    options = ("--nsys-per", "rank") if rank else ()
    train = ("sh", "-c", f"echo r >{made}/profile_node1{rank}.qdstrm; echo other >{made}/profile_node10.qdstrm")
    nsys, box = ("nsys", "profile", output), ("box", "image")
    words = (*box, "::", *nsys) if inside else (*nsys, "::", *box)
    done = ended(node(folder, *words, "::", *train, options=options))
    assert done.returncode == 0, done.stderr
    said = (
        f"nsys: profile_node1{rank}.qdstrm, which nsys itself could not import, became profile_node1{rank}.nsys-rep\n"
    )
    assert said in done.stderr
    assert {path.name for path in made.iterdir()} == {f"profile_node1{rank}.nsys-rep", "profile_node10.qdstrm"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_asked_to_stop_it_waits_for_nsys_and_starts_none_again(nsys: Path, number: int) -> None:
    nsys.write_text(NSYS.partition("echo x")[0] + STOPPED)
    process = node(nsys.parent, "nsys", "profile", f"--output={nsys.parent}/x", "::", "true")
    wait_until(nsys.with_name("nsys.starts").exists, "the start of nsys")
    os.killpg(process.pid, number)
    assert ended(process).returncode == 5
    assert starts(nsys) == 1


def test_the_words_are_split_into_commands_and_their_parts() -> None:
    nsys, box, train = ["nsys", "profile", "-t", "cuda"], ["apptainer", "exec", "x.sif"], ["accelerate", "launch"]
    assert commands_of([*nsys, "::", *box, "::", *train]) == [CommandParts(nsys, box, train)]
    assert commands_of(["a", ":then:", *box, "::", "b"]) == [CommandParts([], [], ["a"]), CommandParts([], box, ["b"])]
    inside = ["srun", "--x", "::", "python3", "nsys.py", *nsys, "::", *train]
    assert commands_of(inside) == [CommandParts([], ["srun", "--x", "python3", "nsys.py", *nsys], train)]


def test_a_node_writes_the_words_that_it_started_and_what_was_left_out(nsys: Path) -> None:
    words = ["nsys", "profile", "--trace=cuda", f"--output={nsys.parent}/x%q{{SLURM_NODEID}}"]
    done = ended(node(nsys.parent, *words, "::", "sh", "-c", "exit 0", "--token", "hf_abcdefghijklmnopqrstuvwxyz0123"))
    assert done.returncode == 0, done.stderr
    found = status(nsys.parent)
    (ran,) = found["commands"]
    assert ran[:3] == ["nsys", "profile", f"--output={nsys.parent}/x1"]
    assert ran[3:6] == ["sh", "-c", "exit 0"]
    assert "hf_abc" not in json.dumps(found), "no secret"
    assert found["left_out"] == ["this nsys (2022.4.2) has no --trace: left out"]
    assert found["left_out"][0] in done.stderr
    first = ended(node(nsys.parent, "echo", "--name", "it's", "--flag", env={"SLURM_NODEID": "0"}))
    assert first.stdout == "--name it's --flag\n"


def test_every_node_of_this_machine_runs_and_one_that_fails_ends_the_others(tmp_path: Path) -> None:
    up = shlex.quote(str(tmp_path / "up"))
    fails = f"until [ -e {up} ]; do sleep 0.1; done; exit 7"
    waits = f'trap "echo asked; exit 143" TERM; touch {up}; sleep 3600 & wait'
    code = f"if [ %q{{SLURM_NODEID}} = 1 ]; then {fails}; else {waits}; fi"
    done = ended(node(tmp_path, "bash", "-c", code, options=("--nodes", "2")))
    assert done.returncode == 7
    assert done.stdout == "asked\n"
    ends = {path.name: json.loads(path.read_text())["exit"] for path in (tmp_path / "run/node-status").glob("[0-9]*")}
    assert ends == {"0.json": 143, "1.json": 7}


TELLS = "echo ${HARNESS_JOB_ID-} ${HARNESS_SUPERVISED-} ${PYTHONHOME-} ${HARNESS_HEARTBEATS:+heartbeats} $RUN_DIR"
OF_THE_SCRIPT = {"HARNESS_JOB_ID": "7", "HARNESS_SUPERVISED": "7", "PYTHONHOME": "/module"}
SHARE = ["sh", "-c", "echo %q{SLURM_NODEID} $CUDA_VISIBLE_DEVICES"]


@pytest.mark.parametrize(
    ("words", "options", "there", "env", "code", "out", "said"),
    [
        (["no-such-launcher"], (), "", {}, 127, [], "no-such-launcher: cannot be started on"),
        (["true"], ("--folder", "/nowhere"), "", {}, 1, [], "does not see the folder /nowhere, where the training"),
        (["singularity", "exec", "::", "true"], (), "", {}, 127, [], "singularity: cannot be started on"),
        (SHARE, ("--nodes", "2"), "", {"CUDA_VISIBLE_DEVICES": "4,GPU-a1,6,7"}, 0, ["0 4,GPU-a1", "1 6,7"], ""),
        (["box", "image", "::", "sh", "-c", TELLS], (), "box", OF_THE_SCRIPT, 0, ["heartbeats {run}"], ""),
    ],
)
def test_what_a_node_starts_has_its_share_and_what_is_not_there_is_one_sentence(
    tmp_path: Path, *, words: list[str], options: tuple[str, ...], there: str, env: dict[str, str], code: int,
    out: list[str], said: str,
) -> None:  # fmt: skip
    if there:
        executable(tmp_path / there, '#!/bin/sh\nshift; exec "$@"\n')
    done = ended(node(tmp_path, *words, options=options, env={"PATH": f"{tmp_path}:/usr/bin:/bin", **env}))
    assert sorted(done.stdout.splitlines()) == [line.format(run=tmp_path / "run") for line in out]
    assert (done.returncode, said in done.stderr, "Traceback" in done.stderr) == (code, True, False), done.stderr
