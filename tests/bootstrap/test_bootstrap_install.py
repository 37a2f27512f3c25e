"""How .venv comes to be, stays in step with pyproject.toml, and survives what happens to installations."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.bootstrap.bootstrap_checkout import ROOT, Answer, Checkout, make_checkout
from tests.waiting import limit_s, wait_until

NO_NETWORK = {"HARNESS_PIP_ARGS": "--index-url http://127.0.0.1:9/ --timeout 1"}


def leftovers(checkout: Checkout) -> list[str]:
    return sorted(path.name for path in checkout.root.glob(".venv*"))


def test_the_first_start_makes_it_and_says_so(with_pip: Checkout) -> None:
    first = with_pip.run("status")
    assert first.code == 0, first.stderr
    assert (first.said["alpha"], first.said["torch"]) == (True, False), "the launcher's needs, and no extra"
    assert f"making {with_pip.venv}" in first.stderr
    assert leftovers(with_pip) == [".venv"]


def test_it_follows_the_lists_of_pyproject_and_nothing_else(checkout: Checkout) -> None:
    checkout.run("status")
    pyproject = checkout.root / "pyproject.toml"
    pyproject.write_text(pyproject.read_text().replace("110", "120"))
    assert not checkout.run("status", **NO_NETWORK).installed_something, "a change that is no dependency"
    checkout.depend_on("tiny-beta")
    assert checkout.run("status", **NO_NETWORK).code == 1
    checkout.depend_on()
    assert not checkout.run("status", **NO_NETWORK).installed_something, "a failed refresh keeps what worked"
    checkout.depend_on("tiny-beta")
    refreshed = checkout.run("status")
    assert refreshed.installed_something and refreshed.said["beta"]
    extra = checkout.run("--install", "train")
    assert (extra.code, extra.stdout) == (0, "")
    assert checkout.run("status").said["torch"]


def test_two_starts_at_once_install_once(with_pip: Checkout) -> None:
    both = [with_pip.start("status") for _ in range(2)]
    answers = [Answer(p.wait(limit_s(120)), *p.communicate(timeout=limit_s())) for p in both]
    assert [answer.code for answer in answers] == [0, 0], answers
    waited = sum("waiting for" in answer.stderr for answer in answers)
    assert sum(answer.installed_something for answer in answers) == 1 + waited, answers
    assert all(answer.said["alpha"] for answer in answers)


def test_a_start_that_waits_names_the_process_that_it_waits_for(checkout: Checkout) -> None:
    lock = checkout.root / ".venv.lock"
    lock.symlink_to(f"anna@login7:{os.getpid()}")
    waiting = checkout.start("status")
    assert waiting.stderr is not None
    said = next((line for line in waiting.stderr if "waiting for" in line), "")
    lock.unlink(missing_ok=True)
    _, rest = waiting.communicate(timeout=limit_s(120))
    assert waiting.returncode == 0, said + rest
    assert f"waiting for anna@login7:{os.getpid()}" in said


@pytest.mark.parametrize("owner", ["a dead process of this host", "a silent one of another host"])
def test_the_lock_of_a_start_that_is_gone_is_taken_over(checkout: Checkout, owner: str) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait(timeout=limit_s())
    user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True, timeout=limit_s()).stdout.strip()
    lock = checkout.root / ".venv.lock"
    if owner.startswith("a dead"):
        lock.symlink_to(f"{user}@{socket.gethostname()}:{dead.pid}")
    else:
        lock.symlink_to("anna@login7:1")
        os.utime(lock, (time.time() - 3600,) * 2, follow_symlinks=False)
    answer = checkout.run("status", LOGNAME=user)
    assert answer.code == 0, answer.stderr
    assert "taking over" in answer.stderr
    assert leftovers(checkout) == [".venv"]


@pytest.mark.parametrize("copied", [False, True])
def test_an_ended_installation_leaves_what_there_was(with_pip: Checkout, warm: Checkout, copied: bool) -> None:
    """Nothing, or in a copied checkout the environment that was copied with it."""
    if copied:
        shutil.copytree(warm.venv, with_pip.venv, symlinks=True)
    ended = with_pip.start("status")
    wait_until((with_pip.venv / "harness-building").exists, "the installation")
    os.killpg(ended.pid, signal.SIGTERM)
    ended.communicate(timeout=limit_s())
    # The shell ends at once, the installer cleans up afterwards.
    left = [".venv"] if copied else []
    wait_until(lambda: leftovers(with_pip) == left, "the installer's end", lambda: leftovers(with_pip))
    assert (with_pip.venv / "harness-launcher.stamp").exists() is copied


@pytest.mark.parametrize(
    "file", ["", "[install]\ntarget = {}\n[global]\nuser = true\nroot = {}\n", "[install]\nprefix = {}\n"]
)
def test_pips_own_settings_send_nothing_elsewhere(with_pip: Checkout, tmp_path: Path, file: str) -> None:
    """As variables, or in the user's file."""
    place = str(tmp_path / "elsewhere")
    own = {f"PIP_{name}": place for name in ("TARGET", "PREFIX", "ROOT", "PYTHON")} | {"PIP_USER": "1"}
    if file:
        (tmp_path / "pip.conf").write_text(file.format(place, place))
        own = {"PIP_CONFIG_FILE": str(tmp_path / "pip.conf")}
    answer = with_pip.run("status", **own)
    assert answer.code == 0 and answer.said["alpha"], answer.stderr
    assert not Path(place).exists()


def test_an_environment_without_what_it_needs_is_not_taken_for_complete(checkout: Checkout, tmp_path: Path) -> None:
    """Here by the user's own option for pip; the next start without it makes the environment."""
    arguments = f"{checkout.environment['HARNESS_PIP_ARGS']} --target={tmp_path / 'elsewhere'}"
    for _ in range(2):
        wrong = checkout.run("status", HARNESS_PIP_ARGS=arguments)
        assert (wrong.code, wrong.stdout) == (1, "")
        assert "ended well, but tiny-alpha is not in " in wrong.stderr and "Traceback" not in wrong.stderr
        assert not list(checkout.root.glob(".venv*/*.stamp"))
    assert checkout.run("status").said["alpha"]


def test_a_moved_checkouts_environment_stays_until_the_new_one_stands(checkout: Checkout) -> None:
    """Also beside one that a start left that was killed after it had made the newer."""
    assert checkout.run("status").code == 0
    (checkout.root / ".venv.old").mkdir()
    moved = replace(checkout, root=checkout.root.rename(checkout.root.with_name("moved")))
    marked = moved.venv / "a package of mine"
    marked.touch()
    assert moved.run("status", HARNESS_PIP_ARGS="--no-index").code == 1
    assert marked.exists() and leftovers(moved) == [".venv"]
    assert moved.run("status").said["alpha"] and leftovers(moved) == [".venv"]


@pytest.mark.parametrize(
    ("depends", "words", "environment", "sentence"),
    [
        ([], ["-e", "1"], NO_NETWORK, "no package index can be reached from here; run this once on a machine with"),
        ([], ["--install", "trian"], {}, "'trian'"),
        ([], ["status"], {"HARNESS_VENV": "{here}/home"}, "HARNESS_VENV"),
        ([], ["status"], {"HARNESS_VENV": "{here}/a:b"}, "a:b"),
        ([], ["status"], {"HARNESS_VENV": "{here}/a\nb"}, "a\\nb"),
        pytest.param(["tiny-gamma"], ["status"], {}, "tiny-gamma", marks=pytest.mark.long),
    ],
)
def test_what_cannot_be_made_is_one_sentence_and_leaves_nothing(
    with_pip: Checkout,
    tmp_path: Path,
    depends: list[str],
    *,
    words: list[str],
    environment: dict[str, str],
    sentence: str,
) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").touch()
    with_pip.depend_on(*depends)
    before = sorted(tmp_path.rglob("*"))
    answer = with_pip.run(*words, **{name: text.replace("{here}", str(tmp_path)) for name, text in environment.items()})
    assert answer.code == 1
    last = answer.stderr.splitlines()[-1]
    assert last.startswith("slurm.sh: ") and sentence in last
    assert "Traceback" not in answer.stderr
    assert sorted(path for path in tmp_path.rglob("*") if "__pycache__" not in path.parts) == before


REASON = "import json, sys, install; print(install._reason(json.loads(sys.argv[1]), 'pip'))"


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("ReadTimeoutError(\"HTTPConnectionPool(host='127.0.0.1'): Read timed out.\")", "no package index can be"),
        ("ProtocolError('Connection broken: ConnectionResetError(104)')", "no package index can be reached"),
        ("error: Failed to fetch: `http://127.0.0.1:9/tiny-alpha/`", "no package index can be reached"),
        ("ERROR: [Errno 28] No space left on device", "the disk is full: pip could not install"),
        ("ERROR: No matching distribution found for tiny-gamma", "pip could not install what pyproject.toml asks"),
        ("  × No solution found: tiny-gamma was not found", "pip could not install what pyproject.toml asks for:"),
    ],
)
def test_the_reason_of_a_failed_installation_is_one_sentence(line: str, sentence: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", REASON, json.dumps(["Collecting tiny-alpha", line])],
        cwd=ROOT / "scripts" / "bootstrap", capture_output=True, text=True, check=True, timeout=limit_s(),
    )  # fmt: skip
    assert done.stdout.startswith(sentence)


def test_a_copied_checkout_makes_its_own_after_a_question_to_a_person(checkout: Checkout, tmp_path: Path) -> None:
    checkout.run("status")
    copy = Checkout(tmp_path / "copy", checkout.environment)
    shutil.copytree(checkout.root, copy.root, symlinks=True)
    words = ["script", "-qec", shlex.join(copy.command("status")), "/dev/null"]
    asked = subprocess.run(
        words, check=False, input="n\n", env=copy.env(), capture_output=True, text=True, timeout=limit_s(300)
    )
    assert asked.returncode == 1 and "Make it again? [Y/n]" in asked.stdout and "nothing was installed" in asked.stdout
    answer = copy.run("status")
    assert answer.code == 0, answer.stderr
    assert f"was made as {checkout.venv} and works only there: making it again installs about 300 MB" in answer.stderr
    assert answer.said["prefix"] == str(copy.venv)
    assert str(checkout.root) not in answer.said["path"]
    assert leftovers(copy) == [".venv"]


def test_a_link_to_another_checkouts_environment_is_named(checkout: Checkout, warm: Checkout) -> None:
    """The link and its target are not changed."""
    checkout.venv.symlink_to(warm.venv)
    refused = checkout.run("status", **NO_NETWORK)
    assert refused.code == 1
    assert f"is a link to {warm.venv}" in refused.stderr and "HARNESS_VENV" in refused.stderr
    assert checkout.venv.is_symlink()
    assert warm.run("status", **NO_NETWORK).code == 0


def test_an_environment_made_by_hand_is_kept(checkout: Checkout) -> None:
    python = checkout.environment["HARNESS_PYTHON"]
    subprocess.run([python, "-m", "venv", "--without-pip", checkout.venv], check=True, timeout=limit_s())
    mark = checkout.venv / "mine"
    mark.touch()
    answer = checkout.run("status")
    assert answer.code == 0, answer.stderr
    assert answer.said["alpha"] and mark.exists()


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("plain", "elsewhere/venv/"),
        ("plain", "{here}/absolute venv"),
        ("a:b", "{here}/venv"),
        ("a\nb\n", "{here}/venv"),
    ],
)
def test_harness_venv_names_another_place_also_where_the_checkouts_folder_could_have_none(
    tmp_path: Path, wheels: Path, uv_folder: Path, name: str, asked: str
) -> None:
    odd = make_checkout(tmp_path / name, wheels, uv_folder)
    where = asked.replace("{here}", str(tmp_path))
    answer = odd.run("status", cwd=tmp_path, HARNESS_VENV=where)
    assert answer.code == 0, answer.stderr
    assert answer.said["prefix"] == str((tmp_path / where).resolve())
    assert str(odd.root) in answer.said["path"]
    assert not odd.venv.exists()
