"""The results of simulated jobs as the tables of docs/development/diagnosis.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from .judge import SURE, FaultResult, Result, StartResult

NEAR = 0.1  # of the lost time
NEAR_STEP = 0.03  # of a what-if's step
Due = tuple[Result, FaultResult]


def tables(results: Sequence[Result]) -> str:
    """All of them, in Markdown."""
    due = [(r, f) for r in results for f in r.faults if f.own_ns >= SURE * r.step_ns]
    parts = [_figures(results, due), _by_fault(due), _by_change(results), _wrong(due)]
    return "\n\n".join(parts)


def _part(count: int, of: int) -> str:
    return f"{count} of {of} ({count / max(of, 1):.1%})"


def _figures(results: Sequence[Result], due: Sequence[Due]) -> str:
    healthy = [r for r in results if not r.faults]
    cheap = [(r, f) for r in results for f in r.faults if f.own_ns < 0.01 * r.step_ns]
    pairs = [r for r in results if sum(f.own_ns >= SURE * r.step_ns for f in r.faults) > 1]
    right = [f for _, f in due if f.right]
    errors = [abs(f.error) for f in right if f.error is not None]
    changes = [abs(told / true - 1) for r in results for told, true in r.what_ifs.values()]
    rest = [abs(r.unexplained_ns / r.own_ns - 1) for r in results if r.unexplained_ns and r.own_ns]
    rows = [
        ("jobs; with a fault, with two, healthy", f"{len(results)}; {_counts(results)}, {len(healthy)}"),
        (f"faults that cost at least {SURE:.0%} of the step", f"{len(due)}"),
        ("cause, ranks and place right", _part(len(right), len(due))),
        ("lost time within 10 %; median error", f"{_near(errors, NEAR)}; {_middle(errors)}"),
        ("both of two faults right, the larger first", _part(sum(_both(r) for r in pairs), len(pairs))),
        ("healthy jobs with a false finding", _part(sum(bool(r.false) for r in healthy), len(healthy))),
        ("faults that cost less than 1 %, and are told all the same", _part(_told(cheap), len(cheap))),
        ("what-ifs: median error; within 3 %", f"{_middle(changes)}; {_near(changes, NEAR_STEP)}"),
        ("time that no finding explains: median error; within 10 %", f"{_middle(rest)}; {_near(rest, NEAR)}"),
        ("jobs with more promised than the devices' time allows", f"{sum(bool(r.broken) for r in results)}"),
        ("largest error of a replay with nothing changed", f"{max(r.replay_error for r in results):.2%}"),
    ]
    return "| | |\n|---|---|\n" + "\n".join(f"| {name} | {value} |" for name, value in rows)


def _counts(results: Sequence[Result]) -> str:
    return f"{sum(len(r.faults) == 1 for r in results)}, {sum(len(r.faults) == 2 for r in results)}"


def _both(r: Result) -> bool:
    return r.in_order and all(f.right for f in r.faults if f.own_ns >= SURE * r.step_ns)


def _told(faults: Iterable[Due]) -> int:
    return sum(f.place is not None and (f.told_ns or 0) > 0.05 * r.step_ns for r, f in faults)


def _middle(errors: Sequence[float]) -> str:
    return f"{median(errors):.1%}" if errors else "none"


def _near(errors: Sequence[float], limit: float) -> str:
    return _part(sum(error <= limit for error in errors), len(errors))


def _by_fault(due: Sequence[Due]) -> str:
    rows: dict[str, list[Due]] = {}
    for result, fault in due:
        rows.setdefault("two faults" if len(result.faults) > 1 else result.kind_of_fault, []).append((result, fault))
    lines = ["| fault | right | first | lost time within 10 %, median error |", "|---|---|---|---|"]
    for name, members in rows.items():
        errors = [abs(f.error) for _, f in members if f.right and f.error is not None]
        near = f"{sum(e <= NEAR for e in errors)} of {len(errors)}, {_middle(errors)}"
        right, first = sum(f.right for _, f in members), sum(f.right and f.place == 0 for _, f in members)
        lines.append(f"| {name} | {right} of {len(members)} | {first} | {near} |")
    return "\n".join(lines)


def _by_change(results: Sequence[Result]) -> str:
    names = sorted({name for r in results for name in r.what_ifs})
    lines = ["| what-if | jobs | error: median, nine of ten below |", "|---|---|---|"]
    for name in names:
        pairs = [r.what_ifs[name] for r in results if name in r.what_ifs]
        errors = sorted(abs(told / true - 1) for told, true in pairs)
        lines.append(f"| {name} | {len(errors)} | {_middle(errors)}, {errors[int(0.9 * (len(errors) - 1))]:.1%} |")
    return "\n".join(lines)


def _wrong(due: Sequence[Due]) -> str:
    wrong = [f"- {line(r)}" for r, f in due if not f.right]
    return "Wrong:\n\n" + "\n".join(dict.fromkeys(wrong)) if wrong else "None of them is wrong."


def start_table(results: Sequence[StartResult]) -> str:
    """Of the jobs that were recorded from their start, by kind."""
    rows: dict[str, list[StartResult]] = {}
    for result in results:
        rows.setdefault(result.name.rsplit("-", 1)[0], []).append(result)
    lines = ["| recorded from its start | right | time within 10 %, median error |", "|---|---|---|"]
    for name, members in rows.items():
        errors = [abs(r.error) for r in members if r.error is not None]
        near = f"{sum(e <= NEAR for e in errors)} of {len(errors)}, {_middle(errors)}" if errors else "nothing to tell"
        lines.append(f"| {name} | {sum(not r.wrong for r in members)} of {len(members)} | {near} |")
    wrong = [f"- {r.name}: {'; '.join(r.wrong)}" for r in results if r.wrong]
    return "\n".join([*lines, "", *(wrong or ["None of them is wrong."])])


def line(r: Result) -> str:
    """One job in words."""
    faults = "; ".join(_fault_words(f) for f in r.faults)
    marks = ["not in order"] * (not r.in_order) + [f"false: {', '.join(r.false)}"] * bool(r.false)
    where = f"{r.name}, {r.tool}, {r.bound}-bound {r.kind} x {r.ranks}"
    return "; ".join(filter(None, (f"{where}: step {r.step_ns / 1e6:.2f} ms", faults, *marks)))


def _fault_words(f: FaultResult) -> str:
    lost = f"{f.name} costs {f.own_ns / 1e6:.2f} ms"
    if f.place is None:
        return f"{lost}, not told"
    wrong = [name for name, good in (("ranks", f.ranks), ("place", f.where)) if not good]
    told = f"number {f.place + 1}, {(f.told_ns or 0) / 1e6:.2f} ms"
    return f"{lost}, {told}" + (f", wrong {' and '.join(wrong)}" if wrong else "")
