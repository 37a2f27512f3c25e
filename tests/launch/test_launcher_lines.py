"""What PyTorch and its launcher write about themselves is not shown of a run that completes, and is shown at the end of
any other. All else streams as it comes. Most texts are of real runs of torch 2.13 and accelerate 1.15."""

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
_AT_BARRIER = "E1127 06:12:42.299000 10031 torch/distributed/elastic/agent/server/api.py:1008]"
BARRIER = f"""\
{_AT_BARRIER} Error waiting on exit barrier. Elapsed: 7.6474339962005615 seconds
{_AT_BARRIER} Traceback (most recent call last):
{_AT_BARRIER}   File "{SITE}/torch/distributed/elastic/agent/server/api.py", line 994, in _exit_barrier
{_AT_BARRIER}     store_util.barrier(
{_AT_BARRIER} torch.distributed.DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed.
"""
OLD_BARRIER = f"""\
ERROR:torch.distributed.elastic.agent.server.api:Error waiting on exit barrier. Elapsed: 300.1 seconds
Traceback (most recent call last):
  File "{SITE}/torch/distributed/elastic/agent/server/api.py", line 906, in _exit_barrier
    store_util.barrier(
RuntimeError: Connection reset by peer
"""
_RUN = "W1127 05:11:22.062000 3687 torch/distributed/run.py:803]"
THREADS = f"{_RUN} \n{_RUN} {'*' * 41}\n{_RUN} Setting OMP_NUM_THREADS to 1 in default\n{_RUN} {'*' * 41}\n"
CLOSING = "W1127 06:11:43.598000 8953 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 8957 closing signal SIGTERM\n"  # noqa: E501
OLDER = "[2023-12-01 10:00:00,123] torch.distributed.run: [WARNING] " + "*" * 41 + "\n"
NOT_DESTROYED = "[rank0]:[W1127 05:11:22.123456789 ProcessGroupNCCL.cpp:1538] Warning: WARNING: destroy_process_group() was not called before program exit, which can leak resources. (function operator())\n"  # noqa: E501
SOCKET = "[W1127 05:11:22.123456789 socket.cpp:752] [c10d] The client socket cannot be initialized to connect to [node1]:29500 (errno: 97 - Address family not supported by protocol).\n"  # noqa: E501
PYTHONS = f"{SITE}/torch/utils/checkpoint.py:238: UserWarning: None of the inputs have requires_grad=True. Gradients will be None\n  check_backward_validity(args)\n"  # noqa: E501
FUTURE = "/usr/lib/python3/dist-packages/deepspeed/runtime/zero/linear.py:49: FutureWarning: `torch.cuda.amp.custom_fwd(args...)` is deprecated.\n  def forward(ctx, input, weight, bias=None):\n"  # noqa: E501
ACCELERATE = """\
The following values were not passed to `accelerate launch` and had defaults used instead:
\t`--num_machines` was set to a value of `1`
\t\tMore than one GPU was found, enabling multi-GPU training.
\t`--dynamo_backend` was set to a value of `'no'`
To avoid this warning pass in values for each of the problematic parameters or run `accelerate config`.
"""
OF_LAUNCHER = {
    "store": STORE_IS_GONE, "barrier": BARRIER, "old barrier": OLD_BARRIER, "threads": THREADS, "closing": CLOSING,
    "older": OLDER, "not destroyed": NOT_DESTROYED, "socket": SOCKET, "UserWarning": PYTHONS,
    "FutureWarning": FUTURE, "accelerate": ACCELERATE,
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


def shown(*pieces: str | bytes) -> tuple[str, LauncherLines]:
    """What is shown of a log that grows by these pieces."""
    lines = LauncherLines()
    encoded = [piece if isinstance(piece, bytes) else piece.encode() for piece in pieces]
    parts = [lines.without(piece) for piece in encoded]
    return b"".join([*parts, lines.without(b"", last=True)]).decode(), lines


@pytest.mark.parametrize("text", OF_LAUNCHER.values(), ids=OF_LAUNCHER)
def test_a_launchers_own_lines_are_not_shown_and_are_kept(text: str) -> None:
    written, lines = shown(f"before\n{text}after\n")
    assert written == "before\nafter\n"
    assert [line.decode() for line in lines.last] == [line for line in text.splitlines() if line]
    assert shown(f"{text}{text}")[0] == ""
    assert shown(text[:-1])[0] == ""  # the run was killed while it wrote


@pytest.mark.parametrize("text", OWN)
def test_all_other_lines_pass(text: str) -> None:
    assert shown(f"before\n{text}")[0] == f"before\n{text}"
    assert shown(text.removesuffix("\n"))[0] == text.removesuffix("\n")
    for other in OF_LAUNCHER.values():
        assert shown(f"{other}before\n{text}{other}{text}")[0] == f"before\n{text}{text}"


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


@pytest.mark.parametrize("state", ["completed", "failed", "cancelled"])
def test_the_lines_are_shown_at_the_end_of_a_run_that_did_not_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harness: Harness, state: str
) -> None:
    run, stream = a_run(tmp_path / "runs", "local-1"), Screened()
    states = iter(["running", state])
    monkeypatch.setattr(follow, "look_at", lambda _: PolledState(next(states)))  # type: ignore[arg-type]  # a literal
    tail = tail_of(run.err, f"{SOCKET}mine\x1b[2J\n{STORE_IS_GONE}{BAR}", stream)
    assert wait_for_end(run, [tail]) == state
    told = "" if state == "completed" else f"\nof PyTorch and its launcher:\n{SOCKET}{STORE_IS_GONE[:-1]}"
    assert stream.getvalue() == f"mine[2J\n{BAR}\x1b[0m{told}", "at a terminal no line steers it"
    monkeypatch.undo()
    assert harness("logs", "local-1").stderr.startswith(f"{SOCKET}mine"), "the log has all"


def test_of_many_lines_the_last_are_shown_and_where_all_are(tmp_path: Path) -> None:
    stream = io.StringIO()
    tail = tail_of(
        tmp_path / "log.err", "".join(f"frame #{number}: f + 0x1 (0x2 in /x.so)\n" for number in range(100)), stream
    )
    tail.pump(last=True)
    tail.show_launcher_lines()
    first, *lines = stream.getvalue().splitlines()
    assert first == f"of PyTorch and its launcher (the last 60 lines of 100; all: less {tmp_path}/log.err):"
    assert [line.partition(":")[0] for line in lines] == [f"frame #{number}" for number in range(40, 100)]
