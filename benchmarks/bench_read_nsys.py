"""Reading an nsys export: whole columns from SQLite's pages, beside what SQLite's own interface takes for the same.

    python benchmarks/generate_nsys_sqlite.py /tmp/big.sqlite --kernels 5000000
    python benchmarks/bench_read_nsys.py /tmp/big.sqlite [--repeat 3]

`pages` and `sqlite3` read the same six columns of the kernels; `devices` is open_trace without the host's side,
`everything` all of it. Each runs in a process of its own, in turns; medians. `adbc` runs where the package is there."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path

from bench_peers import Cost, middle, run

ROOT = Path(__file__).parents[1]
_COLUMNS = ("start", "end", "deviceId", "streamId", "correlationId", "demangledName")
_TABLE = "CUPTI_ACTIVITY_KIND_KERNEL"
_PAGES = f"""
from pathlib import Path
from harness.traces.database import opened
def work(arguments):
    with opened(Path(arguments[0])) as database:
        assert len(database.integers("{_TABLE}", *{_COLUMNS})["start"])
"""
_SQLITE = f"""
import sqlite3
from itertools import chain
import numpy as np
def work(arguments):
    rows = sqlite3.connect(arguments[0]).execute('SELECT "{'","'.join(_COLUMNS)}" FROM {_TABLE}')
    assert len(np.fromiter(chain.from_iterable(rows), np.int64))
"""
_ADBC = f"""
import adbc_driver_sqlite.dbapi
def work(arguments):
    with adbc_driver_sqlite.dbapi.connect(arguments[0]) as connection, connection.cursor() as cursor:
        cursor.adbc_statement.set_options(**{{"adbc.sqlite.query.batch_rows": "65536"}})
        cursor.execute('SELECT "{'","'.join(_COLUMNS)}" FROM {_TABLE}')
        assert len(cursor.fetch_arrow_table())
"""
_OPEN = """
from harness.traces import open_trace
def work(arguments):
    assert len(open_trace(arguments[0], host=%s).events)
"""


def variants() -> dict[str, str]:
    """The programs that take turns."""
    found = {"pages": _PAGES, "sqlite3": _SQLITE, "devices": _OPEN % False, "everything": _OPEN % True}
    return found | ({"adbc": _ADBC} if importlib.util.find_spec("adbc_driver_sqlite") else {})


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("export", type=Path)
    parser.add_argument("--repeat", type=int, default=3)
    given = parser.parse_args()
    runs: dict[str, list[Cost]] = {}
    for _ in range(given.repeat):
        for name, code in variants().items():
            runs.setdefault(name, []).append(run(sys.executable, code, [str(given.export)], ROOT))
    print(f"{given.export.stat().st_size / 1e6:.0f} MB")
    for name, costs in runs.items():
        cost = middle(costs)
        print(f"  {name:10} {cost.work_cpu_s:6.2f} s cpu   memory {cost.rss_bytes / 1e6:5.0f} MB")


if __name__ == "__main__":
    main()
