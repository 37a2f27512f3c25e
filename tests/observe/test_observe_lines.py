"""The sampler of lines looks at a thread that runs: it must see whole frames only."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

from harness.observe.lines import PeakMemory, SourceLine
from tests.waiting import limit_s

ROOT = Path(__file__).resolve().parents[2]
# Calls of functions with frames of many sizes, collections of garbage that run Python, and a thread switch at every
# chance. All frames count as other people's, so that every look goes through all of them. Before collections were
# switched off during a look, this wrote into foreign memory within seconds.
BUSY = """
import gc, sys, time
from pathlib import Path
from harness.observe import lines

lines.WINDOW_HZ = 20_000
gc.set_threshold(3)
sys.setswitchinterval(1e-6)
gc.callbacks.append(lambda *_: sum(range(50)))
functions = []
for size in range(40):
    names = ", ".join(f"a{i}" for i in range(size + 1))
    text = f"def call(n):\\n  {names}, *_ = {[float(i) for i in range(size + 1)]}\\n"
    text += f"  return 0 if n <= 0 else 1 + functions[(n * 7 + {size}) % 40](n - 1)\\n"
    space = {"functions": functions}
    exec(compile(text, __file__, "exec"), space)
    functions.append(space["call"])
sampler = lines.LineSampler()
sampler.write_to(Path(sys.argv[1]), 0)
sampler.in_step(True)
until = time.monotonic() + 6
while time.monotonic() < until:
    assert functions[7](20) == 20
sampler.close()
"""


def test_a_look_at_a_running_thread_sees_whole_frames(tmp_path: Path) -> None:
    script = tmp_path / "busy.py"
    script.write_text(BUSY, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", str(script), str(tmp_path)],
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=limit_s(),
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_peak_of_memory_belongs_to_the_line_that_made_most_of_it() -> None:
    first, second, third = (SourceLine("train.py", number, "main") for number in (1, 2, 3))
    peak = PeakMemory()
    seen = [(100, first), (100, first), (150, first), (240, second), (250, third), (120, first), (252, third)]
    highest = []
    for size, line in seen:
        peak.sees(size, line)
        highest.append(peak.highest)
    assert highest[2:5] == [(150, first), (240, first), (250, first)], "a third of the rise"
    assert highest[-1] is highest[4], "as high as before, within 2 %"
    steady = PeakMemory()
    for look in range(30):
        steady.sees(1000 + 100 * look, second if look == 1 else first)
    assert steady.highest == (3900, second), "the first of many looks that all have a small part"


# A module beside the script: the last line that the sampler saw, for a script that stays in a line until it was seen.
SEEN = """
from pathlib import Path
from harness.observe.lines import LineSampler

class Looks:
    line, is_over = 0, False
    def saw(self, look):
        self.line = look.places[0].line if look.places else 0
    def flush(self): ...
    def close(self): ...

looks = Looks()

def sampler(folder, rank):
    made = LineSampler(looks)
    made.write_to(Path(folder), rank)
    return made
"""


def test_each_place_is_described_once_and_only_changes_are_written(tmp_path: Path) -> None:
    (tmp_path / "seen.py").write_text(SEEN, encoding="utf-8")
    script = tmp_path / "sleeps.py"
    script.write_text(
        "import sys, time\nfrom seen import looks, sampler\n\n"
        "own = sampler(sys.argv[1], 3)\n"
        "for _ in range(2):\n    while looks.line != 6: time.sleep(0.02)\n    while looks.line != 7: time.sleep(0.02)\n"
        "own.close()\n",
        encoding="utf-8",
    )
    subprocess.run(
        [sys.executable, str(script), str(tmp_path)], env={"PYTHONPATH": str(ROOT)}, check=True, timeout=limit_s()
    )
    text = (tmp_path / "lines" / "rank3.jsonl").read_text(encoding="utf-8")
    events = [json.loads(line) for line in text.splitlines()]
    assert [event["event"] for event in (events[0], events[-1])] == ["start", "end"]
    places = {event["id"]: event for event in events if event["event"] == "place"}
    slept = {number: place for number, place in places.items() if place["line"] in (6, 7)}
    source = [f"    while looks.line != {number}: time.sleep(0.02)" for number in (6, 7)]
    assert [place["source"][1] for place in slept.values()] == source
    seen = [event for event in events if event["event"] == "at" and event["id"] in slept]
    assert [places[event["id"]]["line"] for event in seen] == [6, 7, 6, 7]
    times = [event["unix_ns"] for event in seen]
    assert times == sorted(times)


def test_a_place_has_the_users_lines_that_called_it_the_nearest_first(tmp_path: Path) -> None:
    (tmp_path / "seen.py").write_text(SEEN, encoding="utf-8")
    script = tmp_path / "calls.py"
    script.write_text(
        "import sys, time\nfrom seen import looks, sampler\n\n"
        "own = sampler(sys.argv[1], 0)\n"
        "def waits(n):\n    if n: return waits(n - 1)\n    while looks.line != 7: time.sleep(0.02)\n"
        "def calls():\n    sorted([1, 2], key=lambda _: waits(3) or 0)\ncalls()\nown.close()\n",
        encoding="utf-8",
    )
    subprocess.run(
        [sys.executable, str(script), str(tmp_path)], env={"PYTHONPATH": str(ROOT)}, check=True, timeout=limit_s()
    )
    lines = (tmp_path / "lines" / "rank0.jsonl").read_text(encoding="utf-8").splitlines()
    places = [event for event in map(json.loads, lines) if event["event"] == "place" and event["line"] == 7]
    (place,) = places
    assert place["function"] == "waits"
    assert [(Path(file).name, line, name) for file, line, name in place["callers"]] == [
        ("calls.py", 9, "<lambda>"),
        ("calls.py", 9, "calls"),
        ("calls.py", 10, "<module>"),
    ]


def test_in_profiled_steps_python_is_seen_between_calls_that_give_the_lock_away(tmp_path: Path) -> None:
    """With Python's own interval for switching threads, nearly all looks would find the short call in line 9."""
    script = tmp_path / "mixes.py"
    script.write_text(
        "import hashlib, sys\nfrom pathlib import Path\nfrom harness.observe.lines import LineSampler\n"
        "before, data = sys.getswitchinterval(), bytes(9000)\n"
        "sampler = LineSampler(); sampler.write_to(Path(sys.argv[1]), 0)\nsampler.in_step(True)\n"
        "for _ in range(800):\n    for x in range(60_000): pass\n    hashlib.sha256(data)\n"
        "sampler.in_step(False)\nassert sys.getswitchinterval() == before\nsampler.close()\n",
        encoding="utf-8",
    )
    subprocess.run(
        [sys.executable, str(script), str(tmp_path)], env={"PYTHONPATH": str(ROOT)}, check=True, timeout=limit_s()
    )
    text = (tmp_path / "lines" / "rank0.jsonl").read_text(encoding="utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    number = {event["line"]: event["id"] for event in lines if event["event"] == "place"}
    at = [(event["unix_ns"], event["id"]) for event in lines if event["event"] == "at"]
    spent = dict.fromkeys(number.values(), 0)
    for (begin, place), (end, _) in pairwise(at):
        if place is not None:
            spent[place] += min(end - begin, 100_000_000)  # a longer one is another program's
    assert spent[number[8]] > spent.get(number.get(9, -1), 0)
