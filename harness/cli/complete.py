"""`--install-completion`: the lines with which the user's shell completes our words. Typer has them for a command; a
checkout's is two words, bash and a file, so bash gets our own."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

from harness.common.paths import IN_CHECKOUT, PROGRAM

_LINES = """\
# Completes the words after {program}. Written by {program} --install-completion.
_slurm_sh_completion() {{
  local at=$COMP_CWORD words=("${{COMP_WORDS[@]}}") IFS=$'\\n'
  if [[ ${{words[0]}} == bash ]]; then
    [[ ${{words[1]}} == *{program} && $at -gt 1 ]] || return
    words=("${{words[@]:1}}") at=$((at - 1))
  fi
  COMPREPLY=($(IFS=' ' && COMP_WORDS="${{words[*]}}" COMP_CWORD=$at {variable}=complete_bash {python} -I -m harness))
}}
complete -o default -F _slurm_sh_completion bash {program} ./{program}
"""


def install(variable: str) -> str:
    """Write them for the shell that runs us; returns what to do next. variable: asks us for words."""
    from typer import completion

    if not IN_CHECKOUT or "bash" not in os.environ.get("SHELL", "bash"):
        shell, path = completion.install(prog_name=PROGRAM, complete_var=variable)  # type: ignore[attr-defined]
        return f"{shell} completes {PROGRAM} from its next start on ({path})"
    file, start = Path.home() / ".bash_completions" / f"{PROGRAM}.sh", Path.home() / ".bashrc"
    file.parent.mkdir(exist_ok=True)
    file.write_text(
        _LINES.format(program=PROGRAM, variable=variable, python=shlex.quote(str(Path(sys.prefix) / "harness-python")))
    )
    line = f"source {shlex.quote(str(file))}\n"
    before = start.read_text() if start.exists() else ""
    if line not in before:
        start.write_text(f"{before}{line}")
    return f"bash completes {PROGRAM} from its next start on ({file})"
