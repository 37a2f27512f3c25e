"""acceptance.html: all steps on one page without other files. Knows results, not how the steps found them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from results import Result, StepVerdict

STYLE = """
:root { color-scheme: light dark; font: 16px/1.45 system-ui, sans-serif }
body { max-width: 70rem; margin: 1.5rem auto; padding: 0 1rem }
table { border-collapse: collapse; width: 100% }
td, th { text-align: left; vertical-align: top; padding: .2rem .8rem .2rem 0; border-bottom: 1px solid #8884 }
td { overflow-wrap: anywhere }
td:first-child { width: 32% }
td:nth-child(2) { width: 8rem }
@media (max-width: 45rem) {
  th { display: none }
  tr { display: block; border-bottom: 1px solid #8884; padding: .3rem 0 }
  td { display: inline-block; border: 0; padding: 0 .6rem 0 0 }
  td:first-child, td:last-child { display: block; width: auto }
  td:nth-child(2) { width: auto }
}
.fail, .failed { color: light-dark(#b00020, #ff8a80); font-weight: 600 }
.pass, .done { color: light-dark(#0a6b2d, #7fdc9b) }
.lacks, .waiting, .partial { opacity: .75 }
"""
VERDICTS: tuple[StepVerdict, ...] = ("pass", "fail", "lacks")
WORDS = {
    "pass": "holds",
    "fail": "does not hold",
    "lacks": "lacks",
    "seen": "seen",
    "done": "done",
    "failed": "failed",
    "partial": "partly done",
    "waiting": "not yet",
}


def page(results: Sequence[Result], titles: Mapping[str, str]) -> str:
    """The page's HTML."""
    rows = "".join(_step_row(result, titles[result.step]) for result in results)
    sections = "".join(_section(result, titles[result.step]) for result in results if result.checks)
    head = "<tr><th>step</th><th>state</th><th>checks</th></tr>"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>GPU acceptance</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style></head><body><h1>GPU acceptance</h1>"
        f"<p>{escape(machine(results))}</p><table>{head}{rows}</table>{sections}</body></html>\n"
    )


def machine(results: Sequence[Result]) -> str:
    """Which machine this was, in one line."""
    numbers = next((result.numbers for result in results if result.step == "inventory"), {})
    gpu, torch = numbers.get("gpu") or {}, numbers.get("torch") or {}
    name = gpu.get("name") or "no GPU: steps ran a tiny model on the CPU, and what needs a GPU is not shown"
    driver = f", driver {gpu['driver_version']}" if gpu.get("driver_version") else ""
    return f"{name}{driver}, PyTorch {torch.get('torch', 'not found')}, CUDA {torch.get('cuda')}"


def _step_row(result: Result, title: str) -> str:
    counts = [f"{WORDS[v]}: {count}" for v in VERDICTS if (count := result.count(v))]
    parts = [*([escape(result.reason)] if result.reason else []), *counts, f"{result.seconds:.0f} s"]
    named = f'<a href="#{result.step}">{result.step}</a>' if result.checks else result.step
    return (
        f'<tr><td>{named}: {escape(title)}</td><td class="{result.state}">{WORDS[result.state]}</td>'
        f"<td>{' · '.join(text for text in parts if text)}</td></tr>"
    )


def _section(result: Result, title: str) -> str:
    rows = "".join(
        f'<tr><td>{escape(check.name)}</td><td class="{check.verdict}">{WORDS[check.verdict]}</td>'
        f"<td>{escape(check.said)}</td></tr>"
        for check in result.checks
    )
    return f'<h2 id="{result.step}">{result.step}: {escape(title)}</h2><table>{rows}</table>'
