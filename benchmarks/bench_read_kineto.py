"""Reading Kineto JSON into a Trace: speed, and memory per byte, beside plain parsers.

    python benchmarks/bench_read_kineto.py SOURCE [--megabytes 100 500] [--repeat 3]

SOURCE, a trace in torch's own layout, is enlarged. `json.dump` is the same events written anew, on one line;
`json.load` and `msgspec` only parse, into dicts and into typed records. Each runs in a process of its own, in turns;
medians. `for reading` is the memory beyond what the interpreter and imports take.
"""

from __future__ import annotations

import argparse
import gzip
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from bench_peers import Cost, middle, run

ROOT = Path(__file__).parents[1]
_OURS = """
from harness.traces import open_trace
def work(arguments):
    assert len(open_trace(arguments[0]).events)
"""
_JSON = """
import json
def work(arguments):
    with open(arguments[0], "rb") as file:
        assert json.load(file)["traceEvents"]
"""
_MSGSPEC = """
import msgspec
class Record(msgspec.Struct, gc=False):
    cat: str = ""
    name: str = ""
    ts: float = 0
    dur: float = 0
    args: dict[str, object] | None = None
class File(msgspec.Struct):
    traceEvents: list[Record]
def work(arguments):
    with open(arguments[0], "rb") as file:
        assert msgspec.json.decode(file.read(), type=File).traceEvents
"""
_NOTHING = """
import harness.traces
def work(arguments):
    pass
"""


def variants(plain: Path) -> dict[str, tuple[str, Path]]:
    """What is run on which file."""
    packed, dumped = plain.with_suffix(".json.gz"), plain.with_suffix(".dumped.json")
    with plain.open("rb") as source, gzip.open(packed, "wb", compresslevel=6) as target:
        shutil.copyfileobj(source, target)
    anew = "import json, sys; json.dump(json.load(open(sys.argv[1], 'rb')), open(sys.argv[2], 'w'))"
    subprocess.run([sys.executable, "-c", anew, str(plain), str(dumped)], check=True)
    return {
        "torch layout": (_OURS, plain),
        "… gzipped": (_OURS, packed),
        "json.dump": (_OURS, dumped),
        "(json.load)": (_JSON, plain),
        "(msgspec)": (_MSGSPEC, plain),
        "(imports)": (_NOTHING, plain),
    }


def show(name: str, cost: Cost, base: Cost, size: int) -> None:
    """One line; bytes are those of the plain text, CPU time that of all its processes without the imports."""
    cpu_s = max(cost.process_cpu_s - base.process_cpu_s, 1e-9)
    print(
        f"  {name:14} {cost.work_wall_s:6.2f} s wall {cpu_s:6.2f} s cpu {size / 1e6 / cpu_s:5.0f} MB/cpu-s"
        f"   {cost.rss_bytes / size:5.2f} B/B, {(cost.rss_bytes - base.rss_bytes) / size:5.2f} for reading"
    )


def compare(plain: Path, repeat: int) -> None:
    """All variants of one trace."""
    runs: dict[str, list[Cost]] = {}
    chosen = variants(plain)
    for _ in range(repeat):
        for name, (code, path) in chosen.items():
            runs.setdefault(name, []).append(run(sys.executable, code, [str(path)], ROOT))
    size = plain.stat().st_size
    print(f"{size / 1e6:.0f} MB")
    for name, costs in runs.items():
        if name == "(imports)":
            continue
        show(name, middle(costs), middle(runs["(imports)"]), size)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("--megabytes", type=float, nargs="+", default=[100, 500])
    parser.add_argument("--repeat", type=int, default=3)
    given = parser.parse_args()
    for megabytes in given.megabytes:
        with tempfile.TemporaryDirectory(prefix="bench-read-") as folder:
            plain = Path(folder) / "rank0.json"
            generate = [sys.executable, str(Path(__file__).with_name("generate_kineto.py"))]
            # In a process of its own: what a parent holds counts as memory of the children that it forks.
            subprocess.run([*generate, given.source, plain, "--megabytes", str(megabytes)], check=True)
            compare(plain, given.repeat)


if __name__ == "__main__":
    main()
