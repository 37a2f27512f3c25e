"""Where uv is on PATH it makes .venv; pip fills it if something is set for pip that uv does not know."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bootstrap.bootstrap_checkout import ROOT, Checkout
from tests.waiting import limit_s


def test_uv_makes_it_and_pip_can_go_on(checkout: Checkout) -> None:
    assert checkout.run("status").said["alpha"]
    assert "uv = " in (checkout.venv / "pyvenv.cfg").read_text()
    assert checkout.run("--train").said["torch"]
    assert not list(checkout.venv.glob("lib/*/site-packages/pip"))
    checkout.depend_on("tiny-beta")
    assert checkout.run("status", PATH=os.environ["PATH"]).said["beta"], "without uv on PATH"


@pytest.mark.parametrize(
    "setting",
    [{"HARNESS_PIP_ARGS": "--ignore-installed"}, pytest.param({"PIP_PREFER_BINARY": "1"}, marks=pytest.mark.long)],
)
def test_pip_fills_it_where_a_setting_is_no_option_of_uv(checkout: Checkout, setting: dict[str, str]) -> None:
    arguments = checkout.environment["HARNESS_PIP_ARGS"]
    own = {name: f"{arguments} {text}" if name == "HARNESS_PIP_ARGS" else text for name, text in setting.items()}
    answer = checkout.run("status", **own)
    assert answer.code == 0, answer.stderr
    assert answer.said["alpha"]
    assert list(checkout.venv.glob("lib/*/site-packages/pip"))


CHOICE = "import json, shlex, sys, install; print(json.dumps(install.settings_for_uv(shlex.split(sys.argv[1]))))"
MIRROR = "https://a.b/simple"


@pytest.mark.parametrize(
    ("options", "settings", "uvs", "variables"),
    [
        ("", {}, [], {}),
        (f"--index-url={MIRROR} -f 'my wheels'", {}, ["-f", "my wheels", "--index-url", MIRROR], {}),
        ("--no-index --timeout 1 --retries=0", {}, ["--no-index"], {}),
        ("--pre", {}, ["--pre"], {}),
        ("", {"PIP_NO_INPUT": "1", "PIP_INDEX_URL": MIRROR}, ["--index-url", MIRROR], {}),
        (f"-i {MIRROR}", {"PIP_INDEX_URL": "https://c.d/"}, ["--index-url", MIRROR], {}),
        ("-f c", {"PIP_FIND_LINKS": "a b"}, ["--find-links=a", "--find-links=b", "-f", "c"], {}),
        ("", {"PIP_TARGET": "/x", "PIP_PREFIX": "/x", "PIP_ROOT": "/x", "PIP_USER": "1", "PIP_PYTHON": "/x"}, [], {}),
        ("", {"PIP_CERT": "/a.pem"}, [], {"SSL_CERT_FILE": "/a.pem"}),
        ("", {"PIP_CONSTRAINT": "mine.txt"}, ["--constraint=mine.txt"], {}),
        ("", {"PIP_CONFIG_FILE": "{here}/pip/pip.conf"}, [f"--extra-index-url={MIRROR}"], {"SSL_CERT_FILE": "/b.pem"}),
    ],
)
def test_uv_is_set_up_as_pip_is(
    tmp_path: Path, options: str, settings: dict[str, str], uvs: list[str], variables: dict[str, str]
) -> None:
    (tmp_path / "pip").mkdir()
    (tmp_path / "pip" / "pip.conf").write_text(f"[global]\nextra-index-url = {MIRROR}\n[install]\ncert = /b.pem\n")
    plain = {name: text for name, text in os.environ.items() if not name.startswith("PIP_")}
    own = {name: text.format(here=tmp_path) for name, text in settings.items()}
    environment = {**plain, "PIP_CONFIG_FILE": os.devnull, **own}
    if "PIP_CONFIG_FILE" in settings:  # elsewhere uv would read the files of this machine
        environment |= {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path), "XDG_CONFIG_DIRS": str(tmp_path)}
    command = [sys.executable, "-c", CHOICE, options]
    done = subprocess.run(
        command,
        cwd=ROOT / "scripts" / "bootstrap",
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=limit_s(),
    )
    assert json.loads(done.stdout) == [uvs, variables]
