"""Refuses a commit's message without a short subject and a reason: `commit_message.py FILE`, called by scripts/hooks.

Exit status 1 with a sentence for each fault. A message that git writes (a merge) or will replace (a fixup) passes.
"""

from __future__ import annotations

import sys
from pathlib import Path

LONGEST_SUBJECT = 72  # characters: `git log --oneline` in a terminal of 80 columns
SCISSORS = "# ------------------------ >8 ------------------------"
BY_GIT = ("Merge ", "fixup! ", "squash! ", "amend! ")


def faults(message: str) -> list[str]:
    """What is wrong with a message, a sentence for each fault."""
    kept = message.partition(SCISSORS)[0].splitlines()
    lines = "\n".join(line for line in kept if not line.startswith("#")).strip().splitlines()
    subject, rest = (lines[0], lines[1:]) if lines else ("", [])
    if subject.startswith(BY_GIT):
        return []
    sentences = []
    if len(subject) > LONGEST_SUBJECT:
        sentences.append(f"the subject has {len(subject)} characters: {LONGEST_SUBJECT} at most")
    if rest and rest[0].strip():
        sentences.append(f"the second line is not empty ({rest[0]!r}): the subject is one line")
    if not any(map(str.strip, rest)):
        sentences.append("the message has no body: write the reason below an empty line")
    return sentences


def main(argv: list[str]) -> int:
    """Print what is wrong with the message in the file."""
    path = Path(argv[0])
    sentences = faults(path.read_text(encoding="utf-8"))
    for sentence in sentences:
        print(f"commit message: {sentence}", file=sys.stderr)
    if sentences:
        print(f"Your text is still in {path}", file=sys.stderr)
    return int(bool(sentences))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
