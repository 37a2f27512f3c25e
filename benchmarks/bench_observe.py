"""Whether `observe --` ever harms: short starts under faults of our own side. What it costs a step is a question to
bench_observer.py --word.

    python benchmarks/bench_observe.py OUT [--starts 1000] [--seed 1]

A start is a command with a known output and exit status, alone and behind the word, while something of ours fails: a
full disk (no file may grow), a folder that cannot be made, no /dev/shm, a closed home, what runs beside it killed. It
is harmed if its output, its exit status or the signal that ended it differ; then it is counted whether a process is
left.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
WORD = [sys.executable, "-I", "-m", "harness", "observe", "--no-report", "--"]
COMMANDS = {
    "a word": ["echo", "a  b"],
    "a status": ["sh", "-c", "echo x; exit 7"],
    "a signal": ["sh", "-c", "echo y; kill -TERM $$"],
    "its input": ["cat"],
    "Python": [sys.executable, "-c", "import sys; print(sys.flags.isolated); sys.exit(3)"],
    "a child of its own": ["sh", "-c", "sleep 0.05 & wait; echo z"],
    "nothing there": ["no-such-program"],
}
MARK = f"observe-starts-{os.getpid()}-"
KILLS = 'for pid in $(cat /proc/$PPID/task/$PPID/children); do [ $pid = $$ ] || kill -9 $pid; done; exec "$@"'
FAULTS = ("none", "none", "full disk", "no folder", "no shared memory", "closed home", "killed")


def _no_growth() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def start(words: list[str], folder: Path, fault: str, observed: bool) -> tuple[int, bytes]:
    """(exit status, output) of the command."""
    environ = {name: text for name, text in os.environ.items() if not name.startswith(("SLURM", "HARNESS", "PYTHON"))}
    limit: Callable[[], None] | None = None
    if fault == "full disk" and observed:
        limit = _no_growth
    if fault == "no folder":
        (folder / "runs").touch()
        environ["SCRATCH"] = "/proc/nowhere"
    if fault == "closed home":
        environ["HOME"] = "/proc/nowhere"
    argv = [*WORD, *words] if observed else words
    if fault == "killed" and observed:
        argv = [*WORD, "sh", "-c", KILLS, "sh", *words]
    if fault == "no shared memory":
        argv = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o ro none /dev/shm; exec "$@"', "sh", *argv]
    try:
        done = subprocess.run(
            argv, cwd=folder, env=environ, input=b"some input\n", capture_output=True, preexec_fn=limit, check=False
        )
    except FileNotFoundError:
        return 127, b""
    return done.returncode, done.stdout


def starts(count: int, seed: int) -> dict[str, object]:
    """How many starts of `count` were harmed, and how."""
    draw, harmed, seen = random.Random(seed), [], Counter[str]()
    for number in range(count):
        name, fault = draw.choice(sorted(COMMANDS)), draw.choice(FAULTS)
        words = COMMANDS[name]
        with tempfile.TemporaryDirectory(prefix=MARK) as alone, tempfile.TemporaryDirectory(prefix=MARK) as behind:
            wanted = start(words, Path(alone), fault, observed=False)
            got = start(words, Path(behind), fault, observed=True)
        seen[fault] += 1
        if fault == "no shared memory" and words[0] == "no-such-program":
            wanted = (127, b"")
        if got != wanted:
            harmed.append({"number": number, "command": name, "fault": fault, "wanted": str(wanted), "got": str(got)})
    time.sleep(2)
    left = subprocess.run(["pgrep", "-fc", MARK], capture_output=True, text=True, check=False).stdout
    return {"starts": count, "harmed": harmed, "faults": dict(seen), "left": int(left or 0)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--starts", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    os.environ["PYTHONPATH"] = str(REPOSITORY)
    begin_s = time.monotonic()
    found = starts(asked.starts, asked.seed) | {"minutes": (time.monotonic() - begin_s) / 60}
    asked.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
