"""What PyTorch and its launcher write about themselves is not shown of a run that is followed. All else streams as it
comes. Most texts are of real runs of torch 2.13 and accelerate 1.15."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from harness.cli.watch import follow
from harness.cli.watch.follow import Tail, wait_for_end
from harness.cli.watch.launcher_lines import LauncherLines
from harness.launch.backends.protocol import PolledState
from tests.launch.launch_shared import Harness, a_run

SITE = "/opt/venv/lib/python3.11/site-packages"
STORE_IS_GONE = f"""\
[W1127 06:12:42.243411165 TCPStore.cpp:138] [c10d] recvValueWithTimeout failed on SocketImpl(fd=4, addr=[::ffff:127.0.0.1]:40382, remote=[::ffff:127.0.0.1]:29613): Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?
Exception raised from recvBytes at /__w/pytorch/pytorch/torch/csrc/distributed/c10d/Utils.hpp:787 (most recent call first):
frame #0: c10::Error::Error(c10::SourceLocation, std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >) + 0x9d (0x7ff7bfd1ab8d in {SITE}/torch/lib/libc10.so)
frame #3: <unknown function> + 0x674888d (0x7ff7aff4888d in {SITE}/torch/lib/libtorch_cpu.so)
<omitting python frames>
frame #34: _start + 0x21 (0x55d5d7ae4081 in /opt/venv/bin/python)
"""  # noqa: E501
_RUN = "W1127 05:11:22.062000 3687 torch/distributed/run.py:803]"
THREADS = f"{_RUN} \n{_RUN} {'*' * 41}\n{_RUN} Setting OMP_NUM_THREADS to 1 in default\n{_RUN} {'*' * 41}\n"
CLOSING = "W1127 06:11:43.598000 8953 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 8957 closing signal SIGTERM\n"  # noqa: E501
NOT_DESTROYED = "[rank0]:[W1127 05:11:22.123456789 ProcessGroupNCCL.cpp:1538] Warning: WARNING: destroy_process_group() was not called before program exit, which can leak resources. (function operator())\n"  # noqa: E501
SOCKET = "[W1127 05:11:22.123456789 socket.cpp:752] [c10d] The client socket cannot be initialized to connect to [node1]:29500 (errno: 97 - Address family not supported by protocol).\n"  # noqa: E501
OF_LAUNCHER = {
    "store": STORE_IS_GONE, "threads": THREADS, "closing": CLOSING, "not destroyed": NOT_DESTROYED, "socket": SOCKET,
}  # fmt: skip
BAR = "\r 50%|█████     | 18/36 [00:01<00:01, 10.0it/s]"
OWN = [
    "loss 1.25 [W1127 of the other kind\n",
    "[rank0]: Traceback (most recent call last):\n[rank0]: ValueError: no\n",
    "Traceback (most recent call last):\n  File \"train.py\", line 3\n    x\nRuntimeError: wrong\n",
    "/home/me/train.py:8: UserWarning: Detected call of `lr_scheduler.step()` before `optimizer.step()`.\n  step()\n",
    "[E1127 05:11:22.123456789 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation timeout\n",
    "E1127 06:11:43.6 8953 torch/distributed/elastic/multiprocessing/api.py:988] failed (exitcode: 1) local_rank: 0\n",
    "[2026-11-27 06:13:01,123] [INFO] [real_accelerator.py:260:get_accelerator] Setting ds_accelerator to cpu\n",
    f"{'*' * 41}\nmy own heading\n{'*' * 41}\n",
    "W1127 05:11:22.062000 3687 torch/_dynamo/convert_frame.py:906] [0/8] torch._dynamo hit its limit (8)\n",
    "\n\n\tindented\n  also\n",
    "Exception raised by my program\nframe 7 of 9\n",
]  # fmt: skip


def shown(*pieces: str | bytes) -> str:
    """What is shown of a log that grows by these pieces."""
    lines = LauncherLines()
    encoded = [piece if isinstance(piece, bytes) else piece.encode() for piece in pieces]
    parts = [lines.without(piece) for piece in encoded]
    return b"".join([*parts, lines.without(b"", last=True)]).decode()


@pytest.mark.parametrize("text", OF_LAUNCHER.values(), ids=OF_LAUNCHER)
def test_a_launchers_own_lines_are_not_shown(text: str) -> None:
    assert shown(f"before\n{text}after\n") == "before\nafter\n"
    assert shown(f"{text}{text}") == ""
    assert shown(text[:-1]) == ""  # the run was killed while it wrote


@pytest.mark.parametrize("text", OWN)
def test_all_other_lines_pass(text: str) -> None:
    assert shown(f"before\n{text}") == f"before\n{text}"
    assert shown(text.removesuffix("\n")) == text.removesuffix("\n")
    for other in OF_LAUNCHER.values():
        assert shown(f"{other}before\n{text}{other}{text}") == f"before\n{text}{text}"


def test_a_line_is_shown_when_it_is_whole_and_a_bar_of_progress_at_once() -> None:
    lines = LauncherLines()
    for piece, seen in (
        ("Loading", ""), (" the data …", ""), (" done\nx = ", "Loading the data … done\n"), ("1\n", "x = 1\n"),
        (BAR, BAR), (BAR, BAR), ("\n", "\n"), (f"step 1{BAR}", f"step 1{BAR}"), (SOCKET, SOCKET), (SOCKET, ""),
    ):  # fmt: skip
        assert lines.without(piece.encode()).decode() == seen


class Screened(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


def tail_of(log: Path, text: str, out: io.StringIO) -> Tail:
    log.write_text(text, encoding="utf-8")
    return Tail(log, out, LauncherLines())


@pytest.mark.parametrize("state", ["completed", "failed"])
def test_who_follows_a_run_sees_its_own_lines_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harness: Harness, state: str
) -> None:
    run, stream = a_run(tmp_path / "runs", "local-1"), Screened()
    states = iter(["running", state])
    monkeypatch.setattr(follow, "look_at", lambda _: PolledState(next(states)))  # type: ignore[arg-type]  # a literal
    tail = tail_of(run.err, f"{SOCKET}mine\x1b[2J\n{STORE_IS_GONE}{BAR}", stream)
    assert wait_for_end(run, [tail]) == state
    assert stream.getvalue() == f"mine[2J\n{BAR}\x1b[0m", "at a terminal no line steers it"
    monkeypatch.undo()
    assert harness("logs", "local-1").stderr.startswith(f"{SOCKET}mine"), "the log has all"
