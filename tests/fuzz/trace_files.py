"""Traces of every tool, changed by slips and attacks: fields, types and values, then bytes, packed or not."""

from __future__ import annotations

import gzip
import sqlite3
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from tests.fuzz.fence import Case
from tests.fuzz.hostile import NUMBERS, TEXTS
from tests.fuzz.mutate import as_json, bytes_changed, changed, cut
from tests.synthetic import kineto, nsys, rocpd
from tests.synthetic.job import BASE_NS, events

_COLUMNS = (
    None, 0, -1, 1, 2**31, 2**32, 2**53, 2**63 - 1, -(2**63), 1e308, float("inf"), 0.5, "", "a", "9" * 40, b"\xff\x00",
    b"", 10**15, -(10**15), 2**62, -(2**62),
)  # fmt: skip
_KINDS = ("INT", "TEXT", "BLOB", "REAL", "")


def header(rank: int) -> dict[str, Any]:
    """The beginning of the rank's file."""
    group = {"pg_name": "0", "pg_desc": "default_pg", "pg_size": 2, "ranks": [0, 1]}
    told = {"backend": "nccl", "rank": rank, "world_size": 2, "pg_config": [group]}
    devices = [{"id": d, "name": "NVIDIA A100", "numSms": 108} for d in (0, 1)]
    return {"schemaVersion": 1, "deviceProperties": devices, "distributedInfo": told, "host_name": f"n{rank}",
            "baseTimeNanoseconds": BASE_NS}  # fmt: skip


@cache
def _whole(rank: int, short: bool) -> tuple[Any, ...]:
    """Header, records and footer, with times as JSON's own numbers."""
    records = kineto.gpu_step() if short else events(rank)
    plain = [{k: float(v) if isinstance(v, kineto.Number) else v for k, v in record.items()} for record in records]
    return header(rank), plain, kineto.FOOTER


@cache
def kineto_rank(rank: int) -> bytes:
    """The rank's file as it should be."""
    return kineto.kineto_text(events(rank), "json.dump", header=header(rank))


def kineto_files(head: int, parts: Sequence[int]) -> Case:
    """Two ranks' Kineto files of these numbers, of which one is changed, and a command that measures them."""
    chance = Random(head)
    how, lacks = chance.random(), chance.random() < 0.25
    if how < 0.55:
        start, records, end = _whole(0, short=chance.random() < 0.5)
        # The header is small, and most of what is read of it is read nowhere else.
        if chance.random() < 0.4:
            start = changed(start, parts)
        else:
            records = changed(records, parts)
        whole = {**start, "traceEvents": records, **end} if isinstance(start, dict) else start
        content = as_json(whole, indent=chance.choice((None, 1, 2))).encode()
    else:
        layout = chance.choice(sorted(kineto.LAYOUTS))
        whole = kineto.kineto_text(events(0), layout, header=header(0))
        content = whole if lacks else bytes_changed(whole, parts)  # a change may end the file where it is cut
    if packed := chance.random() < 0.4:
        content = gzip.compress(content, 1)
        if how >= 0.55 and not lacks and chance.random() < 0.4:
            content = bytes_changed(content, parts[:2])
    if lacks:
        content = cut(content.rstrip(), chance)
    name = "new/rank0.json" + ".gz" * packed
    return Case([_looked_at(chance, "new")], {name: content, "new/rank1.json": kineto_rank(1)}, cut=lacks)


def _looked_at(chance: Random, folder: str) -> list[str]:
    usual = ["report", folder, "--no-html", "--json"]
    others = (
        ["report", folder, "--html", "new/page.html"],
        ["report", folder, "--no-html", "--full"],
        ["whatif", folder],
        ["report", folder, "--no-html", "--window", "gpu"],
        ["export", "perfetto", folder],
        ["export", "paraver", folder, "--engine", "own"],
        ["compare", folder, "torch"],
        ["export", "csv", folder, "-o", "new/csv"],
    )
    return usual if chance.random() < 0.7 else chance.choice(others)


def _job() -> nsys.Nsys:
    """Steps of one device with all that is counted."""
    made = nsys.Nsys()
    made.add("TARGET_INFO_GPU", vmId=1, id=1, name="NVIDIA A100", cuDevice=0)
    made.call("cudaMemcpyAsync_v3020", 4_000, 500, correlation=22)
    made.copy(31_000, 4_000, kind=1, source=0)
    for step in range(4):
        t = 100_000 + step * 100_000
        made.range(f"batch_{step}", t, 90_000)
        made.call("cudaLaunchKernel_v7000", t + 1_000, 500, correlation=100 + step)
        made.kernel("void gemm<float>(float*)", t + 3_000, 40_000, correlation=100 + step)
        made.call("cudaLaunchKernel_v7000", t + 2_000, 500, correlation=200 + step)
        nccl = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
        made.kernel(nccl, t + 45_000, 20_000, stream=20, correlation=200 + step)
    made.memory(5_000, 1 << 20)
    made.sampled(0, 55, 20_000)
    made.adapter(0, "mlx5_0")
    for moment in range(100_000, 500_000, 100_000):
        for metric in range(2):
            made.traffic(0, metric, moment, 100_000, value=1e6 * metric)
    return made


@cache
def nsys_export() -> bytes:
    """The export as it should be."""
    return _bytes(_job().saved)


@cache
def rocpd_database() -> bytes:
    """Both ranks' recordings in one database, as it should be."""
    return _bytes(rocpd.rocpd_job)


def _bytes(saved: Callable[[Path], Path]) -> bytes:
    with TemporaryDirectory() as folder:
        return saved(Path(folder) / "whole").read_bytes()


def nsys_files(head: int, parts: Sequence[int]) -> Case:
    """An nsys export of these numbers and a command that measures it."""
    return _database_files(nsys_export(), "new/one.sqlite", "StringIds", head, parts)


def rocpd_files(head: int, parts: Sequence[int]) -> Case:
    """A database of rocprofv3 of these numbers and a command that measures it."""
    return _database_files(rocpd_database(), "new/one.db", "rocpd_string_0190", head, parts)


def _database_files(whole: bytes, name: str, strings: str, head: int, parts: Sequence[int]) -> Case:
    chance = Random(head)
    lacks = chance.random() < 0.25
    if chance.random() < 0.6:
        content = _other_rows(whole, parts, strings if chance.random() < 0.15 else None)
    else:
        content = whole if lacks else bytes_changed(whole, parts)
    if lacks:
        content = cut(content, chance)
    if packed := chance.random() < 0.2 and name.endswith(".sqlite"):
        content = gzip.compress(content, 1)
        if chance.random() < 0.3:
            content, lacks = cut(content, chance), True
    return Case([_looked_at(chance, "new")], {name + ".gz" * packed: content}, cut=lacks)


def _other_rows(whole: bytes, parts: Sequence[int], strings: str | None) -> bytes:
    """The database with a change of rows, columns or tables for each number; `strings`: only of this table."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "new"
        path.write_bytes(whole)
        database = sqlite3.connect(path)
        listed = "SELECT name FROM sqlite_master WHERE type='table' AND name NOT LIKE 'sqlite_%'"
        tables = [strings] if strings else sorted(row[0] for row in database.execute(listed))
        with database:
            for part in parts:
                try:
                    _change(database, Random(part), tables)
                except (sqlite3.Error, OverflowError):  # an earlier change took away what this one needs
                    continue
        database.close()
        return path.read_bytes()


def _change(database: sqlite3.Connection, chance: Random, tables: Sequence[str]) -> None:
    table = chance.choice(tables)
    columns = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
    if not columns:
        return
    column, how = chance.choice(columns), chance.random()
    text = chance.choice(TEXTS).encode("utf-8", "replace").decode()
    value = chance.choice((*_COLUMNS, text, chance.choice(NUMBERS)))
    if how < 0.5:
        ids = [row[0] for row in database.execute(f"SELECT rowid FROM {table}")]
        chosen = ids if chance.random() < 0.2 else chance.sample(ids, min(1, len(ids)))
        for each in chosen:
            database.execute(f'UPDATE {table} SET "{column}"=? WHERE rowid=?', (value, each))
    elif how < 0.6:
        database.execute(f"INSERT INTO {table} SELECT * FROM {table} LIMIT 3")
    elif how < 0.7:
        database.execute(f"DELETE FROM {table} WHERE rowid % 2")
    elif how < 0.8:
        database.execute(f'ALTER TABLE {table} DROP COLUMN "{column}"')
    elif how < 0.86:
        database.execute(f"DROP TABLE {table}")
    elif how < 0.92:
        database.execute(f"ALTER TABLE {table} RENAME TO old_{table}")
        database.execute(f"CREATE VIEW {table} AS SELECT * FROM old_{table}")
    elif how < 0.96:
        database.execute(f'ALTER TABLE {table} RENAME COLUMN "{column}" TO "é"')
    else:
        database.execute(f"DROP TABLE {table}")
        kinds = ", ".join(f'"{name}" {chance.choice(_KINDS)}' for name in columns)
        database.execute(f"CREATE TABLE {table} ({kinds})")
        database.execute(f"INSERT INTO {table} VALUES ({','.join('?' * len(columns))})", [value] * len(columns))
