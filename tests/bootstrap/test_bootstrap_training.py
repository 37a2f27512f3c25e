"""The training extra is a gigabyte: it comes before a training on this machine, and at no other time."""

from __future__ import annotations

import os
import signal

from harness.common.errors import TrainingMissing
from tests.bootstrap.bootstrap_checkout import Checkout
from tests.waiting import limit_s

ARGUMENTS = ["-e", "5", "--train", "two words", "*"]
TRAINS = ["-e 1", "-e3 -g 2", "-n 1 --exercise=2", "--exercise 0 --json", "run -g 2 -- train.py"]
DOES_NOT = [
    "", "ls -n 1", "report last", "-e 5", "-e 1 --dry-run", "--help -e 1", "-e 1 --site local", "-e 1 --site=local",
    "-e 2 --plan", "-e 1 -h", "run", "run local-1 --dry-run", "run --python p -- train.py", "observe -- run -e 1",
]  # fmt: skip


def test_one_installation_has_all_for_words_that_surely_train_here(bare: Checkout) -> None:
    for words in DOES_NOT:
        assert not bare.run(*words.split()).said["torch"], words
    (bare.root / "sbatch").symlink_to("/bin/true")
    for changes in ({"HARNESS_SITE": "local"}, {"PATH": f"{bare.environment['PATH']}:{bare.root}"}):
        assert not bare.run("-e", "1", **changes).said["torch"], "the harness itself decides"
    for words in TRAINS:
        assert "packages for the launcher, train" in bare.run(*words.split(), HARNESS_PIP_ARGS="--no-index").stderr
    assert bare.run("-e", "1").said["torch"]


def test_a_command_that_needs_it_is_started_again_with_the_same_arguments(checkout: Checkout) -> None:
    answer = checkout.run(*ARGUMENTS)
    assert answer.code == 0, answer.stderr
    assert answer.said["torch"]
    assert answer.said["arguments"] == ARGUMENTS
    again = checkout.run(*ARGUMENTS, "--fail")
    assert (again.code, again.stderr) == (7, "")
    assert checkout.run("--never").code == TrainingMissing.exit_code, "not again and again, and as the harness says it"


def test_no_bash_with_the_users_secrets_waits_beside_a_training(checkout: Checkout) -> None:
    """PyTorch may be there and not in the stamp: of an older checkout, or installed by hand."""
    assert checkout.run("status").said["parent"] != os.getpid()
    *_, packages = checkout.venv.glob("lib/python3*/site-packages")
    (packages / "torch").mkdir()
    assert checkout.run("status").said["parent"] == os.getpid()


def test_ctrl_c_reaches_the_harness_before_it_has_the_extra(checkout: Checkout) -> None:
    checkout.run("status")
    (checkout.root / "harness" / "__main__.py").write_text(
        "import sys, time\n"
        "try:\n    print('here', flush=True)\n    time.sleep(60)\n"
        "except KeyboardInterrupt:\n    sys.exit('stopped')"
    )
    started = checkout.start("-e", "5")
    assert started.stdout is not None and started.stdout.readline() == "here\n"
    os.killpg(started.pid, signal.SIGINT)
    _, said = started.communicate(timeout=limit_s(30))
    assert (started.returncode, said) == (1, "stopped\n")
