"""accelerate or torchrun, with the training's own exit status.

Both launchers turn every failure into exit status 1 and so hide that of the failed rank. Start this module instead of
them: `python -m exercises.utils.launch accelerate|torchrun|deepspeed ARGUMENTS…`; or start the file by its path, where
neither the project nor this folder may be on the path of the ranks. It runs on any Python from 3.8 on.
"""

from __future__ import annotations

import argparse
import base64
import gc
import importlib
import json
import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

# Executed, not imported: a file that was started by its path cannot import the project, and must not.
_PROJECT = Path(__file__).resolve().parents[2]
announce = runpy.run_path(str(_PROJECT / "exercises/utils/announce.py"))["announce"]
_NAMES = runpy.run_path(str(_PROJECT / "harness/common/torchrun.py"))
TORCHRUN, TORCHRUN_JSC = str(_NAMES["TORCHRUN"]), str(_NAMES["TORCHRUN_JSC"])


def _accelerate(arguments: list[str]) -> None:
    if os.environ.get("ACCELERATE_USE_CPU") == "true":
        # Otherwise DeepSpeed looks for GPUs and warns about their absence in each process, also in this one.
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    from accelerate.commands.launch import launch_command, launch_command_parser

    launch_command(launch_command_parser().parse_args(arguments))


def _torchrun(arguments: list[str]) -> None:
    from torch.distributed import run

    run.run(run.parse_args(arguments))  # type: ignore[no-untyped-call]


def _deepspeed(arguments: list[str]) -> None:
    """`WORLD NODE ARGUMENT…`: deepspeed's launcher of one node. WORLD: `{"node0": [0, 1], …}`, its devices, as JSON."""
    if os.environ.get("ACCELERATE_USE_CPU") == "true":
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    from deepspeed.launcher import launch  # type: ignore[import-untyped]

    world, node, rest = json.loads(arguments[0]), arguments[1], arguments[2:]
    # It numbers the devices by this list, where a job may use others than the first.
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    if len(visible) == len(world[f"node{node}"]) and all(visible):
        world[f"node{node}"] = visible
    coded = base64.urlsafe_b64encode(json.dumps(world).encode()).decode()
    sys.argv = [launch.__file__, f"--world_info={coded}", f"--node_rank={node}", *rest]
    launch.main()


def meet_as_at_jsc() -> None:
    """From here on, ranks of several nodes meet by c10d, which torchrun_jsc repairs for JSC's InfiniBand names.

    accelerate and torchrun end in the same function with the same options. torchrun_jsc changes those on the command
    line, as `torchrun --rdzv-endpoint=HOST:PORT` would have them.

    Raises SystemExit: this Python has no torchrun_jsc.
    """
    try:
        jsc = importlib.import_module(TORCHRUN_JSC)
    except ImportError as error:
        sys.exit(
            f"{sys.executable} has no {TORCHRUN_JSC}, which the site asks for ({error}): install it there "
            "(containers/README.md), or set network.torchrun: torchrun in the site file"
        )
    from torch.distributed import run

    plain = run.run

    def repaired(options: argparse.Namespace) -> None:
        if int(options.nnodes) > 1:
            meeting = run.get_rdzv_endpoint(options)  # type: ignore[no-untyped-call]
            # In a step of its own, Slurm's number of this node is 0 on every node.
            os.environ["TORCHRUN_JSC_NODE_RANK"] = str(options.node_rank)
            sys.argv = ["torchrun", f"--rdzv-endpoint={meeting}", options.training_script]
            jsc.apply_fixes()
            fixed = run.parse_args(sys.argv[1:])  # type: ignore[no-untyped-call]
            options.rdzv_backend, options.rdzv_endpoint = "c10d", meeting
            options.rdzv_conf, options.local_addr = fixed.rdzv_conf, fixed.local_addr
            options.node_rank = 0  # c10d gives out the numbers, in the order of the nodes' names
        plain(options)  # type: ignore[no-untyped-call]

    run.run = repaired


LAUNCHERS: dict[str, Callable[[list[str]], None]] = {
    "accelerate": _accelerate,
    "torchrun": _torchrun,
    "deepspeed": _deepspeed,
}


def shell_status(code: int) -> int:
    """An exit status as a shell reports it: 128 + n for signal n."""
    return 128 - code if code < 0 else code


def launch(launcher: str, arguments: list[str]) -> int:
    """Run the launcher; returns 0, or the exit status of the first rank that failed."""
    announce(f"starting {launcher}, which imports PyTorch")
    gc.disable()
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    gc.freeze()  # what is imported is never garbage
    gc.enable()
    if os.environ.get(TORCHRUN) == TORCHRUN_JSC:
        meet_as_at_jsc()
    announce("starting the ranks, each of which imports PyTorch")
    try:
        LAUNCHERS[launcher](arguments)
    except ChildFailedError as error:
        return shell_status(error.get_first_failure()[1].exitcode)
    except subprocess.CalledProcessError as error:  # accelerate with a single process
        return shell_status(error.returncode)
    except SignalException as error:
        return 128 + error.sigval
    except SystemExit as error:  # deepspeed's launcher, with the status of the rank that failed
        return shell_status(error.code) if isinstance(error.code, int) else int(error.code is not None)
    return 0


if __name__ == "__main__":
    if not __package__:
        del sys.path[0]  # this folder
    code = launch(sys.argv[1], sys.argv[2:])
    gc.freeze()  # Python looks once more when it ends
    sys.exit(code)
