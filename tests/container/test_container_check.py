"""`check --image`: a training of one's own in two real images, of which one slows it down."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from harness.common.paths import ROOT
from tests.container.images import build, container, sif
from tests.waiting import limit_s

pytestmark = [pytest.mark.train, pytest.mark.long]  # a minute: four starts of PyTorch, and an image

TRAIN = """import os, time
import torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for _ in range(20):
    time.sleep(0.2 if os.environ.get("OF_THE_NEW_IMAGE") else 0.05)
    optimizer.zero_grad()
    model(torch.randn(8, 8)).sum().backward()
    optimizer.step()
"""


def test_two_images_are_compared_and_each_run_is_in_its_own(tmp_path: Path) -> None:
    recipe = f"Bootstrap: localimage\nFrom: {sif()}\n%environment\n    export OF_THE_NEW_IMAGE=1\n"
    (tmp_path / "new.def").write_text(recipe)
    build(tmp_path / "new.sif", tmp_path / "new.def")
    (tmp_path / "train.py").write_text(TRAIN)
    about = {"name": "boxed", "description": "x", "scheduler": "local", "device": "cpu", "gpus": {"request": "none"}}
    (tmp_path / "site.yaml").write_text(yaml.safe_dump({**about, "container": container()}))
    launch = "run -g 1 --no-profile --site site.yaml -- train.py"
    argv = [sys.executable, "-m", "harness", "check", "--image", str(sif()), "new.sif", launch, "--runs", "2", "--json"]
    environ = {name: text for name, text in os.environ.items() if name != "VIRTUAL_ENV"}
    environ |= {"PYTHONPATH": str(ROOT), "HARNESS_RUNS": str(tmp_path / "runs")}
    done = subprocess.run(
        argv, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False, timeout=limit_s(300)
    )
    assert done.returncode == 1, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert found["verdict"] == "worse" and found["b"]["treatment"] == "new.sif"
    images = [json.loads(path.read_text())["job"]["image"] for path in tmp_path.glob("runs/own/profiler/*/run.json")]
    assert sorted(images) == sorted([str(sif()), str(tmp_path / "new.sif")] * 2)
    asked = {each["name"]: (each["a"], each["b"]) for each in found["environment"]["asked"]}
    assert asked["image"] == (str(sif()), str(tmp_path / "new.sif"))
    assert found["environment"]["besides"] == []
