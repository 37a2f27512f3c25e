"""What a submission brings besides the request: variables of the shell that change how a training communicates or
computes, and edits of a script that was submitted by hand. Standard library only."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from hashlib import sha256
from typing import Any, NamedTuple

from harness.common.display.format import cut
from harness.common.display.printable import printable
from harness.common.system.inherited import read_by_libraries
from harness.common.system.secrets import MASK, is_secret

_OF_BACKEND = "CUDA_VISIBLE_DEVICES"
_MOST_SHOWN = 60  # characters of a value

# Not passed to sbatch by us, or no property of a job.
_OF_NO_JOB = ("SBATCH_WAIT", "SBATCH_ARRAY_INX", "SBATCH_DEBUG", "SBATCH_IGNORE_PBS")
AS_REQUESTED = "as requested"


def passed_on(environ: Mapping[str, str], set_by_job: Container[str]) -> dict[str, str]:
    """Those of an environment, by name, without secrets. set_by_job: what the job sets itself.

    >>> passed_on({"NCCL_P2P_LEVEL": "LOC", "NCCL_DEBUG": "INFO", "CUDA_HOME": "/usr", "HOME": "/"}, ["NCCL_DEBUG"])
    {'NCCL_P2P_LEVEL': 'LOC'}
    """
    kept = [name for name in read_by_libraries(environ) if name != _OF_BACKEND and name not in set_by_job]
    return {name: environ[name] for name in kept if not is_secret(name, environ[name])}


def for_sbatch(environ: Mapping[str, str], options: Iterable[str]) -> dict[str, str]:
    """The variables of an environment that sbatch obeys: those whose option is not among `options`, which overrule
    them. A value that looks like a secret is masked.

    >>> shell = {"SBATCH_MEM_PER_NODE": "100M", "SBATCH_TIMELIMIT": "1:00", "SBATCH_WCKEY": "a", "SBATCH_DEBUG": "1"}
    >>> for_sbatch(shell, ["-t 0:10", "--nodes=1"])
    {'SBATCH_MEM_PER_NODE': '100M', 'SBATCH_WCKEY': 'a'}
    """
    given = {_whole(option.partition("=")[0].partition(" ")[0]) for option in options}
    names = [name for name in sorted(environ) if name.startswith("SBATCH_") or name == "SLURM_CLUSTERS"]
    obeyed = [name for name in names if name not in _OF_NO_JOB and option_of_variable(name) not in given]
    return {name: MASK if is_secret(name, environ[name]) else environ[name] for name in obeyed}


def option_of_variable(name: str) -> str:
    """The option of sbatch that a variable stands for.

    >>> option_of_variable("SBATCH_GPUS_PER_NODE"), option_of_variable("SBATCH_TIMELIMIT")
    ('--gpus-per-node', '--time')
    """
    short = name.partition("_")[2]
    return f"--{_OPTIONS.get(short) or short.lower().replace('_', '-')}"


# Where sbatch's names differ. Ours always give --no-requeue, which also overrules SBATCH_REQUEUE.
_OPTIONS = {"TIMELIMIT": "time", "MEM_PER_NODE": "mem", "REQ_SWITCH": "switches", "WAIT4SWITCH": "switches"}
_OPTIONS |= {"REQUEUE": "no-requeue", "ARRAY_INX": "array"}
_SHORT = {"A": "account", "C": "constraint", "G": "gpus", "J": "job-name", "M": "clusters", "O": "overcommit"}
_SHORT |= {"S": "core-spec", "e": "error", "i": "input", "k": "no-kill", "m": "distribution", "o": "output"}
_SHORT |= {"p": "partition", "q": "qos", "t": "time"}


def _whole(option: str) -> str:
    """The long name of an option, as `-C` has one."""
    return option if option.startswith("--") else f"--{_SHORT.get(option[1:2], option)}"


def variables_in(facts: Mapping[str, Any] | None, part: str = "inherited") -> dict[str, str]:
    """Those that the facts of a run in its summary name, or its `limits`; none in a run from before."""
    found = (facts or {}).get(part)
    return {str(name): str(value) for name, value in found.items()} if isinstance(found, dict) else {}


def variables_in_words(variables: Mapping[str, str]) -> str:
    """Variables on one line, long values cut.

    >>> variables_in_words({"NCCL_IB_DISABLE": "1", "NCCL_P2P_LEVEL": "LOC"})
    'NCCL_IB_DISABLE=1, NCCL_P2P_LEVEL=LOC'
    """
    return ", ".join(
        cut(printable(f"{name}={value}"), len(name) + 1 + _MOST_SHOWN) for name, value in variables.items()
    )


class Edit(NamedTuple):
    """lines: that were added, or those that were removed where these are more. checksum: tells two edits apart."""

    lines: int
    checksum: str

    @property
    def words(self) -> str:
        """
        >>> Edit(1, "").words, Edit(2, "").words
        ('1 line differs', '2 lines differ')
        """
        return "1 line differs" if self.lines == 1 else f"{self.lines} lines differ"

    @property
    def setting(self) -> str:
        """
        >>> Edit(1, "").setting, Edit(2, "").setting
        ('edited (1 line)', 'edited (2 lines)')
        """
        return f"edited ({self.lines} {'line' if self.lines == 1 else 'lines'})"

    @property
    def sentence(self) -> str:
        """That the script of this run was edited, and where to see how."""
        return f"Its script was edited by hand ({self.words}): its page shows {'it' if self.lines == 1 else 'them'}"


def edit_of(difference: str) -> Edit | None:
    """What differs; None: nothing does.

    >>> edit_of("--- as requested\\n+++ as edited\\n@@ -1,2 +1,3 @@\\n a\\n-b\\n+c\\n+---\\n").lines
    2
    """
    if not difference:
        return None
    lines = difference.split("\n")
    names = [line[:4] for line in lines[:2]] == ["--- ", "+++ "]
    signs = [line[:1] for line in lines[2 * names :]]
    return Edit(max(map(signs.count, "+-")), sha256(difference.encode(errors="surrogatepass")).hexdigest()[:8])


def edit_in(facts: Mapping[str, Any] | None) -> Edit | None:
    """What the facts of a run in its summary say of it; None: nothing was edited, or the run is from before."""
    found = (facts or {}).get("edited")
    try:
        return Edit(int(found["lines"]), str(found["checksum"])) if found else None
    except (KeyError, TypeError, ValueError):
        return None
