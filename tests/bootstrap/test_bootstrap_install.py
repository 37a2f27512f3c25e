"""How .venv comes to be, stays in step with pyproject.toml, and survives what happens to installations."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bootstrap.bootstrap_checkout import NOBODY, ROOT, Checkout, make_checkout
from tests.waiting import limit_s, wait_until

OFFLINE = {"HARNESS_PIP_ARGS": "--no-index"}


def test_pip_brings_uv_and_uv_the_rest(tmp_path: Path, wheels: Path) -> None:
    """On a machine without uv; from a mirror that only pip's own file names."""
    made = make_checkout(tmp_path / "made", wheels)
    (mirror := tmp_path / "mirror").mkdir()
    (links := tmp_path / "links").symlink_to(wheels)  # pip splits at blanks
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(mirror), "uv"]
    if subprocess.run(pip, check=False, capture_output=True, timeout=limit_s(300)).returncode:
        pytest.skip("no package index can be reached from here")
    (tmp_path / "pip.conf").write_text(f"[global]\nno-index = true\nuser = true\nfind-links =\n  {links}\n  {mirror}\n")
    path = ":".join(each for each in os.environ["PATH"].split(":") if not Path(each, "uv").exists())
    answer = made.run("status", PATH=path, PIP_CONFIG_FILE=str(tmp_path / "pip.conf"), HARNESS_PIP_ARGS="")
    assert answer.code == 0 and answer.said["alpha"], answer.stderr
    assert (made.venv / "bin" / "uv").exists() and "uv cannot" not in answer.stderr
    assert "packages for the launcher: done in" in answer.stderr


def test_pip_installs_where_uv_fails(checkout: Checkout) -> None:
    """Here because it has no such option."""
    answer = checkout.run("status", HARNESS_PIP_ARGS=f"{checkout.environment['HARNESS_PIP_ARGS']} --prefer-binary")
    assert answer.code == 0 and answer.said["alpha"], answer.stderr
    assert "uv cannot install here (" in answer.stderr


def test_it_follows_the_lists_of_pyproject(checkout: Checkout) -> None:
    first = checkout.run("status")
    assert (first.said["alpha"], first.said["torch"]) == (True, False), "the launcher's needs, and no extra"
    assert sorted(path.name for path in checkout.root.glob(".venv*")) == [".venv"]
    pyproject = checkout.root / "pyproject.toml"
    pyproject.write_text(pyproject.read_text().replace("110", "120"))
    assert checkout.run("status", **OFFLINE).code == 0, "a change that is no dependency"
    checkout.depend_on("tiny-beta")
    assert checkout.run("status", **OFFLINE).code == 1
    checkout.depend_on()
    assert checkout.run("status", **OFFLINE).code == 0, "a failed refresh keeps what worked"
    extra = checkout.run("--install", "train")
    assert (extra.code, extra.stdout) == (0, "")
    checkout.depend_on("tiny-beta")
    refreshed = checkout.run("status").said
    assert refreshed["beta"] and refreshed["torch"]
    assert (checkout.venv / "harness-stamp").read_text().endswith("\n launcher train")


def test_every_list_is_read_as_a_parser_reads_it(checkout: Checkout, tmp_path: Path) -> None:
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 has no TOML parser to compare with")
    text = Path(shutil.copy(ROOT / "pyproject.toml", checkout.root)).read_text(encoding="utf-8")
    project = tomllib.loads(text)["project"]
    stub = checkout.with_uv(f'for word; do [[ $word != */wanted ]] || cat "$word" >{tmp_path}/read; done; exit 1')
    assert stub.run("--install", "train", "test", **OFFLINE).code == 1
    extras = project["optional-dependencies"]
    assert (tmp_path / "read").read_text().splitlines() == [*project["dependencies"], *extras["train"], *extras["test"]]


def test_two_starts_at_once_install_one_after_the_other(checkout: Checkout) -> None:
    both = [checkout.start("status") for _ in range(2)]
    said = [each.communicate(timeout=limit_s(120)) for each in both]
    assert [each.returncode for each in both] == [0, 0] and '"alpha": true' in said[0][0] + said[1][0], said


@pytest.mark.parametrize("host", ["login7", os.uname().nodename])
def test_a_start_waits_for_the_owner_of_the_lock_and_replaces_a_dead_one(checkout: Checkout, host: str) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait(timeout=limit_s())
    lock = checkout.venv / "harness-lock"
    lock.mkdir(parents=True)
    (lock / "owner").write_text(f"{host} {dead.pid}\n")
    waiting = checkout.start("status")
    assert waiting.stderr is not None
    said = waiting.stderr.readline()
    if host == "login7":
        shutil.rmtree(lock)
    _, rest = waiting.communicate(timeout=limit_s(120))
    assert waiting.returncode == 0, said + rest
    where = f"which installs into {checkout.venv} (if it is dead: rm -r {lock})"
    assert said == f"slurm.sh: waiting for process {dead.pid} on {host}, {where}\n"
    assert not lock.exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_start_that_is_ended_leaves_nothing_that_counts(
    checkout: Checkout, tmp_path: Path, number: signal.Signals
) -> None:
    ended = checkout.with_uv(f"touch {tmp_path}/here; sleep 60").start("status")
    wait_until((tmp_path / "here").exists, "the installation")
    os.killpg(ended.pid, number)
    _, said = ended.communicate(timeout=limit_s())  # the installer, which has the same standard error, is gone, too
    assert ended.returncode == 130 and said.endswith("Interrupted; the next start installs what is missing.\n")
    assert not (checkout.venv / "harness-lock").exists()
    assert checkout.run("status").said["alpha"]


@pytest.mark.parametrize(
    ("words", "environment", "sentence"),
    [
        (["-e", "5"], OFFLINE, "No matching distribution found for tiny-alpha"),
        (["-e", "5"], {"HARNESS_PIP_ARGS": "--index-url http://127.0.0.1:9/ --retries=0"}, "tiny-alpha"),
        (["-e", "5"], {"HARNESS_PIP_ARGS": "'a"}, "unmatched single quote"),
        (["--install", "trian"], {}, "pyproject.toml has no list trian."),
        (["status"], {"HARNESS_VENV": "{here}/home"}, "HARNESS_VENV"),
        (["status"], {"HARNESS_VENV": "{here}/a:b"}, "HARNESS_VENV"),
        (["status"], {"HARNESS_VENV": "/dev/null/a"}, "HARNESS_VENV"),
    ],
)
def test_what_cannot_be_made_is_one_sentence_and_does_not_count(
    checkout: Checkout, tmp_path: Path, words: list[str], *, environment: dict[str, str], sentence: str
) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").touch()
    answer = checkout.run(*words, **{name: text.replace("{here}", str(tmp_path)) for name, text in environment.items()})
    assert (answer.code, answer.stdout) == (1, "")
    lines = answer.stderr.splitlines()
    assert all(line.startswith("slurm.sh: ") for line in lines) and sentence in lines[-1]
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["thesis.tex"]
    assert checkout.run("status").said["alpha"]


@pytest.mark.parametrize("asked", ["elsewhere/venv/", "{here}/absolute venv", "{here}/of mine"])
def test_harness_venv_names_another_place_also_one_made_by_hand(checkout: Checkout, tmp_path: Path, asked: str) -> None:
    python = checkout.environment["HARNESS_PYTHON"]
    subprocess.run([python, "-m", "venv", "--without-pip", tmp_path / "of mine"], check=True, timeout=limit_s())
    where = asked.replace("{here}", str(tmp_path))
    answer = checkout.run("status", cwd=tmp_path, HARNESS_VENV=where)
    assert answer.code == 0, answer.stderr
    assert answer.said["prefix"] == str((tmp_path / where).resolve())
    assert str(checkout.root) in answer.said["path"] and not checkout.venv.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a program as another user")
def test_one_persons_environment_serves_those_who_may_only_read(open_place: Path, wheels: Path) -> None:
    if not Path("/usr/bin/python3").exists():
        pytest.skip("no Python here that another user may run")
    mine = make_checkout(open_place / "course", wheels)
    own = {**mine.environment, "HARNESS_PYTHON": "/usr/bin/python3", "HOME": "/nonexistent"}
    mine, theirs = Checkout(mine.root, own), Checkout(mine.root, own, NOBODY)
    refused = theirs.run("status")
    assert refused.code == 1 and len(refused.stderr.splitlines()) == 1
    assert "HARNESS_VENV=~/harness-venv" in refused.stderr
    assert mine.run("status").code == 0
    answer = theirs.run("status", cwd="/")
    assert (answer.code, answer.stderr) == (0, "")
    mine.depend_on("tiny-beta")
    changed = theirs.run("status", cwd="/")
    assert changed.code == 1 and "ask its owner, or set HARNESS_VENV=~/harness-venv" in changed.stderr
    mine.venv.chmod(0o700)
    closed = theirs.run("status", cwd="/")
    assert closed.code == 1 and "set HARNESS_VENV=~/harness-venv" in closed.stderr
