"""The errors that a run's log tells of: by Python with its line, by a launcher, by a shell. They are known also of a
program that ended before it imported PyTorch. Knows no run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from harness.common.display.format import cut
from harness.common.display.printable import COLOUR, printable
from harness.common.display.text import where
from harness.common.run_folder.run_files import ERR
from harness.heartbeats.lines import ProgramLine, is_users

LOG_BYTES = 1 << 18
MOST_TOLD = 300  # characters of what a program said
_LONGEST = 1000  # characters of a line that are looked at
_LAUNCHERS = {
    "accelerate/commands/": "accelerate",
    "deepspeed/launcher/": "deepspeed",
    "torch/distributed/run.py": "torchrun",
    "torch/distributed/launch": "torchrun",
}
# A line may begin with its rank, as PyTorch writes it, or with its task, as `srun --label` does.
_LABEL = re.compile(r"^(?:\[(?:rank|default)(\d+)\]: ?|(\d+): )")
# The end of a traceback. Launchers raise some errors because a rank failed, or because they were asked to end.
_RAISED = re.compile(
    r"(?:\w+\.)*(?!ChildFailed|CalledProcess|SignalException|KeyboardInterrupt)(?P<error>[^\W\d]\w*(?:: .+)?)"
)
_FRAME = re.compile(r'^ +File "([^"]+)", line (\d+)(?:, in (.+))?$', re.MULTILINE)
_OF_LAUNCHER = re.compile(r"^(?:[EW]\d{4} .*torch/distributed/elastic|Traceback \(most recent)", re.MULTILINE)
# Words of other programs, and the sentence on them.
_SAID = {
    r"^usage: .*\n(?:(?!usage: ).*\n)*?(?P<program>\S[^:\n]*): error: (?P<said>.+)$": (  # as argparse writes it
        "{program} does not accept its arguments: {said}"
    ),
    r"^(?P<program>\S+): (?P<said>cannot be started on \S+ \(.+\))$": "{program} {said}",  # as the node's program does
    r"^(?:\S*/)?(?P<program>[^\s/]+): line (?P<line>\d+): (?P<said>.+)$": "{said} ({program}:{line})",  # as bash does
}
# Of torchrun's and accelerate's last words: which rank, on which node, ended with which exit status, and when.
ROOT_CAUSE = re.compile(
    rb"Root Cause \(first observed failure\):\s+\[\d+\]:\s+time\s*:\s*(\S+)\s+host\s*:\s*(\S+)\s+"
    rb"rank\s*:\s*(\d+)[^\n]*\n\s*exitcode\s*:\s*(-?\d+)"
)


class LoggedError(NamedTuple):
    """rank: -1: it is of a launcher or of another program, or the log does not say of which rank. told: a sentence."""

    rank: int
    text: str
    place: ProgramLine | None
    told: str


def errors_of(log: Path) -> list[LoggedError]:
    """The errors in the order of the log: those of Python, and if there are none the last of another program."""
    text = _text_of(log)
    return list(_of_python(text)) or list(_of_others(text))[:1]


def last_line(log: Path) -> str:
    """The last line with a word, before a launcher tells that a rank failed; empty if there is none."""
    lines = [line for line in _OF_LAUNCHER.split(_text_of(log))[0].splitlines() if re.search(r"\w", line)]
    return cut(printable(lines[-1].strip()), MOST_TOLD) if lines else ""


def _text_of(log: Path) -> str:
    return "\n".join(line[:_LONGEST] for line in COLOUR.sub("", ERR.end_text(log, LOG_BYTES)).splitlines())


def _of_python(text: str) -> Iterator[LoggedError]:
    causes = sorted((at, int(rank)) for at, _, rank, _ in ROOT_CAUSE.findall(text.encode()))
    lines: dict[int, list[str]] = {causes[0][1] if causes else -1: []}
    unlabelled = next(iter(lines))
    for line in text.splitlines():
        label = _LABEL.match(line)
        rank = int(label[1] or label[2]) if label else unlabelled
        lines.setdefault(rank, []).append(line[label.end() :] if label else line)
    for rank, of_rank in lines.items():
        frames: list[str] = []
        for line in of_rank:
            if line.startswith(" "):
                frames.append(line)
                continue
            found = _RAISED.fullmatch(line) if any(map(_FRAME.match, frames)) else None
            if found:
                yield _error(rank, "\n".join(frames), cut(printable(found["error"]), MOST_TOLD))
            frames = []


def _error(rank: int, frames: str, text: str) -> LoggedError:
    places = [ProgramLine(file, int(line), function) for file, line, function in _FRAME.findall(frames)]
    place = next((place for place in reversed(places) if is_users(place.file)), None)
    launcher = next((name for part, name in _LAUNCHERS.items() if part in frames), "")
    at = f" ({where(place)})" if place and not launcher else ""
    return LoggedError(-1 if launcher else rank, text, place, f"{launcher or 'the program'} failed: {text}{at}")


def _of_others(text: str) -> Iterator[LoggedError]:
    for pattern, sentence in _SAID.items():
        if found := list(re.finditer(pattern, text, re.MULTILINE)):
            names = {name: " ".join(printable(part).split()) for name, part in found[-1].groupdict().items()}
            said = cut(sentence.format(**names), MOST_TOLD)
            yield LoggedError(-1, said, None, said)
