"""The cells of configs/report.ipynb, run without Jupyter: one after the other in one namespace."""

from __future__ import annotations

import gc
import json
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest
from matplotlib.figure import Figure

from harness.common.errors import HarnessError
from harness.common.paths import CONFIGS

NOTEBOOK = json.loads((CONFIGS / "report.ipynb").read_text(encoding="utf-8"))
CELLS = [(cell, "".join(cell["source"])) for cell in NOTEBOOK["cells"]]
CODE = [source for cell, source in CELLS if cell["cell_type"] == "code"]
WORDS = "\n".join(source for cell, source in CELLS if cell["cell_type"] == "markdown")
OF_TRACES = {source for cell, source in CELLS if "raises-exception" in cell["metadata"].get("tags", [])}


def executed(
    monkeypatch: pytest.MonkeyPatch, run: Path | str, other: Path | None = None, *, traces: bool = True
) -> tuple[dict[str, Any], list[Figure]]:
    """The names that the cells leave, and the figures that they show. A warning, as of a plot without room, fails.
    traces: whether the run has some; else the cells that open them may say so."""
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
    assert (names["RUN"], names["OTHER_RUN"]) == ("last", None), "the first cell, which students change"
    names |= {"RUN": str(run), "OTHER_RUN": other and str(other)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for code in cells:
            with suppress(*[HarnessError] * (code in OF_TRACES and not traces)):
                exec(compile(code, "a cell", "exec"), names)
        gc.collect()
    assert not plt.get_fignums(), "a figure that was not shown"
    return names, figures
