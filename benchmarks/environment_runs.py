"""Real rounds of bench_environment.py: a small training on this machine under two environments that differ in twelve
toy packages or in eight variables, of which it is known what slows it down."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import random
import subprocess
import sys
import sysconfig
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

THINGS = 12
STEP_S = 0.012
ROOT = Path(__file__).parents[1]
LAUNCH = "run -g 1 --no-profile -- train.py"
# Of a package: what it costs where the packages that it names are as new.
MODULE = """VERSION = {version!r}
def cost():
    return {cost} if all(__import__(name).VERSION == "2.0" for name in {others!r}) else 0.0
"""
TRAIN = """import importlib, time
import torch
toys = [importlib.import_module(f"toy_{number:02}") for number in range(THINGS)]
STEP_S = BASE * (1 + sum(toy.cost() for toy in toys))
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for _ in range(25):
    end = time.perf_counter() + STEP_S
    while time.perf_counter() < end:
        pass
    optimizer.zero_grad()
    model(torch.randn(8, 64)).sum().backward()
    optimizer.step()
"""
# Half of a step is products on all cores, half is Python.
BUSY = """import torch
model = torch.nn.Linear(900, 900)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
batch = torch.randn(400, 900)
for _ in range(25):
    kept = [{"number": str(i)} for i in range(12000)]
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
"""
BURNS = "import threading\nthreading.Thread(target=lambda: [None for _ in iter(int, 1)], daemon=True).start()\n"
HARMLESS = (
    "NCCL_ALGO=Ring",
    "NCCL_PROTO=LL",
    "NCCL_BUFFSIZE=1048576",
    "PYTHONOPTIMIZE=1",
    "UCX_TLS=tcp",
    "FI_PROVIDER=tcp",
)
SLOW = ("OMP_NUM_THREADS=1", "PYTHONMALLOC=debug", "PYTHONTRACEMALLOC=20", "PYTHONPATH=burns")


def real_rounds(out: Path, rounds: int, seed: int) -> Iterator[str]:
    """A line for each round as it ends, then the sums. Each round has a folder of its own below `out`."""
    yield "| round | what is slow | answer | right | checks | minutes |\n|---|---|---|---|---|---|"
    right = blamed = equal = 0
    for number in range(rounds):
        folder = (out / f"round-{seed}-{number}").resolve()
        folder.mkdir(parents=True)
        source = random.Random(f"{seed} {number}")
        begin = time.monotonic()
        truth, words = (
            _of_variables(folder, number // 4) if number % 4 == 3 else _of_packages(folder, number % 4, source)
        )
        found = _checked(folder, words)
        which = found.get("which") or {"cause": [], "acts_with": [], "is_enough": False, "steps": []}
        named = {_name(label) for label in (*which["cause"], *which["acts_with"])}
        good = named == truth if truth else found["verdict"] != "worse"
        right += good and bool(truth)
        equal += not truth
        blamed += not truth and not good
        said = ", ".join(sorted(named)) if which["is_enough"] else found["verdict"]
        minutes = (time.monotonic() - begin) / 60
        checks = 1 + len(which["steps"])
        yield f"| {number} | {', '.join(sorted(truth)) or 'nothing'} | {said} | {good} | {checks} | {minutes:.1f} |"
    yield f"\n{right} of {rounds - equal} are named rightly; {blamed} of {equal} equal pairs are blamed"


def _name(label: str) -> str:
    return label.partition("=")[0].split()[0]


def _of_packages(folder: Path, kind: int, source: random.Random) -> tuple[set[str], list[str]]:
    """One slow package, two that are slow only together, or none (0, 1, 2); the names of the slow ones, and flags."""
    slow = source.sample(range(THINGS), (1, 2, 0)[kind])
    names = [f"toy_{number:02}" for number in range(THINGS)]
    share = round(source.uniform(0.07, 0.2), 3)
    for number, name in enumerate(names):
        cost = share if slow and number == slow[0] else 0.0
        for version in ("1.0", "2.0"):
            others = [names[other] for other in slow[1:]]
            text = MODULE.format(version=version, cost=cost if version == "2.0" else 0.0, others=others if cost else [])
            _wheel(folder / "wheels", name, version, {f"{name}.py": text})
    (folder / "train.py").write_text(TRAIN.replace("THINGS", str(THINGS)).replace("BASE", str(STEP_S)))
    pythons = [
        _environment(folder / arm, folder / "wheels", names, version) for arm, version in (("a", "1.0"), ("b", "2.0"))
    ]
    return {names[number].replace("_", "-") for number in slow}, ["--python", *pythons]


def _of_variables(folder: Path, number: int) -> tuple[set[str], list[str]]:
    (folder / "train.py").write_text(BUSY)
    (folder / "burns").mkdir()
    (folder / "burns" / "sitecustomize.py").write_text(BURNS)
    slow = SLOW[number % len(SLOW)].replace("=burns", f"={folder}/burns")
    texts = [*HARMLESS[:3], slow, *HARMLESS[3:]]
    return {slow.partition("=")[0]}, [word for text in texts for word in ("--set", text)]


def _checked(folder: Path, words: Sequence[str]) -> Mapping[str, Any]:
    """The JSON of the check, whose runs stay in the folder."""
    command = [sys.executable, "-m", "harness", "check", *words, "--which", "--yes", "--json", LAUNCH]
    environ = os.environ | {"HARNESS_RUNS": str(folder / "runs"), "PYTHONPATH": str(ROOT), "HARNESS_SITE": "local"}
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)
    (folder / "said.txt").write_text(done.stderr)
    return json.loads(done.stdout) if done.stdout else {"verdict": done.stderr.strip().splitlines()[-1]}


def _environment(folder: Path, wheels: Path, names: Sequence[str], version: str) -> str:
    """The Python of a new environment with the toy packages, which also has the packages of this process."""
    python = str(folder / "bin" / "python")
    uv = str(Path(sys.executable).with_name("uv"))
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, str(folder)], check=True)
    how = ["--quiet", "--offline", "--no-index", "--find-links", str(wheels), "--python", python]
    subprocess.run([uv, "pip", "install", *how, *(f"{name}=={version}" for name in names)], check=True)
    site = next(folder.glob("lib/python3*/site-packages"))
    (site / "ours.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def _wheel(folder: Path, name: str, version: str, files: Mapping[str, str]) -> None:
    folder.mkdir(exist_ok=True)
    about = f"{name}-{version}.dist-info"
    texts = dict(files)
    texts[f"{about}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    texts[f"{about}/WHEEL"] = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    rows = [f"{path},sha256={_checksum(text)},{len(text)}" for path, text in texts.items()]
    texts[f"{about}/RECORD"] = "\n".join([*rows, f"{about}/RECORD,,", ""])
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in texts.items():
            archive.writestr(path, text)


def _checksum(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
