"""Starts trainings with the real launchers, which fork their ranks from a process that has imported PyTorch.

Those imports are most of a small training's time, and here they are done once. Its argument is the launcher's name.
Each line on standard input asks for one training, as JSON; the answer is the launcher's exit status. Tests of whole
runs start a new interpreter for each rank, as a user does.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch.distributed.run as torchrun


def serve(launcher: str) -> None:
    """Answer until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            _launch(launcher, json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), file=answers, flush=True)


def _launch(launcher: str, order: dict[str, Any]) -> None:
    """Ends this process, and each rank that is forked from it, with its exit status."""
    for own, path in ((0, os.devnull), (1, order["log"]), (2, order["log"])):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND), own)
    os.chdir(order["folder"])
    run: Callable[[Any], None] = torchrun.run

    def fork_ranks(arguments: Any) -> None:
        arguments.run_path, arguments.start_method = True, "fork"
        run(arguments)

    torchrun.run = fork_ranks
    if launcher == "torchrun":
        torchrun.main(order["arguments"])
    else:
        from accelerate.commands.launch import launch_command, launch_command_parser

        launch_command(launch_command_parser().parse_args(order["arguments"]))
    sys.exit()


def import_for_accelerate() -> None:
    """What exercises 1 and 2 import, and what accelerate and transformers import at the first use."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    for name in ("accelerate.commands.launch", "deepspeed", "transformers.models.llama.modeling_llama"):
        import_module(name)
    import_module("transformers.models.mistral.modeling_mistral")
    for name in ("exercise_1_DDP", "exercise_2_DeepSpeed"):
        import_module(f"exercises.{name}.preparation")
    for name in [name for name in sys.modules if name.startswith(("exercises.", "harness."))]:
        del sys.modules[name]  # each rank imports ours itself, as it records when


def import_for_torchrun() -> None:
    """What exercise 3 imports."""
    from exercises.exercise_3_MegatronLM import runtime

    runtime.order_launches()
    runtime.install()  # megatron looks for CUDA while it is imported
    runtime.__dict__["install"] = lambda: None  # not undone: each rank inherits it
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # megatron warns of each optional package of NVIDIA
        for name in ("data", "engine", "hooks"):
            import_module(f"exercises.exercise_3_MegatronLM.{name}")
    import_module("torch._dynamo")  # the first optimizer of each rank would: half of a small training's time


if __name__ == "__main__":
    {"accelerate": import_for_accelerate, "torchrun": import_for_torchrun}[sys.argv[1]]()
    serve(sys.argv[1])
