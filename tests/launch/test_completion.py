"""bash completes the words after `bash slurm.sh`, from the lines that `--install-completion` writes."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.launch.launch_shared import Harness
from tests.waiting import limit_s

ASK = """
source "$HOME/.bashrc"
while read -ra COMP_WORDS; do
  COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) COMPREPLY=()
  _slurm_sh_completion
  printf '%s ' "${COMPREPLY[@]}"
  echo
done
"""
WORDS = {
    "bash slurm.sh rep": "report",
    "bash slurm.sh report --wi": "--window",
    "bash slurm.sh report --window g": "gpu",
    "bash slurm.sh -e 2 -n 2 -- --ds-no": "--ds-no-overlap",
    "bash slurm.sh -e 1 --site leo": "leonardo",
    "bash slurm.sh lesson 2a": "2a",
    "bash slurm.sh lesson mys": "mystery",
    "bash slurm.sh export paraver --eng": "--engine",
    "./slurm.sh status las": "last",
    "bash another-script.sh rep": "",
}


def test_words_are_completed(harness: Harness, tmp_path: Path) -> None:
    for _ in range(2):
        assert harness("--install-completion", HOME=str(tmp_path), SHELL="/bin/bash").returncode == 0
    assert Path(tmp_path, ".bashrc").read_text().count("source ") == 1
    typed = "".join(f"{words}\n" for words in WORDS)
    done = subprocess.run(
        ["bash", "-c", ASK], input=typed, env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}, capture_output=True,
        text=True, check=True, timeout=limit_s(),
    )  # fmt: skip
    assert dict(zip(WORDS, map(str.strip, done.stdout.splitlines()), strict=True)) == WORDS
