"""reliability.md, from the table and what the suite measured: `python -m tests.faults --write FILE`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.analysis import test_numbered
from tests.exercises.launching import ROOT
from tests.faults import measured
from tests.faults.fault import Fault
from tests.faults.play import Case
from tests.faults.table import SECTIONS
from tests.faults.verdict import FaultOutcome
from tests.monitor import test_monitor_gpu_choice
from tests.report import test_nccl_log
from tests.traces import test_amd_files, test_archives
from tests.traces.test_whoevers_files import KINDS

ELSEWHERE: tuple[tuple[str, str, Callable[..., None]], ...] = (
    ("archives (tar, zip, 7z) and files packed by xz, bzip2, zstd or twice",
     "exit code 2, with the command that unpacks it; beside traces, the report names a packed one",
     test_archives.test_what_is_packed_is_known_by_its_content_and_said_with_what_unpacks_it),
    ("files of rocprof and rocprofv3 (JSON, CSV, Perfetto, OTF2)",
     "exit code 2, with what records a database that is read",
     test_amd_files.test_a_file_of_amd_is_said_with_what_to_record),
    ("reports of nsys named `report.0`, `report.1` …", "one job, if they count up from 0 and are of one time",
     test_numbered.test_reports_that_count_up_from_0_are_one_job),
    ("the report of a launcher, which has no work of a GPU", "it comes last, and is no rank",
     test_numbered.test_a_launcher_without_work_of_a_gpu_comes_last_and_is_no_rank),
    ("RCCL's log in the place of NCCL's", "its version, transports and groups are read as NCCL's are",
     test_nccl_log.test_rccls_connections_name_their_group_and_no_pointer_becomes_a_transport),
    ("a GPU that does not answer", "it has no samples, the others have; the report says which (a simulated NVML)",
     test_monitor_gpu_choice.test_with_a_fake_pynvml_one_lost_gpu_has_no_values_and_the_others_are_sampled),
    ("`CUDA_VISIBLE_DEVICES` with entries that name no GPU (empty, `-1`, `NoDevFiles`)",
     "only the job's GPUs are sampled, as CUDA counts them (a simulated NVML)",
     test_monitor_gpu_choice.test_cuda_visible_devices_chooses_the_jobs_gpus_up_to_the_first_entry_that_is_none),
)  # fmt: skip

PLACES = {"slurm": "Slurm", "local": "here"}
HEAD = """# What goes wrong, and what is kept

Each line is a fault that the tests inject into a run, on a real Slurm of two nodes or on one machine without
Slurm ("here"). After each fault the tests compare the state that `slurm.sh status` and `slurm.sh ls` print with
Slurm's own state and the exit codes. They read every file that must still be there, look for the sentence, and check
that no process of the run is left. There are {slurm} faults on Slurm and {local} here: no run was lost, and no state
was wrong.

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
    outcomes = measured.read()
    counts = {place: sum(name.startswith(f"{place}-") for name in outcomes) for place in PLACES}
    tables = (line for section in SECTIONS for line in _section(section.title, section.faults, outcomes))
    return "\n".join([HEAD.format(**counts), *tables, *_of_other_tools(), "", NOT_SHOWN]) + "\n"


def _of_other_tools() -> Iterator[str]:
    yield from ("", "## Files of other tools", "")
    yield "`tests/traces/test_whoevers_files.py` makes them at random: no report of them is `good` and wrong."
    yield from ("", "| file | what is done | the report says |", "|---|---|---|")
    for kind in KINDS:
        yield f"| {kind.file} | {kind.what_is_done} | {f'… {kind.told} …' if kind.told else 'nothing'} |"
    yield from ("", "Files and GPUs that another test makes:", "", "| what | what is done | test |", "|---|---|---|")
    for what, done, test in ELSEWHERE:
        yield f"| {what} | {done} | `{Path(test.__code__.co_filename).relative_to(ROOT)}::{test.__name__}` |"


def _section(title: str, faults: tuple[Fault, ...], outcomes: dict[str, FaultOutcome]) -> Iterator[str]:
    yield from ("", f"## {title}", "")
    yield from ("| fault | where | what you see | what is kept | what to type |", "|---|---|---|---|---|")
    for fault in faults:
        found = [outcomes[Case(fault, place).name] for place in fault.where]
        where = ", ".join(PLACES[place] for place in fault.where)
        yield f"| {fault.what} | {where} | {_seen(fault, found)} | {fault.kept} | {_typed(fault.then)} |"


def _seen(fault: Fault, found: list[FaultOutcome]) -> str:
    """The state, and where it was told; a launch that was refused, or a lost record, has only its sentence."""
    codes = {outcome.exit_code for outcome in found}
    exits = f", exit {next(iter(codes))}" if len(codes) == 1 and codes != {None} else ""
    told_only = fault.state in ("refused", "unknown")
    state = f"exit code {next(iter(codes), 1)}" if told_only else f"`{fault.state}`{exits}"
    told = found[0].told.strip().replace("|", "\\|")
    if told in ("", fault.state, f"{fault.state}{exits}") or len(told) > 200 or set(told) == {"x"}:
        return state
    by = "the launch says" if fault.told_by == "launch" else f"`{fault.told_by}` says"
    return f"{state}; {by}: {told}"


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
