"""One file sets what all users of a shared checkout have in common; it is data, checked, and a user's own wins."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.bootstrap.bootstrap_checkout import ROOT, Checkout, make_checkout
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
        ("\nHARNESS_RUN=/x", "line 2: HARNESS_RUN=/x is not NAME=VALUE with a name of configs/course.env.example."),
        ("HARNESS_RUNS /x", "line 1: HARNESS_RUNS /x is not NAME=VALUE"),
        ("rm -rf /", "line 1: rm -rf / is not NAME=VALUE"),
        ("HARNESS_RUNS=$(touch made)", "line 1: only $NAME is replaced"),
        ("HARNESS_RUNS=`touch made`", "line 1: only $NAME is replaced"),
        ("HARNESS_VENV=$NO_SUCH_PLACE/x", "line 1: HARNESS_VENV needs $NO_SUCH_PLACE: it is not set."),
        ("HARNESS_VENV=/dev/null/$root", "line 1: HARNESS_VENV needs $root: it is not set."),  # of slurm.sh itself
        ('HARNESS_RUNS="/x', "line 1: only $NAME is replaced; a quote must end."),
        ("HARNESS_RUNS='/x'/y", "line 1: only $NAME is replaced; a quote must end."),
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


LINES = [
    "", "=", "{n}", "{n} = ", "{n}=a\tb", "{n}=\\", "{n}=[[1]]", "{n}=$", "{n}=${{}}", "{n}=${{A:-b}}", "{n}=$é",
    "{n}=\x1b[31m", "{n}[$(touch made)]=x", "export {n}=x", "{n}=~nobody/x", "{n}=%s%n", "{n}: x", "{n}=(a b)",
    "{n}=x;touch made", "\ufeff{n}=x", "{n}=" + "x" * 9000, "{n}=\0", "{n}='", '{n}="$HOME', "{n}=$a[0]",
]  # fmt: skip
READ = """
. <(sed -n '/^say()/p; /^fail()/p; /^read_course()/,/^}/p' "$1"); set -euo pipefail; cd "$2"
for file in *.env; do
  (root=/root; read_course "$PWD/$file"; printf '%s\\n' "${!3-unset}") </dev/null 2>&1
  echo "code $?"
done
"""


def read(folder: Path, key: str, **environment: str) -> list[str]:
    """The value of `key` in each file of the folder, or the sentence, and behind it `code N`."""
    done = subprocess.run(
        ["bash", "+e", "-c", READ.replace("set -euo", "set -uo"), "bash", ROOT / "slurm.sh", folder, key],
        env={"PATH": os.environ["PATH"], **environment}, capture_output=True, text=True, check=True, timeout=limit_s(),
    )  # fmt: skip
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_any_changed_line_of_the_example_is_read_or_refused_in_one_sentence(tmp_path: Path) -> None:
    example = (ROOT / "configs" / "course.env.example").read_text(encoding="utf-8").splitlines()
    at = [index for index, line in enumerate(example) if re.match(r"(# )?HARNESS_\w+=", line)]
    names = [example[index].removeprefix("# ").partition("=")[0] for index in at]
    for number, (line, where) in enumerate(itertools.product(LINES, range(len(at)))):
        text = [*example[: at[where]], line.format(n=names[where]), *example[at[where] + 1 :]]
        (tmp_path / f"{number:04}.env").write_text("\n".join(text), encoding="utf-8")
    lines = read(tmp_path, "HARNESS_VENV", HOME="/h", SCRATCH="/s")
    assert len(lines) == 2 * len(LINES) * len(at)
    ends = {(said.startswith("slurm.sh: /"), code) for said, code in zip(lines[::2], lines[1::2], strict=True)}
    assert ends == {(False, "code 0"), (True, "code 2")}
    assert not list(tmp_path.glob("made*"))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("HARNESS_SITE= leonardo  # ours", "leonardo"),
        ("HARNESS_SITE='a # b'", "slurm.sh: "),
        ("HARNESS_SITE=a#b\r", "a#b"),
        ("HARNESS_SITE=  # none", "unset"),
        ("HARNESS_SITE=my-site.yaml", "/root/my-site.yaml"),
        ("HARNESS_SITE=sites/mine", "/root/sites/mine"),
        ("HARNESS_SITE=~/mine.yaml", "/h/mine.yaml"),
        ("HARNESS_SITE=x$UID-${A}$A", f"x{os.getuid()}-$B$B"),
    ],
)
def test_a_value_is_what_stands_there(tmp_path: Path, text: str, value: str) -> None:
    (tmp_path / "course.env").write_text(text, encoding="utf-8")
    assert read(tmp_path, "HARNESS_SITE", HOME="/h", A="$B")[0].startswith(value)


def test_an_unset_variable_does_not_matter_where_the_user_has_set_the_setting(tmp_path: Path) -> None:
    (tmp_path / "course.env").write_text("HARNESS_RUNS=$SCRATCH/runs\n", encoding="utf-8")
    assert read(tmp_path, "HARNESS_RUNS", HARNESS_RUNS="/mine") == ["/mine", "code 0"]


def test_the_example_is_valid_as_it_is_and_with_its_comments_taken_away(checkout: Checkout) -> None:
    text = (ROOT / "configs" / "course.env.example").read_text(encoding="utf-8")
    for content in (text, text.replace("# HARNESS_", "HARNESS_")):
        answer = written(checkout, content).run("status", SCRATCH="/scratch", HARNESS_VENV="/dev/null/venv")
        assert (
            answer.stderr
            == "slurm.sh: /dev/null/venv is closed to you, or cannot be made: set HARNESS_VENV=~/harness-venv.\n"
        )
