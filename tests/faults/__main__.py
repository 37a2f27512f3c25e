"""reliability.md, from the table: `python -m tests.faults --write FILE`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from tests.faults.fault import Fault
from tests.faults.table import CASES, SECTIONS
from tests.traces.test_whoevers_files import KINDS

PLACES = {"slurm": "Slurm", "local": "here"}
HEAD = """# What goes wrong, and what is kept

Each line is a fault that the tests inject into a run, on a real Slurm of two nodes or on one machine without
Slurm ("here"). After each fault the tests compare the state that `slurm.sh status` and `slurm.sh ls` print with
Slurm's own state and the exit codes. They read every file that must still be there, look for the sentence, and check
that no process of the run is left. There are {slurm} faults on Slurm and {local} here. What a job's own commands do
(cancel, hold, suspend, requeue, a node that dies) is tested in `tests/slurm`.

```bash
bash scripts/test tests/faults         # the quick ones, which are in every run of the tests
bash scripts/test tests/faults --all   # all of them
bash scripts/test tests/container      # those in a real container (Apptainer)
```

The page is written from `tests/faults/`, and a test compares them. RUN is a job id, a name, a path or `last`. For every
fault, `bash slurm.sh status RUN` prints how the run ended, `bash slurm.sh logs RUN` its output, and
`bash slurm.sh report RUN` the results of its traces. `bash slurm.sh run RUN` makes the same run again."""
NOT_SHOWN = """## Faults that are not tested

- **The kernel ends a rank for lack of memory inside a cgroup of Slurm.** The tests' Slurm has no cgroups. Slurm's own
  state is then `OUT_OF_MEMORY`, which is shown as `failed`. Runs without Slurm are tested in real cgroups: `status`
  says which rank was killed, and why ([docs/watch.md](../watch.md#how-often-that-is-right)).
- **A disk that becomes read-only while files are open.** Only a real error of a disk does that; otherwise the
  kernel refuses the change.
- **A quota.** It needs a file system with quotas. Its error is handled in the same place as that of a full
  disk, and has the same sentence.
- **A node that is rebooted by Slurm.** The tests' nodes share one kernel. For the controller it is a node that does
  not answer.
- **A hung file server.** No signal ends a process that waits for a file server. Slurm ends such a job with its node.
- **A GPU that fails.** It needs one: [on a GPU](gpu.md)."""


def page() -> str:
    """The page as Markdown."""
    counts = {place: sum(case.place == place for case in CASES) for place in PLACES}
    tables = (line for section in SECTIONS for line in _section(section.title, section.faults))
    return "\n".join([HEAD.format(**counts), *tables, *_of_other_tools(), "", NOT_SHOWN]) + "\n"


def _of_other_tools() -> Iterator[str]:
    yield from ("", "## Files of other tools", "")
    yield "`tests/traces/test_whoevers_files.py` makes them at random: no report of them is `good` and wrong."
    yield from ("", "| file | what is done | the report says |", "|---|---|---|")
    for kind in KINDS:
        yield f"| {kind.file} | {kind.what_is_done} | {f'… {kind.told} …' if kind.told else 'nothing'} |"


def _section(title: str, faults: tuple[Fault, ...]) -> Iterator[str]:
    yield from ("", f"## {title}", "")
    yield from ("| fault | where | what you see | what is kept | what to type |", "|---|---|---|---|---|")
    for fault in faults:
        where = ", ".join(PLACES[place] for place in fault.where)
        yield f"| {fault.what} | {where} | {_seen(fault)} | {fault.kept} | {_typed(fault.then)} |"


def _seen(fault: Fault) -> str:
    """The state, and what is told of it; a launch that was refused, or a lost record, has only its sentence."""
    exits = "" if fault.exit_code is None else f", exit {fault.exit_code}"
    state = f"`{fault.state}`{exits}"
    by = "the launch says" if fault.told_by == "launch" else f"`{fault.told_by}` says"
    told = f"{by}: {fault.tells}"
    if fault.state in ("refused", "unknown"):
        return told
    return state if fault.tells in (fault.state, f"{fault.state}{exits}") else f"{state}; {told}"


def _typed(then: str) -> str:
    """Our own commands as code."""
    words = [f"`bash {part.strip()}`" if part.strip().startswith("slurm.sh") and " says" not in part else part
             for part in then.split("; ")]  # fmt: skip
    return "; ".join(words)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--write"] and len(sys.argv) == 3:
        Path(sys.argv[2]).write_text(page(), encoding="utf-8")
    else:
        sys.exit("usage: python -m tests.faults --write docs/development/reliability.md")
