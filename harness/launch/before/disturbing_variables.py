"""Variables of the environment that make measurements wrong, and what each does. Reads no environment."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


def _on(text: str) -> bool:
    return text.strip().lower() not in ("", "0", "false", "no", "off")


def _is(*words: str) -> Callable[[str], bool]:
    return lambda text: text.strip().upper() in words


class DisturbingVariable(NamedTuple):
    """A variable, the values that disturb, and what they do.

    slows: so much that each launch warns. breaks: programs may not start.
    """

    name: str
    disturbs: Callable[[str], bool]
    why: str
    slows: bool = False
    breaks: bool = False


DISTURBING_VARIABLES = (
    DisturbingVariable(
        "CUDA_LAUNCH_BLOCKING",
        _on,
        "each kernel waits for the one before: step times are not representative",
        slows=True,
    ),
    DisturbingVariable(
        "NCCL_DEBUG", _is("TRACE"), "NCCL writes a line for each call: slow, and gigabytes of log", slows=True
    ),
    DisturbingVariable("TORCH_DISTRIBUTED_DEBUG", _is("DETAIL"), "each collective is checked by a second one"),
    DisturbingVariable("NCCL_P2P_DISABLE", _on, "the GPUs of a node exchange data through host memory, not NVLink"),
    DisturbingVariable("NCCL_SHM_DISABLE", _on, "the ranks of a node exchange data through the network"),
    DisturbingVariable("NCCL_IB_DISABLE", _on, "the nodes exchange data by TCP, not InfiniBand"),
    DisturbingVariable("NCCL_ALGO", _on, "NCCL does not choose the algorithm by itself"),
    DisturbingVariable("NCCL_PROTO", _on, "NCCL does not choose the protocol by itself"),
    DisturbingVariable("TORCH_NCCL_BLOCKING_WAIT", _on, "the CPU waits in each collective, and no overlap is left"),
    DisturbingVariable("LD_PRELOAD", _on, "another library intercepts calls of every program, also of nsys"),
    DisturbingVariable(
        "PYTHONHOME", _on, "every Python looks there for its standard library, and may not start", breaks=True
    ),
)
