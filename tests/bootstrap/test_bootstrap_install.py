"""How .venv comes to be, stays in step with pyproject.toml, and survives what happens to installations."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
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
    assert first.said["alpha"], "the launcher's dependency is missing"
    assert not first.said["torch"], "the training extra was not asked for"
    assert f"making {with_pip.venv}" in first.stderr
    assert leftovers(with_pip) == [".venv"]


def test_a_changed_pyproject_refreshes_it(checkout: Checkout) -> None:
    checkout.run("status")
    checkout.depend_on("tiny-beta")
    second = checkout.run("status")
    assert second.installed_something
    assert second.said["beta"]
    assert not checkout.run("status").installed_something


def test_a_change_that_is_no_dependency_installs_nothing(checkout: Checkout) -> None:
    checkout.run("status")
    pyproject = checkout.root / "pyproject.toml"
    pyproject.write_text(pyproject.read_text().replace("110", "120"))
    assert not checkout.run("status", **NO_NETWORK).installed_something


def test_install_brings_extras(checkout: Checkout) -> None:
    answer = checkout.run("--install", "train")
    assert (answer.code, answer.stdout) == (0, "")
    assert checkout.run("status").said["torch"]


def test_an_unknown_extra_is_named(warm: Checkout) -> None:
    answer = warm.run("--install", "trian")
    assert answer.code == 1
    assert "'trian'" in answer.stderr


def test_two_starts_at_once_install_once(with_pip: Checkout) -> None:
    both = [with_pip.start("status") for _ in range(2)]
    answers = [Answer(p.wait(limit_s(120)), *p.communicate(timeout=limit_s())) for p in both]
    assert [answer.code for answer in answers] == [0, 0], answers
    assert sum(answer.installed_something for answer in answers) == 1 + sum(
        "waiting for" in answer.stderr for answer in answers
    ), answers
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


def test_a_lock_whose_owner_died_is_taken_over(checkout: Checkout) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait(timeout=limit_s())
    user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True, timeout=limit_s()).stdout.strip()
    (checkout.root / ".venv.lock").symlink_to(f"{user}@{socket.gethostname()}:{dead.pid}")
    answer = checkout.run("status", LOGNAME=user)
    assert answer.code == 0, answer.stderr
    assert "taking over" in answer.stderr
    assert leftovers(checkout) == [".venv"]


def test_a_silent_lock_of_another_host_is_taken_over(checkout: Checkout) -> None:
    lock = checkout.root / ".venv.lock"
    lock.symlink_to("anna@login7:1")
    os.utime(lock, (time.time() - 3600,) * 2, follow_symlinks=False)
    assert checkout.run("status").code == 0


@pytest.mark.long
def test_a_killed_installation_is_done_again(with_pip: Checkout) -> None:
    killed = with_pip.start("status")
    wait_until((with_pip.venv / "harness-building").exists, "the installation")
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate(timeout=limit_s())
    assert (with_pip.venv / "harness-building").exists(), "it was over before it could be killed"
    again = with_pip.run("status")
    assert again.code == 0, again.stderr
    assert again.said["alpha"]
    assert leftovers(with_pip) == [".venv"]


def test_an_ended_installation_leaves_nothing(with_pip: Checkout) -> None:
    ended = with_pip.start("status")
    wait_until((with_pip.venv / "harness-building").exists, "the installation")
    os.killpg(ended.pid, signal.SIGTERM)
    ended.communicate(timeout=limit_s())
    # The shell ends at once, the installer cleans up afterwards.
    wait_until(lambda: not leftovers(with_pip), "the installer's end", lambda: leftovers(with_pip))


def test_no_network_is_one_sentence_that_names_the_way_out(with_pip: Checkout) -> None:
    answer = with_pip.run("-e", "1", **NO_NETWORK)
    last = answer.stderr.splitlines()[-1]
    assert answer.code == 1
    assert last.startswith("slurm.sh: no package index can be reached")
    assert "HARNESS_PIP_ARGS" in last
    assert "Traceback" not in answer.stderr
    assert leftovers(with_pip) == []


class _Index(BaseHTTPRequestHandler):
    """A package index whose downloads stand still or, under /reset/, are cut off."""

    def do_GET(self) -> None:
        place, _, name = self.path.strip("/").rpartition("/")
        if not name.endswith(".whl"):
            file = f"{name.replace('-', '_')}-1.0-py3-none-any.whl"
            self._answer(f'<a href="{file}">{file}</a>'.encode())
            return
        self._answer(b"PK", promised=100_000)
        if place.startswith("reset"):
            at_once = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
            self.connection.close()
        else:
            time.sleep(3)  # it stands still: for longer than the installer waits

    def _answer(self, body: bytes, promised: int | None = None) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(promised or len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def broken_index() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Index) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.mark.long  # as without a network
@pytest.mark.parametrize("place", ["stalled", "reset"])
def test_an_index_that_breaks_off_is_one_that_cannot_be_reached(
    with_pip: Checkout, broken_index: str, place: str
) -> None:
    asked = f"--index-url {broken_index}/{place} --timeout 1 --retries 0 --no-cache-dir"
    answer = with_pip.run("status", HARNESS_PIP_ARGS=asked)
    assert answer.code == 1
    assert answer.stderr.splitlines()[-1].startswith("slurm.sh: no package index can be reached"), answer.stderr
    assert leftovers(with_pip) == []


def test_a_refresh_without_network_keeps_what_worked(checkout: Checkout) -> None:
    checkout.run("status")
    checkout.depend_on("tiny-beta")
    assert checkout.run("status", **NO_NETWORK).code == 1
    checkout.depend_on()
    assert not checkout.run("status", **NO_NETWORK).installed_something


@pytest.mark.long
def test_a_package_that_does_not_exist_is_named(with_pip: Checkout) -> None:
    with_pip.depend_on("tiny-gamma")
    answer = with_pip.run("status")
    assert answer.code == 1
    assert "tiny-gamma" in answer.stderr.splitlines()[-1]


def test_a_copied_checkout_makes_its_own(checkout: Checkout, tmp_path: Path) -> None:
    checkout.run("status")
    copy = Checkout(tmp_path / "copy", checkout.environment)
    shutil.copytree(checkout.root, copy.root, symlinks=True)
    answer = copy.run("status")
    assert answer.code == 0, answer.stderr
    assert answer.said["prefix"] == str(copy.venv)
    assert str(checkout.root) not in answer.said["path"]


def test_a_link_to_another_checkouts_environment_is_named(checkout: Checkout, warm: Checkout, tmp_path: Path) -> None:
    """The link and its target are not changed."""
    warm.run("status")
    checkout.venv.symlink_to(warm.venv)
    refused = checkout.run("status", **NO_NETWORK)
    assert refused.code == 1
    assert f"is a link to {warm.venv}" in refused.stderr
    assert "HARNESS_VENV" in refused.stderr
    assert checkout.venv.is_symlink()
    assert warm.run("status", **NO_NETWORK).code == 0


def test_an_environment_made_by_hand_is_kept(checkout: Checkout) -> None:
    python = checkout.environment["HARNESS_PYTHON"]
    subprocess.run([python, "-m", "venv", "--without-pip", checkout.venv], check=True, timeout=limit_s())
    mark = checkout.venv / "mine"
    mark.touch()
    answer = checkout.run("status")
    assert answer.code == 0, answer.stderr
    assert answer.said["alpha"]
    assert mark.exists()


@pytest.mark.parametrize("asked", ["elsewhere/venv", "elsewhere/venv/", "{}/absolute venv"])
def test_harness_venv_names_another_place(checkout: Checkout, tmp_path: Path, asked: str) -> None:
    where = asked.format(tmp_path)
    answer = checkout.run("status", cwd=tmp_path, HARNESS_VENV=where)
    assert answer.code == 0, answer.stderr
    assert answer.said["prefix"] == str((tmp_path / where).resolve())
    assert not checkout.venv.exists()


def test_a_folder_that_is_no_environment_is_left_alone(checkout: Checkout, tmp_path: Path) -> None:
    precious = tmp_path / "home" / "thesis.tex"
    precious.parent.mkdir()
    precious.touch()
    answer = checkout.run("status", HARNESS_VENV=str(precious.parent))
    assert answer.code == 1
    assert "HARNESS_VENV" in answer.stderr
    assert precious.exists()


@pytest.mark.parametrize("name", ["a:b", "a\nb"])
def test_a_path_where_no_environment_can_live_is_named(checkout: Checkout, tmp_path: Path, name: str) -> None:
    answer = checkout.run("status", HARNESS_VENV=str(tmp_path / name))
    assert answer.code == 1
    assert repr(name)[1:-1] in answer.stderr.splitlines()[-1]
    assert list(tmp_path.iterdir()) == [checkout.root]


@pytest.mark.parametrize("name", ["a:b", "a\nb\n"])
def test_the_checkout_itself_may_live_there(tmp_path: Path, wheels: Path, uv_folder: Path, name: str) -> None:
    odd = make_checkout(tmp_path / name, wheels, uv_folder)
    answer = odd.run("status", HARNESS_VENV=str(tmp_path / "venv"))
    assert answer.code == 0, answer.stderr
    assert str(odd.root) in answer.said["path"]


@pytest.mark.long  # CI begins with it
def test_the_real_launcher_installs_in_a_fresh_checkout(checkout: Checkout, tmp_path: Path) -> None:
    """The only test here that uses a package index, for the real dependencies of the launcher."""
    root = tmp_path / "fresh" / checkout.root.name
    listed = ["git", "ls-files", "-co", "--exclude-standard", "-z", "slurm.sh", "pyproject.toml", "scripts", "harness"]
    files = subprocess.run(
        [*listed, "configs"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=limit_s()
    ).stdout
    for name in filter(None, files.split("\0")):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    pip = {key: value for key, value in os.environ.items() if key.startswith(("PIP_", "HARNESS_PIP"))}
    environment = {k: v for k, v in checkout.environment.items() if not k.startswith("HARNESS_PIP")} | pip
    answer = Checkout(root, environment).run("--help")
    if "no package index can be reached" in answer.stderr:
        pytest.skip("no package index can be reached from here")
    assert answer.code == 0, answer.stderr
    assert "--exercise" in answer.stdout
