"""What the training's Python can import, run by that Python, which may be a container's. Prints one line of JSON.

Runs by its path and with the standard library only: the container knows nothing of the harness.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import sys
from typing import Any

MODULES = ("torch", "accelerate", "transformers", "deepspeed", "megatron.core")


def imported(name: str) -> dict[str, str]:
    """The module's version, or why it cannot be imported."""
    try:
        module = importlib.import_module(name)
    except Exception as error:  # noqa: BLE001 - a broken package may raise anything
        text = str(error).strip().splitlines()
        return {"error": f"{type(error).__name__}: {text[0] if text else ''}"[:300]}
    return {"version": str(getattr(module, "__version__", "of unknown version"))}


def installed(name: str) -> dict[str, str]:
    """As `imported`, without running the package: whether it is there, and its version."""
    distribution = {"megatron.core": "megatron-core"}.get(name, name)
    try:
        return {"version": importlib.metadata.version(distribution)}
    except importlib.metadata.PackageNotFoundError:
        there = importlib.util.find_spec(name.partition(".")[0]) is not None
        return {"version": "of unknown version"} if there else {"error": "is not installed"}


def cuda() -> dict[str, Any]:
    """What torch sees of the GPUs: the CUDA or ROCm it was built with, how many, and the error when it sees none."""
    torch = importlib.import_module("torch")
    hip = getattr(torch.version, "hip", None)
    found: dict[str, Any] = {"platform": "ROCm" if hip else "CUDA", "built": hip or torch.version.cuda}
    found |= {"count": 0, "error": ""}
    if found["built"]:
        try:
            torch.cuda.init()
            found["count"] = torch.cuda.device_count()
        except (RuntimeError, AssertionError) as error:
            found["error"] = str(error).strip().splitlines()[0][:300]
    return found


def main() -> int:
    """`import`, or `installed` to import nothing: print what there is."""
    imports = sys.argv[1] == "import"
    modules = {name: (imported if imports else installed)(name) for name in MODULES}
    found = {"modules": modules, "cuda": cuda() if imports and "version" in modules["torch"] else None}
    print("\n" + json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
