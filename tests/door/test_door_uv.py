"""Where uv is on PATH it makes .venv, unless something is set for pip that uv would not follow."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.door.door_checkout import ROOT, Checkout


@pytest.fixture(scope="session")
def uv_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the real uv in it, this machine's or the package index's."""
    folder = tmp_path_factory.mktemp("uv")
    if found := shutil.which("uv"):
        (folder / "uv").symlink_to(found)
        return folder
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), "uv"]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("there is no uv here, and no package index that has it")
    return folder / "bin"


@pytest.fixture
def with_uv(checkout: Checkout, uv_folder: Path) -> Checkout:
    changes = {
        "PATH": f"{uv_folder}:{checkout.environment['PATH']}",
        "UV_HTTP_RETRIES": "0",
        "PIP_CONFIG_FILE": os.devnull,
    }
    return Checkout(checkout.root, {**checkout.environment, **changes})


def test_uv_makes_it_and_pip_can_go_on(with_uv: Checkout, checkout: Checkout) -> None:
    assert with_uv.run("status").said["alpha"]
    assert "uv = " in (with_uv.venv / "pyvenv.cfg").read_text()
    assert with_uv.run("--train").said["torch"]
    assert not list(with_uv.venv.glob("lib/*/site-packages/pip"))
    checkout.depend_on("door-beta")
    assert checkout.run("status").said["beta"], "without uv on PATH"


def test_what_uv_cannot_do_is_one_sentence(with_uv: Checkout) -> None:
    unreachable = with_uv.run("status", HARNESS_PIP_ARGS="--index-url http://127.0.0.1:9/")
    assert unreachable.code == 1
    assert unreachable.stderr.splitlines()[-1].startswith("slurm.sh: no package index can be reached")
    assert not with_uv.venv.exists()
    with_uv.depend_on("door-gamma")
    missing = with_uv.run("status")
    assert missing.code == 1
    assert missing.stderr.splitlines()[-1].startswith("slurm.sh: uv could not install")
    assert "door-gamma" in missing.stderr.splitlines()[-1]


CHOICE = "import json, shlex, sys; from uv import uv_for; print(json.dumps(uv_for(shlex.split(sys.argv[1]))))"
MIRROR = "https://a.b/simple"


@pytest.mark.parametrize(
    ("options", "settings", "uvs", "variables"),
    [
        ("", {}, [], {}),
        (
            f"--index-url={MIRROR} -f 'my wheels'",
            {},
            ["--index-url", MIRROR, "--find-links", "my wheels"],
            {},
        ),
        ("--no-index --timeout 1 --retries=0", {}, ["--no-index"], {}),
        ("--pre", {}, None, {}),
        ("--no-index=yes", {}, None, {}),
        ("", {"PIP_NO_INPUT": "1", "PIP_INDEX_URL": MIRROR}, ["--index-url", MIRROR], {}),
        (f"-i {MIRROR}", {"PIP_INDEX_URL": "https://c.d/"}, ["--index-url", MIRROR], {}),
        ("-f c", {"PIP_FIND_LINKS": "a b"}, [word for at in "abc" for word in ("--find-links", at)], {}),
        ("", {"PIP_CERT": "/a.pem"}, [], {"SSL_CERT_FILE": "/a.pem"}),
        ("", {"PIP_CONSTRAINT": "mine.txt"}, None, {}),
        (
            "",
            {"PIP_CONFIG_FILE": "{here}/pip/pip.conf"},
            ["--extra-index-url", MIRROR],
            {"SSL_CERT_FILE": "/b.pem"},
        ),
        ("", {"PATH": "{here}/none"}, None, {}),
    ],
)
def test_uv_is_set_up_as_pip_is_or_not_taken_with_a_stand_in_for_uv(
    tmp_path: Path, options: str, settings: dict[str, str], uvs: list[str] | None, variables: dict[str, str]
) -> None:
    (tmp_path / "pip").mkdir()
    (tmp_path / "pip" / "pip.conf").write_text(
        f"[global]\nextra-index-url = {MIRROR}\n[install]\ncert = /b.pem\n"
    )
    (tmp_path / "uv").write_text("#!/bin/sh\n")
    (tmp_path / "uv").chmod(0o755)
    plain = {name: text for name, text in os.environ.items() if not name.startswith("PIP_")}
    own = {name: text.format(here=tmp_path) for name, text in settings.items()}
    environment = {**plain, "PIP_CONFIG_FILE": os.devnull, "PATH": str(tmp_path), **own}
    if "PIP_CONFIG_FILE" in settings:  # elsewhere uv would read the files of this machine
        environment |= {
            "HOME": str(tmp_path),
            "XDG_CONFIG_HOME": str(tmp_path),
            "XDG_CONFIG_DIRS": str(tmp_path),
        }
    command = [sys.executable, "-c", CHOICE, options]
    done = subprocess.run(
        command, cwd=ROOT / "scripts" / "door", env=environment, capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    assert (found and found[1]) == uvs
    assert (found[2] if found else {}) == variables
