"""One file sets what all users of a shared checkout have in common; it is data, checked, and a user's own wins."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.bootstrap.bootstrap_checkout import ROOT, Checkout
from tests.waiting import limit_s

COURSE = """\
# What all of us share.
HARNESS_VENV = "a venv"   # begins at the checkout
export HARNESS_RUNS='${PLACE}/of $USER'
HARNESS_SITE=configs/my-site.yaml

HARNESS_PIP_ARGS=--no-index --find-links '/a b'
"""
READ = """
. <(sed -n '/^say()/p; /^fail()/p; /^read_course()/,/^}/p' "$1"); set -uo pipefail; cd "$2"
for file in *.env; do
  (root=/root; read_course "$PWD/$file"; printf '%s\\n' "${!3-unset}") </dev/null 2>&1
  echo "code $?"
done
"""


def read(folder: Path, key: str, **environment: str) -> list[str]:
    """The value of `key` in each file of the folder, or the sentence, and behind it `code N`."""
    done = subprocess.run(
        ["bash", "-c", READ, "bash", ROOT / "slurm.sh", folder, key], env={"PATH": os.environ["PATH"], **environment},
        capture_output=True, text=True, check=True, timeout=limit_s(),
    )  # fmt: skip
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_the_file_sets_what_the_environment_does_not(checkout: Checkout) -> None:
    (checkout.root / "configs" / "course.env").write_text(COURSE, encoding="utf-8")
    answer = checkout.run("status", USER="anna", PLACE="/scratch $HOME")
    found = answer.said["environment"]
    assert answer.said["prefix"] == found["HARNESS_VENV"] == str(checkout.root / "a venv")
    assert found["HARNESS_RUNS"] == "/scratch $HOME/of anna"  # a variable's value is not read once more
    assert found["HARNESS_SITE"] == str(checkout.root / "configs" / "my-site.yaml")
    assert found["HARNESS_PIP_ARGS"] == checkout.environment["HARNESS_PIP_ARGS"]
    assert found["HARNESS_COURSE"].split() == ["HARNESS_VENV", "HARNESS_RUNS", "HARNESS_SITE"]
    own = checkout.run("status", USER="anna", PLACE="/scratch", HARNESS_SITE="").said["environment"]
    assert own["HARNESS_SITE"] == "", "what a user has set wins, also when it is empty"
    (checkout.root / "configs" / "course.env").write_text("HARNESS_RUN=/x", encoding="utf-8")
    wrong = checkout.run("status", HARNESS_RUNS="/mine")
    assert (wrong.code, wrong.stdout, len(wrong.stderr.splitlines())) == (2, "", 1)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("HARNESS_SITE= leonardo  # ours", "leonardo"),
        ("HARNESS_SITE=a#b\r", "a#b"),
        ("HARNESS_SITE=  # none", "unset"),
        ("HARNESS_SITE=my-site.yaml", "/root/my-site.yaml"),
        ("HARNESS_SITE=sites/mine", "/root/sites/mine"),
        ("HARNESS_SITE=~/mine.yaml", "/h/mine.yaml"),
        ("HARNESS_SITE=x$UID-${A}$A", f"x{os.getuid()}-$B$B"),
        ("HARNESS_REFERENCES=$NO_SUCH_PLACE/runs", "unset"),  # the user has set it
        ("\nHARNESS_RUN=/x", "line 2: HARNESS_RUN=/x is not NAME=VALUE with a name of configs/course.env.example."),
        ("HARNESS_RUNS /x", "line 1: HARNESS_RUNS /x is not NAME=VALUE"),
        ("HARNESS_RUNS=${A:-b}", "line 1: only $NAME is replaced"),
        ("HARNESS_RUNS[$(touch made)]=x", "line 1: HARNESS_RUNS[$(touch made)]=x is not NAME=VALUE"),
        ("HARNESS_RUNS=$(touch made)", "line 1: only $NAME is replaced"),
        ("HARNESS_RUNS=`touch made`", "line 1: only $NAME is replaced"),
        ("HARNESS_VENV=$NO_SUCH_PLACE/x", "line 1: HARNESS_VENV needs $NO_SUCH_PLACE: it is not set."),
        ("HARNESS_VENV=/dev/null/$root", "line 1: HARNESS_VENV needs $root: it is not set."),  # of slurm.sh itself
        ("HARNESS_RUNS='/x'/y", "line 1: only $NAME is replaced; a quote must end."),
    ],
)
def test_a_value_is_what_stands_there_and_a_wrong_line_one_sentence(tmp_path: Path, text: str, value: str) -> None:
    (tmp_path / "course.env").write_text(text, encoding="utf-8")
    said, code = read(tmp_path, "HARNESS_SITE", HOME="/h", A="$B", HARNESS_REFERENCES="/mine")
    if code == "code 0":
        assert said == value
    else:
        assert code == "code 2" and said.startswith(f"slurm.sh: {tmp_path}/course.env {value}")


def test_the_example_is_valid_as_it_is_and_with_its_comments_taken_away(tmp_path: Path) -> None:
    text = (ROOT / "configs" / "course.env.example").read_text(encoding="utf-8")
    (tmp_path / "1.env").write_text(text, encoding="utf-8")
    (tmp_path / "2.env").write_text(text.replace("# HARNESS_", "HARNESS_"), encoding="utf-8")
    assert read(tmp_path, "HARNESS_RUNS", SCRATCH="/s") == ["/s/harness-runs", "code 0"] * 2
