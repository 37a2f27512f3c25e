"""The cells of configs/report.ipynb, run without Jupyter: one after the other in one namespace."""

from __future__ import annotations

import gc
import json
import warnings
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest
from matplotlib.figure import Figure

from harness.common.paths import CONFIGS

NOTEBOOK = json.loads((CONFIGS / "report.ipynb").read_text(encoding="utf-8"))
CODE = ["".join(cell["source"]) for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]


def executed(
    monkeypatch: pytest.MonkeyPatch, run: Path, other: Path | None = None
) -> tuple[dict[str, Any], list[Figure]]:
    """The names that the cells leave, and the figures that they show. A warning, as of a plot without room, fails."""
    figures: list[Figure] = []

    def show() -> None:
        figures.append(plt.gcf())
        plt.gcf().canvas.draw()
        plt.close("all")

    plt.switch_backend("agg")
    monkeypatch.setattr(plt, "show", show)
    names: dict[str, Any] = {}
    first, *cells = CODE
    exec(first, names)
    assert set(names) >= {"RUN", "OTHER_RUN"}, "the first cell, which students change"
    names |= {"RUN": str(run), "OTHER_RUN": other and str(other)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for code in cells:
            exec(compile(code, "a cell", "exec"), names)
        gc.collect()
    assert not plt.get_fignums(), "a figure that was not shown"
    return names, figures
