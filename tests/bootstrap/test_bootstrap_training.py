"""The training extra is a gigabyte: it comes when the harness says that it needs it, and at no other time."""

from __future__ import annotations

import signal
import subprocess

from harness.common.errors import TrainingMissing
from tests.bootstrap.bootstrap_checkout import Checkout
from tests.waiting import limit_s

ARGUMENTS = ["-e", "1", "--train", "two words", "*"]


def test_a_command_that_needs_it_is_started_again_with_the_same_arguments(checkout: Checkout) -> None:
    answer = checkout.run(*ARGUMENTS)
    assert answer.code == 0, answer.stderr
    assert answer.said["torch"]
    assert answer.said["arguments"] == ARGUMENTS
    assert answer.stderr.count("this needs the training packages") == 1
    again = checkout.run(*ARGUMENTS, "--fail")
    assert (again.code, again.stderr) == (7, "")


def test_the_stand_in_answers_as_the_harness_does(warm: Checkout) -> None:
    assert f"sys.exit({TrainingMissing.exit_code})" in (warm.root / "harness" / "__main__.py").read_text()


def test_a_command_that_still_needs_it_is_not_started_again_and_again(checkout: Checkout) -> None:
    answer = checkout.run("--never")
    assert answer.code == TrainingMissing.exit_code
    assert answer.stderr.count("this needs the training packages") == 2


def test_ctrl_c_reaches_the_harness_before_it_has_the_extra(checkout: Checkout) -> None:
    checkout.run("status")
    (checkout.root / "harness" / "__main__.py").write_text(
        "import sys, time\n"
        "try:\n    print('here', flush=True)\n    time.sleep(60)\n"
        "except KeyboardInterrupt:\n    sys.exit('stopped')"
    )
    started = checkout.start("-e", "1")
    assert started.stdout is not None and started.stdout.readline() == "here\n"
    subprocess.run(["kill", f"-{signal.SIGINT.value}", "--", f"-{started.pid}"], check=True, timeout=limit_s())
    _, said = started.communicate(timeout=limit_s(30))
    assert (started.returncode, said) == (1, "stopped\n")
