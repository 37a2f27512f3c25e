"""The script is fit for an engineer's approval: golden files, shellcheck, and nothing that a shell could misread."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from harness.experiment.exercises import DDP, CommTests, DeepSpeed, Experiment, Megatron, OwnTraining
from harness.launch.argv import Shell, Var, from_site, join, parent, quote, quote_all
from harness.launch.backends.registry import backend_of
from harness.launch.job import REQUEST, Machine, resolve
from harness.launch.render import render
from harness.site.detection import visible_gpus
from harness.site.site import Site, load_site
from tests.launch.golden_scripts import merged, script_of
from tests.launch.launch_shared import ROOT, SITES, Harness, anywhere, site_file
from tests.launch.stand_ins import executable
from tests.waiting import limit_s, wait_until

NASTY = 'it\'s a $(touch evil) `touch evil` "path" $HOME ${USER} $5; echo foo\n* ~ \\ &'

ASKED: dict[str, Experiment] = {
    "0": CommTests(nodes=2),
    "1": DDP(mixed_precision=True, gradient_accumulation_steps=4),
    "2": DeepSpeed(nodes=2, overlap_comm=False),
    "3": Megatron(nodes=2, pp=2, tp=4, nsys2prv=True),
}


def script(asked: Experiment, site: Site, machine: Machine) -> str:
    return render(resolve(asked, site, machine))


def on_laptop(asked: Experiment, site: Site) -> Experiment:
    """tp 4 needs four ranks on a node; a machine of two cores starts two by default."""
    return asked.model_copy(update={"gpus_per_node": 4}) if backend_of(site).RUNS_HERE else asked


# Its Python is nowhere: a launcher is named as beside a Python of a cluster, whatever this checkout has installed.
SUBMITS = Machine(0, 2, True, "/checkout/.venv/harness-python", f"{ROOT}/exercises")


def signed(site: str, exercise: str) -> str:
    loaded = load_site(site)
    return anywhere(script(on_laptop(ASKED[exercise], loaded), loaded, SUBMITS))


@pytest.mark.parametrize("site", [site for site in SITES if (ROOT / f"tests/golden/{site}.txt").is_file()])
@pytest.mark.parametrize("exercise", ASKED)
def test_scripts_are_as_signed_off(site: str, exercise: str) -> None:
    """After a deliberate change: HARNESS_WRITE_GOLDEN=1 pytest tests/launch, then read the diff."""
    golden = ROOT / "tests" / "golden" / f"{site}.txt"
    if os.environ.get("HARNESS_WRITE_GOLDEN"):
        golden.write_text(merged({each: signed(site, each) for each in ASKED}), encoding="utf-8")
    wanted = script_of(exercise, golden.read_text(encoding="utf-8"))
    assert unwrapped(signed(site, exercise)) == unwrapped(wanted)


FOR_NSYS: dict[str, Experiment] = {
    "one nsys for each rank": DDP(
        nsys_per="rank", nic_metrics=True, python_sampling=True, python_trace="pytorch", steps=200
    ),
    "by the clock": DeepSpeed(nodes=2, capture_delay=200, capture_duration=30, steps=1000),
    "for each rank, by the clock, with its own list": Megatron(
        nsys_per="rank", capture_delay=9, python_trace="/lists/it's mine.json"
    ),
}


OWN: dict[str, Experiment] = {
    "a script": OwnTraining(nodes=2, command=("train.py", "--name", "it's"), start_in="/home/u", nsys2prv=True),
    "a module, by accelerate": OwnTraining(command=("-m", "pkg.train"), start_in="/home/u", launcher="accelerate"),
    "a script, by deepspeed": OwnTraining(nodes=2, command=("a b/train.py",), start_in="/home/u", launcher="deepspeed"),
    "a script with a Python of its own and one nsys for each rank": OwnTraining(
        command=("train.py",), start_in="/home/u", python="/venv/bin/python", profiler="nsys", nsys_per="rank"
    ),
    "a command": OwnTraining(nodes=2, command=("mpirun", "x"), start_in="/home/u"),
}


ON_GH200: dict[str, Experiment] = {
    "tf32": DDP(mixed_precision="tf32", profiler="none"),
    "fp8, in one memory": DDP(mixed_precision="fp8", unified_memory=True, profiler="none"),
}


def what_a_node_runs(asked: Experiment, site: str = "leonardo") -> str:
    """Of the script at a site, the variables and the arrays and what starts them."""
    text = anywhere(script(asked, load_site(site), SUBMITS))
    return text[text.index("set -u #") : text.index(REQUEST)]


GOLDEN = [("leonardo", "nsys", FOR_NSYS), ("jupiter", "precision", ON_GH200), ("leonardo", "own", OWN)]


@pytest.mark.parametrize(("site", "name", "asked"), GOLDEN, ids=lambda each: each if isinstance(each, str) else "")
def test_what_a_node_runs_is_as_signed_off(site: str, name: str, asked: Mapping[str, Experiment]) -> None:
    golden = ROOT / "tests" / "golden" / f"{site}-{name}.txt"
    found = "\n".join(f"## {title}\n{what_a_node_runs(each, site)}" for title, each in asked.items())
    if os.environ.get("HARNESS_WRITE_GOLDEN"):
        golden.write_text(found, encoding="utf-8")
    assert unwrapped(found) == unwrapped(golden.read_text(encoding="utf-8"))


def unwrapped(text: str) -> str:
    """Line breaks of a long command depend on the length of the checkout's path."""
    return re.sub(r" \\\n +", " ", text)


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
@pytest.mark.parametrize("site", SITES)
def test_scripts_pass_shellcheck(site: str, machine: Machine, tmp_path: Path) -> None:
    loaded = load_site(site)
    own = list(OWN.values()) if loaded.gpus.vendor == "nvidia" else []
    pairs = [(on_laptop(each, loaded), loaded) for each in (*ASKED.values(), *own)]
    if site == "leonardo":
        pairs += [(each, loaded) for each in FOR_NSYS.values()]
        pairs.append((ASKED["2"], loaded.model_copy(update={"scheduler": "allocation"})))
    files = [tmp_path / f"{number}.sh" for number in range(len(pairs))]
    for file, (each, place) in zip(files, pairs, strict=True):
        file.write_text(script(each, place, machine), encoding="utf-8")
    done = subprocess.run(
        ["shellcheck", *map(str, files)], capture_output=True, text=True, check=False, timeout=limit_s()
    )
    assert done.returncode == 0, done.stdout


def by_bash(code: str) -> str:
    """What bash prints."""
    return subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True, timeout=limit_s()).stdout


def test_quoted_words_are_read_back_as_they_were() -> None:
    words = [NASTY, "", "-n", "a b", "$HOME", "é", "'", "\n", "--second=2", *(f"--flag{i}" for i in range(20)), "last"]
    assert by_bash(f"printf '%s\\0' {quote_all(list(words))}").split("\0")[:-1] == words
    variable = quote(join("a b/", Var("RUN"), "/$(x)"))
    assert by_bash(f"RUN='x  y'; printf '<%s>' {variable}") == "<a b/x  y/$(x)>", (
        "it stays one word, its neighbours text"
    )


def test_a_site_path_expands_variables_and_nothing_else() -> None:
    assert from_site("/plain/path") == "/plain/path"
    assert from_site("$WORK/m;x/${USER}") == Shell((Var("WORK"), "/m;x/", Var("USER")))
    assert quote(from_site("$WORK/$(touch evil)")) == '"${WORK}"' + "'/$(touch evil)'"
    paths = ["/a/b", "$WORK/d/text", "$WORK/text", "$PREFIX"]
    assert [parent(from_site(path)) for path in paths] == ["/a", from_site("$WORK/d"), from_site("$WORK"), None]


def test_hostile_paths_run_as_text(tmp_path: Path) -> None:
    """The script runs in a folder named NASTY, with stand-ins for all programs."""
    place = tmp_path / NASTY
    python = executable(place / "python", '#!/bin/bash\nprintf "%s\\0" "$@" >>"$RECORD"\n')
    data = place / "data.json"
    data.write_text("[]")
    machine = Machine(0, 2, False, str(python), str(place / "runs"))
    job = resolve(DDP(data=str(data)), load_site("local"), machine)
    record = tmp_path / "record"
    env = {"PATH": os.environ["PATH"], "HARNESS_JOB_ID": "local-1", "HARNESS_PORT": "1", "RECORD": str(record)}
    path = place / "job.sbatch"
    path.write_text(render(job), encoding="utf-8")
    for supervised in ({}, {"HARNESS_SUPERVISED": "local-1"}):  # the script starts its program, which starts it again
        done = subprocess.run(["bash", path], env=env | supervised, cwd=tmp_path, check=False, timeout=limit_s(60))
        assert done.returncode == 0
    words = record.read_text(encoding="utf-8").split("\0")
    assert [words[0], words[1]] == [f"{ROOT}/harness/launch/on_node/supervise.py", str(path)]
    assert str(data) in words
    assert str(place / "runs" / job.experiment.folder / "profiler" / job.name_for("local-1")) in words
    assert not list(tmp_path.rglob("evil"))


@pytest.mark.parametrize(
    ("named", "seen"),
    [
        ("2,3,5", ["2", "3", "5"]),
        (" GPU-a, MIG-b ,2", ["GPU-a", "MIG-b", "2"]),
        ("0,-1,1", ["0"]),  # CUDA reads up to the first entry that names no GPU
        ("0,,1", ["0"]),
        *((none, []) for none in ("", "-1", "NoDevFiles", "none")),
    ],
)
def test_a_run_sees_only_gpus_its_shell_sees(named: str, seen: list[str]) -> None:
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": named}) == seen


def start_node(text: str, tmp_path: Path, program: str = 'echo "ran $*"', **more: Any) -> subprocess.Popen[str]:
    """What a script starts on a node, with a stand-in for the launcher."""
    executable(tmp_path / "bin" / "accelerate", f"#!/bin/bash\n{program}\n")
    start = text.index("TRAINING=(")
    env = {"RUN_DIR": str(tmp_path), "HARNESS_PYTHON": sys.executable}
    env |= {"PATH": os.environ["PATH"], "SLURM_NODEID": "1", "MASTER_ADDR": "here", "MASTER_PORT": "1"}
    code = text[start:].replace("srun ", "run ")
    argv = ["bash", "-c", f'run() {{ while [[ $1 == --* ]]; do shift; done; exec "$@"; }}\n{code}']
    pipe = subprocess.PIPE
    return subprocess.Popen(argv, env=env, stdout=pipe, stderr=pipe, text=True, **more)


def node_of(text: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """The result of a node that was not stopped."""
    node = start_node(text, tmp_path)
    out, err = node.communicate(timeout=limit_s(60))
    return subprocess.CompletedProcess(node.args, node.returncode, out, err)


def with_lines(tmp_path: Path, **lines: list[str]) -> str:
    """The script of a small training at a site with these lines."""
    fields = {"name": "x", "description": "x", "device": "cpu", "profiler": "none"} | lines
    machine = Machine(0, 2, False, str(tmp_path / "harness-python"), str(tmp_path))
    return script(DDP(gpus_per_node=1), Site.model_validate(fields), machine)


def test_every_node_sets_itself_up_and_a_line_that_fails_is_only_warned_of(tmp_path: Path) -> None:
    text = with_lines(
        tmp_path,
        node_setup=["# as the handbook says", "echo before; false", ": $NOT_SET_ANYWHERE"],
        node_cleanup=["#", "exit_code_of_nothing", "false $NOT_SET_ANYWHERE", "echo after"],
    )
    done = node_of(text, tmp_path)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert said[0] == "before"
    assert "train.py" in said[1]
    assert said[-1] == "after"
    assert done.stderr.count("a line of node_setup failed") == 1
    assert done.stderr.count("a line of node_cleanup failed") == 2
    assert (tmp_path / "node-status" / "1.json").is_file()


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ({"setup": ["if true; then"]}, "setup"),
        ({"setup": ["cat <<END"]}, "setup"),
        ({"node_setup": ["true", "for i in"]}, "node_setup 'for i in'"),
        ({"setup": ["fi"], "node_cleanup": ["echo ("]}, "node_cleanup 'echo (' and setup"),
    ],
)
def test_a_line_that_bash_cannot_read_is_named_before_anybody_waits_for_it(
    tmp_path: Path, harness: Harness, lines: dict[str, list[str]], said: str
) -> None:
    site = site_file(tmp_path, scheduler="local", device="cpu", **lines)
    for more in ([], ["--dry-run"]):
        done = harness("-e", "1", "--site", site, *more)
        assert (done.returncode, f"site x: bash cannot read its {said} (" in done.stderr) == (2, True)
        assert not (tmp_path / "runs").exists()
    together = ["shopt -s extglob", "if true; then", "  echo !(é)", "fi"]
    assert harness("-e", "1", "--dry-run", "--site", site_file(tmp_path, setup=together)).returncode == 0


def test_a_node_that_is_stopped_while_it_sets_itself_up_trains_nothing(tmp_path: Path) -> None:
    go = tmp_path / "go"
    waits = f"until [ -e {shlex.quote(str(go))} ]; do sleep 0.1; done"
    text = with_lines(tmp_path, node_setup=["echo ready", waits], node_cleanup=["echo after"])
    node = start_node(text, tmp_path)
    assert node.stdout is not None
    before = iter(node.stdout.readline, "ready\n")
    assert not any("train.py" in line for line in before)
    node.terminate()
    go.touch()
    out, err = node.communicate(timeout=limit_s(60))
    assert node.returncode == 143, err
    assert "train.py" not in out
    assert out.endswith("after\n")
    assert json.loads((tmp_path / "node-status" / "1.json").read_text())["exit"] == 143


TRAINING = """[[ $* == *train.py* ]] || exit 0
rank() { trap 'echo rank asked' TERM; echo rank up; until [ -e GO ]; do sleep 0.1; done; echo rank ended; }
trap 'echo launcher asked' TERM
rank &
while ! wait; do :; done
"""


def sleeps(pid: int) -> bool:
    """Whether it waits in the kernel. Python runs no handler of a signal that comes just before it waits there."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"


@pytest.mark.parametrize("whom", ["its first process, as with proctrack/cgroup", "every process"])
def test_a_training_is_asked_to_stop_once_whomever_slurm_asks(tmp_path: Path, whom: str) -> None:
    go = tmp_path / "go"
    training = TRAINING.replace("GO", shlex.quote(str(go)))
    node = start_node(with_lines(tmp_path), tmp_path, training, start_new_session=True)
    assert node.stdout is not None
    assert "rank up" in map(str.strip, iter(node.stdout.readline, "rank ended\n"))
    wait_until(lambda: sleeps(node.pid), "the node's program to wait for its training")
    ask = os.killpg if whom == "every process" else os.kill
    ask(node.pid, signal.SIGTERM)
    asked = [node.stdout.readline().strip() for _ in range(2)]
    go.touch()
    rest, err = node.communicate(timeout=limit_s(60))
    assert (sorted(asked), rest) == (["launcher asked", "rank asked"], "rank ended\n"), err


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
def test_a_sites_python_of_the_job_stands_wherever_the_submitting_one_stood(
    asked: Experiment, machine: Machine
) -> None:
    site = load_site("leonardo")
    own = site.model_copy(update={"job_python": "$WORK/arm64/harness-python"})
    there, here = (script(asked, each, machine).partition(REQUEST)[0] for each in (own, site))
    assert unwrapped(there) == unwrapped(here.replace(machine.python, '"$WORK/arm64/harness-python"'))


def test_a_job_whose_python_lacks_the_packages_says_so_before_anything_else(tmp_path: Path) -> None:
    argv = [sys.executable, "-S", str(ROOT / "harness/launch/on_node/supervise.py"), "job.sbatch"]
    env = {"HARNESS_PYTHON": "/bare/python"}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=limit_s(60))
    assert done.returncode == 1
    assert done.stderr.startswith("/bare/python is no Python >= 3.10 with the harness's packages on ")
    assert done.stderr.endswith("name one in the site's job_python\n")
