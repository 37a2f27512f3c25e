"""One file sets what all users of a shared checkout have in common; it is data, checked, and a user's own wins."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.bootstrap.bootstrap_checkout import NOBODY, ROOT, Checkout, make_checkout
from tests.waiting import limit_s

COURSE = """\
# What all of us share.
HARNESS_VENV = "a venv"   # begins at the checkout
export HARNESS_RUNS='${PLACE}/of $USER'
HARNESS_SITE=configs/my-site.yaml

HARNESS_PIP_ARGS=--no-index --find-links '/a b'
"""


def written(checkout: Checkout, text: str) -> Checkout:
    (checkout.root / "configs" / "course.env").write_text(text, encoding="utf-8")
    return checkout


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, wheels: Path, uv_folder: Path) -> Checkout:
    """A checkout whose environment the file places; only pip's options and the Python are the user's own."""
    made = written(make_checkout(tmp_path_factory.mktemp("course") / "it's shared", wheels, uv_folder), COURSE)
    own = {name: text for name, text in made.environment.items() if name != "HARNESS_SITE"}
    return Checkout(made.root, own | {"USER": "anna", "PLACE": "/scratch $HOME"})


def test_the_file_sets_what_the_environment_does_not_and_what_it_says_is_not_run(shared: Checkout) -> None:
    answer = shared.run("status")
    found = answer.said["environment"]
    assert answer.said["prefix"] == found["HARNESS_VENV"] == str(shared.root / "a venv")
    assert found["HARNESS_RUNS"] == "/scratch $HOME/of anna"  # a variable's value is not read once more
    assert found["HARNESS_SITE"] == str(shared.root / "configs" / "my-site.yaml")
    assert found["HARNESS_PIP_ARGS"] == shared.environment["HARNESS_PIP_ARGS"]
    assert found["HARNESS_COURSE"].split() == ["HARNESS_VENV", "HARNESS_RUNS", "HARNESS_SITE"]


@pytest.mark.parametrize("own", ["leonardo", ""])
def test_what_a_user_has_set_wins_also_when_it_is_empty(shared: Checkout, own: str) -> None:
    assert shared.run("status", HARNESS_SITE=own).said["environment"]["HARNESS_SITE"] == own


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("\nHARNESS_RUN=/x", "line 2: HARNESS_RUN is not known: there are HARNESS_VENV"),
        ("site=x", "line 1: site is not known: there are HARNESS_VENV HARNESS_RUNS HARNESS_SITE"),
        ("HARNESS_RUNS /x", "line 1: HARNESS_RUNS /x is not a setting: write NAME=VALUE"),
        ("rm -rf /", "line 1: rm -rf / is not a setting"),
        ("HARNESS_RUNS=$(touch made)", "only $NAME and ${NAME} are replaced"),
        ("HARNESS_RUNS=`touch made`", "only $NAME and ${NAME} are replaced"),
        ("HARNESS_VENV=$NO_SUCH_PLACE/x", "HARNESS_VENV needs $NO_SUCH_PLACE, which is not set here: set it, or"),
        *(
            (
                f"HARNESS_VENV=/dev/null/${own}",
                f"HARNESS_VENV needs ${own}, which is not set here",
            )  # of slurm.sh itself
            for own in ("root", "folder", "name", "key", "line", "found", "BASH_VERSION")
        ),
        ('HARNESS_RUNS="/x', "line 1: HARNESS_RUNS has a quote that does not end, or text behind it"),
        ("HARNESS_RUNS='/x'/y", "line 1: HARNESS_RUNS has a quote that does not end, or text behind it"),
        ("HARNESS_RUNS=/x\nHARNESS_RUNS=/y", "line 2: HARNESS_RUNS is given twice, first in line 1"),
    ],
)
def test_a_wrong_line_is_one_sentence_and_nothing_is_made(checkout: Checkout, text: str, sentence: str) -> None:
    before = sorted(checkout.root.rglob("*"))
    written(checkout, text)
    # The user's own setting would win; the line is still wrong for all other users.
    answer = checkout.run("status", cwd=checkout.root, HARNESS_RUNS="/mine")
    assert answer.code == 2 and answer.stdout == ""
    assert sentence in answer.stderr and len(answer.stderr.splitlines()) == 1
    (checkout.root / "configs" / "course.env").unlink()
    assert sorted(checkout.root.rglob("*")) == before


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo], ids=["a folder", "a pipe"])
def test_what_is_no_file_is_one_sentence(checkout: Checkout, make: Callable[[Path], None]) -> None:
    file = checkout.root / "configs" / "course.env"
    make(file)
    answer = checkout.run("status", cwd=checkout.root)
    file.rmdir() if file.is_dir() else file.unlink()
    assert answer.code == 2 and len(answer.stderr.splitlines()) == 1
    assert "course.env: is no file: write NAME=VALUE lines into one" in answer.stderr


LINES = [
    "", "=", "{n}", "{n} = ", "{n}=a\tb", "{n}=\\", "{n}=[[1]]", "{n}=$", "{n}=${{}}", "{n}=${{A:-b}}", "{n}=$é",
    "{n}=\x1b[31m", "{n}[$(touch made)]=x", "export {n}=x", "{n}=~nobody/x", "{n}=%s%n", "{n}: x", "{n}=(a b)",
    "{n}=x;touch made", "\ufeff{n}=x", "{n}=" + "x" * 9000, "{n}=\0", "{n}='", '{n}="$HOME', "{n}=$a[0]",
]  # fmt: skip


def test_any_changed_line_of_the_example_is_read_or_refused_in_one_sentence(tmp_path: Path) -> None:
    example = (ROOT / "configs" / "course.env.example").read_text(encoding="utf-8").splitlines()
    at = [index for index, line in enumerate(example) if re.match(r"(# )?HARNESS_\w+=", line)]
    names = [example[index].removeprefix("# ").partition("=")[0] for index in at]
    for number, (line, where) in enumerate(itertools.product(LINES, range(len(at)))):
        text = [*example[: at[where]], line.format(n=names[where]), *example[at[where] + 1 :]]
        (tmp_path / f"{number:04}.env").write_text("\n".join(text), encoding="utf-8")
    program = """. "$1"; say() { printf 'said %s\\n' "${*//$'\\n'/ }"; }
    for file in *.env; do (set -euo pipefail; read_course "$PWD/$file" /root) 2>&1; echo "code $?"; done"""
    course = ROOT / "scripts" / "bootstrap" / "course.sh"
    done = subprocess.run(
        ["bash", "-c", program, "bash", course], cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "HOME": "/h", "SCRATCH": "/s"},
        capture_output=True, text=True, check=True, timeout=limit_s(),
    )  # fmt: skip
    ends = re.findall(r"(?:said .*\ncode 2|code 0)\n", done.stdout)
    assert "".join(ends) == done.stdout and len(ends) == len(LINES) * len(at)
    assert not list(tmp_path.glob("made*")) and done.stderr == ""


def read(tmp_path: Path, text: str, key: str, **environment: str) -> str:
    """The value that a file with this text gives to `key`; the file is in the checkout."""
    file = tmp_path / "course.env"
    file.write_text(text, encoding="utf-8")
    program = 'set -euo pipefail; . "$1"; read_course "$2" "${2%/*}"; printf %s "${!3-unset}"'
    done = subprocess.run(
        ["bash", "-c", program, "bash", ROOT / "scripts" / "bootstrap" / "course.sh", file, key],
        env={"PATH": os.environ["PATH"], **environment}, capture_output=True, text=True, check=True, timeout=limit_s(),
    )  # fmt: skip
    return done.stdout


def test_an_unset_variable_does_not_matter_where_the_user_has_set_the_setting(tmp_path: Path) -> None:
    for own in ("/mine", ""):
        assert read(tmp_path, "HARNESS_RUNS=$NO_SUCH_PLACE/x", "HARNESS_RUNS", HARNESS_RUNS=own) == own


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("HARNESS_SITE=   # none yet", "unset"),
        ("HARNESS_SITE=leonardo # ours", "leonardo"),
        ("HARNESS_SITE=a#b", "a#b"),
        ("HARNESS_SITE=my-site.yaml", "{folder}/my-site.yaml"),
        ("HARNESS_SITE=sites/mine", "{folder}/sites/mine"),
        ("HARNESS_SITE=/sites/my-site.yml", "/sites/my-site.yml"),
        ("HARNESS_SITE=x$UID", f"x{os.getuid()}"),
        ("HARNESS_SITE=$LINES_OF_MINE", "one\ndeclare -- x"),
    ],
)
def test_a_value_is_what_stands_there(tmp_path: Path, text: str, value: str) -> None:
    found = read(tmp_path, text, "HARNESS_SITE", LINES_OF_MINE="one\ndeclare -- x")
    assert found == value.replace("{folder}", str(tmp_path))


def test_the_example_is_valid_as_it_is_and_with_its_comments_taken_away(checkout: Checkout) -> None:
    text = (ROOT / "configs" / "course.env.example").read_text(encoding="utf-8")
    for content in (text, text.replace("# HARNESS_", "HARNESS_")):
        answer = written(checkout, content).run("status", SCRATCH="/scratch", HARNESS_PYTHON="/nonexistent")
        assert answer.stderr == "slurm.sh: HARNESS_PYTHON=/nonexistent: there is no such program.\n"


WARNED = (
    "import sys; from pathlib import Path; from refresh import Venv, warn_of_what_is_closed as warn; "
    "warn(Venv(path=Path(sys.argv[1]), root=Path(sys.argv[2])))"
)


def warned(venv: Path, root: Path) -> str:
    """The output after the environment was made."""
    done = subprocess.run(
        [sys.executable, "-c", WARNED, venv, root],
        cwd=ROOT / "scripts" / "bootstrap", capture_output=True, text=True, check=True, timeout=limit_s(),
    )  # fmt: skip
    return done.stderr


def test_what_others_cannot_use_of_a_new_environment_is_a_warning_with_its_reason(open_place: Path) -> None:
    venv = open_place / "venv"
    (open_place / "configs").mkdir()
    (open_place / "configs" / "course.env").touch()
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").touch(0o755)
    (venv / "harness-python").touch(0o755)
    assert warned(venv, open_place) == ""
    venv.chmod(0o2770)
    said = warned(venv, open_place)
    assert f"only the group {venv.group()} may use {venv}: check that all of them are in it." in said
    assert len(said.splitlines()) == 1 and "chmod" not in said
    (venv / "bin").chmod(0o700)
    said = warned(venv, open_place)
    assert f"they may not use {venv / 'bin' / 'python'}, because {venv / 'bin'} is closed to other users" in said
    assert "named in HARNESS_PYTHON" in said


as_nobody = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a program as another user")


def start_as_nobody(checkout: Checkout, **changes: str) -> str:
    answer = replace(checkout, user=NOBODY).run("status", cwd="/", HOME="/nonexistent", **changes)
    assert answer.code in (1, 2) and answer.stdout == ""
    return answer.stderr


def built_by_root(checkout: Checkout, python: Path) -> Path:
    """An environment as other users see it: its program, and the link to the Python that made it."""
    starter = checkout.venv / "harness-python"
    starter.parent.mkdir()
    starter.touch()
    starter.chmod(0o755)
    (checkout.venv / "bin").mkdir()
    (checkout.venv / "bin" / "python").symlink_to("python3")
    (checkout.venv / "bin" / "python3").symlink_to(python)
    return starter


@as_nobody
def test_a_python_that_students_cannot_reach_is_named_with_what_is_in_the_way(open_place: Path, wheels: Path) -> None:
    checkout = make_checkout(open_place / "a checkout", wheels)
    home = open_place / "home"
    home.mkdir(mode=0o700)
    (home / "python3.11").symlink_to(sys.executable)
    built_by_root(checkout, home / "python3.11")
    said = start_as_nobody(checkout)
    assert f"{checkout.venv} was made with the Python {home / 'python3.11'}, which you may not run" in said
    assert f"({home} is closed to you)" in said and "HARNESS_PYTHON=/usr/bin/python3 bash" in said
    words = shlex.split(said.split("all users may run: ")[1].splitlines()[0].replace(",", ""))
    assert words[:3] == ["rm", "-r", str(checkout.venv)] and str(checkout.root / "slurm.sh") in words
    assert "HARNESS_VENV=~/harness-venv" in said and "installing" not in said


@as_nobody
@pytest.mark.parametrize(
    ("mode", "python", "changes", "sentences"),
    [
        (0o700, sys.executable, {}, ["{venv} belongs to another user, and you may not use {venv}", "a+rX {venv}"]),
        (0o755, "/gone/python3.11", {"HARNESS_PYTHON": "/nonexistent"}, ["/nonexistent: there is no such program.\n"]),
        (
            0o755, sys.executable, {"HARNESS_VENV": "{place}/closed/venv"},
            ["HARNESS_VENV={place}/closed/venv: its folder is closed to you, or does not exist and cannot be made.\n"],
        ),
    ],
    ids=["may not be entered", "a Python that is gone is not closed", "does not go elsewhere"],
)  # fmt: skip
def test_an_environment_that_a_user_cannot_have_is_named_with_the_reason(
    open_place: Path, wheels: Path, mode: int, *, python: str, changes: dict[str, str], sentences: list[str]
) -> None:
    checkout = make_checkout(open_place / "checkout", wheels)
    (open_place / "closed").mkdir(mode=0o700)
    built_by_root(checkout, Path(python))
    checkout.venv.chmod(mode)
    names = {"{venv}": str(checkout.venv), "{place}": str(open_place)}
    said = start_as_nobody(checkout, **{name: filled(text, names) for name, text in changes.items()})
    assert [each for each in sentences if filled(each, names) not in said] == []


def filled(text: str, names: dict[str, str]) -> str:
    for name, value in names.items():
        text = text.replace(name, value)
    return text


@as_nobody
def test_users_of_a_shared_environment_that_lacks_something_are_shown_its_owner(open_place: Path, wheels: Path) -> None:
    if subprocess.run(["/usr/bin/env", "python3", "-c", ""], user=NOBODY, check=False, timeout=limit_s()).returncode:
        pytest.skip("no Python here that another user may run")
    checkout, own = (
        make_checkout(open_place / "checkout", wheels),
        {"HARNESS_PYTHON": "python3", "PATH": "/usr/bin:/bin"},
    )
    said = start_as_nobody(checkout, **own, HARNESS_COURSE="HARNESS_VENV")  # of another checkout: there is no file
    assert "set HARNESS_VENV to a folder of your own" in said and "--install train" not in said
    said = start_as_nobody(written(checkout, "HARNESS_VENV=venv"), **own)
    assert f"configs/course.env names {checkout.root / 'venv'}, which is incomplete or out of date" in said
    assert "bash slurm.sh --install train" in said
    said = start_as_nobody(written(checkout, "HARNESS_RUNS=/runs"), **own)
    assert f"{checkout.venv} is for all who share this checkout" in said
    assert "bash slurm.sh --install train" in said
    (closed := checkout.root / "closed").mkdir(mode=0o755)
    said = start_as_nobody(checkout, **own, HARNESS_VENV=str(closed / "venv"))
    assert "set HARNESS_VENV to a folder of your own" in said and "--install train" not in said
