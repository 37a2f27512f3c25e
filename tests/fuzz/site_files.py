"""Site files made from those that come with the harness: fields changed, or the text itself."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from random import Random
from typing import Any

import yaml

from harness.site.site import SITES, Site, site_names
from tests.fuzz.fence import Case
from tests.fuzz.hostile import TEXTS
from tests.fuzz.mutate import as_json, bytes_changed, changed, cut, odd_value

_LINES = (
    "a: &a [1, 2]\nenv: *a\n",
    "env: &e {A: *e}\n",
    "setup: !!python/object/apply:os.system ['id']\n",
    "name: !!binary aGVsbG8=\n",
    "time: 00:30:00\n",
    "time: 1:30:00\n",
    "\tname: x\n",
    "name: x\nname: y\n",
    "--- a\n...\n--- b\n",
    "? [a, b]\n: c\n",
    "<<: {name: z}\n",
    "? {a: b}\n: 1\n",
    "%YAML 9.9\n---\nname: x\n",
    "defaults: {nodes: 2, 1: 2}\n",
    "env: {ON: on, yes: no, 1: 2, ~: x}\n",
    "sbatch: ['--wait']\n",
    "sbatch: [--array=1-3]\n",
    "gpus: {per_node: 1e3}\n",
    "detect: {hosts: ['[']}\n",
    "setup: ['echo \"']\n",
    "setup: ['if true']\n",
    "setup: ['}']\n",
    "name: *nothing\n",
    "env: {A: $(id)}\n",
    "env: {A: '${'}\n",
    'env: {PATH: "a\\0b"}\n',
    "# \u202e\n",
    "memory: 2024-01-01\n",
    "qos: 12:30\n",
    "account: 0o17\n",
    "partition: .nan\n",
    "max_nodes: .inf\n",
    "signal_seconds: 1e400\n",
    'env: {A: "\\ud800"}\n',
    "setup: [" + "[" * 3000 + "\n",
    "a: " + "{a: " * 400 + "\n",
    "env: {A: !!float 'x'}\n",
    "time: !!timestamp '9999-99-99'\n",
    "max_nodes: 123_456\n",
    "cpus_per_node: 0x_\n",
    "name: !!int ''\n",
    "name: !!int '0b'\n",
    "qos: !!set {a}\n",
    "l: &l [x, x, x, x, x, x, x, x, x]\nm: &m [*l, *l, *l, *l, *l, *l, *l]\nn: &n [*m, *m, *m, *m, *m]\no: [*n, *n]\n",
)


@cache
def _shipped() -> tuple[tuple[str, Any], ...]:
    texts = [(SITES / f"{name}.yaml").read_text(encoding="utf-8") for name in site_names()]
    return tuple((text, yaml.safe_load(text)) for text in texts)


def site_file(head: int, parts: Sequence[int]) -> Case:
    """A site file of these numbers, and the command lines that read it."""
    chance = Random(head)
    text, fields = chance.choice(_shipped())
    if chance.random() < 0.5:
        more = {name: odd_value(chance, "a") for name in chance.choices(list(Site.model_fields), k=2)}
        fields = fields | (more if chance.random() < 0.4 else {})
        content = as_json(changed(fields, parts)).encode()
    elif chance.random() < 0.5:
        lines = text.splitlines(keepends=True)
        for part in parts:
            drawn = Random(part)
            new = drawn.choice((drawn.choice(_LINES), f"{drawn.choice(list(Site.model_fields))}: {_scalar(drawn)}\n"))
            lines.insert(drawn.randrange(len(lines) + 1), new)
        content = "".join(lines).encode("utf-8", "surrogatepass")
    else:
        content = bytes_changed(text.encode(), parts)
    if chance.random() < 0.1:
        content = cut(content, chance)
    where = ["--site", "traces/new.yaml"]
    launch = ["-e", chance.choice("0123"), *where, "--dry-run", *chance.choice(([], ["--json"], ["-n", "2"]))]
    other = chance.choice(
        (["sites", "traces/new.yaml"], ["sites", "traces/new.yaml", "--json"], ["-e", "1", "--plan", *where])
    )
    return Case([launch, other], {"traces/new.yaml": content})


def _scalar(chance: Random) -> str:
    return chance.choice((chance.choice(TEXTS), json.dumps(odd_value(chance, 1), default=str)))
