"""Variables of the shell that would spoil a run, because every program that starts from it inherits them.

`scrub_environment` takes them out of an environment once, at the start of a command, so that no job, no worker and no
program of the site sees them. What the site's file sets is the job's own and is not looked at here. Standard library
only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from pathlib import PurePosixPath
from typing import NamedTuple

# slurm.sh names here what it had to leave behind itself, before Python starts.
NOT_PASSED = "HARNESS_NOT_PASSED"
SYSTEM = ("/etc", "/usr", "/opt")
MODULES = ("LMOD_PKG", "LMOD_ROOT", "LMOD_DIR", "MODULESHOME")
_SLOW = "every allocation would be traced, and every step would take longer"
_NOISE = "its lines would hide the output of the training"

# What Apptainer sets inside from such a variable counts more than what the job sets.
_INSIDE = re.compile(
    r"(APPTAINER|SINGULARITY)ENV_(PYTHON\w+|RUN_DIR|MASTER_(ADDR|PORT)|NODE|OMP_NUM_THREADS|HARNESS_\w+)"
)
_REPLACES = "in a container it would replace the job's own"
# What a launcher or MPI tells each rank that it starts, and where an outer launch meets.
_OF_A_LAUNCH = re.compile(
    r"RANK|WORLD_SIZE|LOCAL_(RANK|SIZE|WORLD_SIZE)|(NODE|GROUP|CROSS)_RANK|CROSS_SIZE|GROUP_WORLD_SIZE"
    r"|ROLE_(RANK|NAME|WORLD_SIZE)|MASTER_(ADDR|PORT)"
    r"|TORCHELASTIC_(RESTART_COUNT|MAX_RESTARTS|RUN_ID|USE_AGENT_STORE|ERROR_FILE)"
    r"|PET_(NNODES|NPROC_PER_NODE|NODE_RANK|RDZV_\w+|MASTER_(ADDR|PORT)|STANDALONE|LOCAL_ADDR)"
    r"|(OMPI|MV2)_COMM_WORLD_\w+|OMPI_(UNIVERSE_SIZE|APP_CTX_NUM_PROCS|FIRST_RANKS|NUM_APP_CTX)"
    r"|OMPI_MCA_(orte|prte|ess)_\w+|PMI_\w+|PMIX_(?!MCA_)\w+|MPI_LOCAL(RANKID|NRANKS)|HYDI_CONTROL_FD"
    r"|PALS_((LOCAL_)?RANKID|LOCAL_SIZE|NODEID|APID|FD|SPOOL_DIR)|FLUX_(TASK|JOB)_\w+|JSM_NAMESPACE_\w+"
    r"|HOROVOD_((LOCAL_|CROSS_)?(RANK|SIZE))|SUBMITIT_\w+",
    re.ASCII,
)
_OUTER = "of an outer launch, and the training would take itself for one of its ranks"
_FUNCTION = "a script would call it instead of the program"


class SpoilingVariable(NamedTuple):
    """A variable, what it would do to a run, and for which values."""

    name: str
    why: str
    spoils: Callable[[str, Mapping[str, str]], bool] = lambda value, environ: bool(value)


def _raises(value: str, _environ: Mapping[str, str]) -> bool:
    """Whether a filter of PYTHONWARNINGS makes errors; its actions may be shortened."""
    actions = (item.partition(":")[0].strip() for item in value.split(","))
    return any(action and "error".startswith(action) for action in actions)


def _is_not_the_sites(value: str, environ: Mapping[str, str]) -> bool:
    """Whether a BASH_ENV is the user's own: many sites make their `module` command with it."""
    sites = [*SYSTEM, *(environ[name] for name in MODULES if environ.get(name))]
    return bool(value) and not any(PurePosixPath(value).is_relative_to(folder) for folder in sites)


RULES = (
    SpoilingVariable("PYTHONHOME", "every Python would look there for its standard library"),
    SpoilingVariable("PYTHONPLATLIBDIR", "every Python would look there for its standard library"),
    SpoilingVariable("PYTHONOPTIMIZE", "the assertions of the training and its libraries would be skipped"),
    SpoilingVariable("PYTHONINSPECT", "Python would wait for input at its end, and lose its exit status"),
    SpoilingVariable("PYTHONSAFEPATH", "a training script would not find the modules beside it"),
    SpoilingVariable("PYTHONWARNINGS", "a library's warning would end the training", _raises),
    SpoilingVariable("PYTHONIOENCODING", "to print a character that it lacks would end the training"),
    SpoilingVariable("PYTHONDEVMODE", _SLOW),
    SpoilingVariable("PYTHONMALLOC", _SLOW),
    SpoilingVariable("PYTHONTRACEMALLOC", _SLOW),
    SpoilingVariable("PYTHONMALLOCSTATS", _NOISE),
    SpoilingVariable("PYTHONPROFILEIMPORTTIME", _NOISE),
    SpoilingVariable("PYTHONVERBOSE", _NOISE),
    SpoilingVariable("BASH_ENV", "every bash of the job would first run that file", _is_not_the_sites),
    SpoilingVariable("SHELLOPTS", "the job's script would run with your shell's options"),
    SpoilingVariable("BASHOPTS", "the job's script would run with your shell's options"),
    SpoilingVariable("POSIXLY_CORRECT", "bash and other programs would follow older rules"),
    SpoilingVariable("CDPATH", "`cd` in a line of the site file might enter another folder"),
)


def scrub_environment(environ: MutableMapping[str, str]) -> list[str]:
    """Take what spoils a run out of `environ`; returns a sentence for each variable."""
    named = environ.pop(NOT_PASSED, "").split()
    found = [r for r in RULES if r.name in named or r.spoils(environ.get(r.name, ""), environ)]
    for rule in found:
        environ.pop(rule.name, None)
    inside = [name for name in environ if _INSIDE.fullmatch(name)]
    for name in inside:
        del environ[name]
    why = {rule.name: rule.why for rule in found} | {name: _FUNCTION for name in named if name.endswith("()")}
    why |= dict.fromkeys(inside, _REPLACES)
    sentences = [f"{name} of your shell is not passed to the job: {reason}" for name, reason in why.items()]
    if outer := of_outer_launch(environ):
        is_one = len(outer) == 1
        what = f"{', '.join(outer)} of your shell {'is' if is_one else 'are'} not passed to the job"
        sentences.append(f"{what}: {'it is' if is_one else 'they are'} {_OUTER}")
    for name in outer:
        del environ[name]
    return sentences


def of_outer_launch(names: Iterable[str]) -> list[str]:
    """The variables by which a launcher tells a process which rank it is, sorted.

    >>> of_outer_launch(["RANK", "PMIX_RANK", "PMIX_MCA_gds", "PET_MAX_RESTARTS", "SLURM_PROCID", "FRANK"])
    ['PMIX_RANK', 'RANK']
    """
    return sorted(name for name in names if _OF_A_LAUNCH.fullmatch(name))
