"""A reference's list of variants is one file: it holds all slides and lessons, and a wrong one is a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from harness.common.errors import RequestError
from harness.common.paths import ROOT
from harness.site.site import load_site
from harness.study.lessons import fixed_fields, is_asked, load_lesson, open_fields, workshop_lessons
from harness.study.reference.variants import at_site, list_names, load_list
from tests.study.kit import asked_at

SLIDES = yaml.safe_load((ROOT / "tests/golden/slides.yaml").read_text(encoding="utf-8"))["slides"]


def test_there_is_a_list_for_gpus_and_one_for_cpus() -> None:
    assert {name: load_list(name).device for name in list_names()} == {"workshop": "gpu", "miniatures": "cpu"}


@pytest.mark.parametrize("command", [slide["command"] for slide in SLIDES])
def test_every_command_of_the_slides_is_a_variant(command: str) -> None:
    experiment, site = asked_at("--site", "leonardo", *command.split())
    known = [at_site(each, site.defaults) for each in (experiment, *(v.asks for v in load_list("workshop").variants))]
    asked, *variants = [
        one.model_copy(update={"gpus_per_node": one.gpus_per_node or site.gpus.per_node}) for one in known
    ]
    assert asked in variants


@pytest.mark.parametrize("lesson", workshop_lessons())
@pytest.mark.parametrize("name", ["workshop", "miniatures"])
def test_every_lesson_has_both_arms_and_they_agree_in_what_it_leaves_open(name: str, lesson: str) -> None:
    found = load_list(name)
    pair = load_lesson(lesson).pair(cpu=found.device == "cpu")
    fixed = fixed_fields(pair)
    asks = [v.asks for v in found.variants if lesson in v.lessons]
    arms = [[each for each in asks if is_asked(each, arm, fixed)] for arm in (pair.a, pair.b)]
    assert any(open_fields(a, fixed) == open_fields(b, fixed) for a in arms[0] for b in arms[1])


@pytest.mark.parametrize("site", ["leonardo", "marenostrum5", "local"])
def test_a_variant_takes_a_sites_defaults_and_keeps_what_it_asks(site: str) -> None:
    defaults = dict(load_site(site).defaults) | {"active_steps": 7}
    steps = {v.name: at_site(v.asks, defaults).model_dump()["active_steps"] for v in load_list("miniatures").variants}
    assert (steps["ddp"], steps["ddp-32-steps"]) == (7, 32)


GOOD = "name: own\ntitle: Own\ndevice: cpu\nvariants:\n"
WRONG = {
    "- {name: a, asks: {exercise: 1, nodez: 2}}": "variants.0.asks.1.nodez: Extra inputs are not permitted",
    "- {name: a, ask: {exercise: 1}}": "variants.0.asks: Field required",
    "- {name: a/b, asks: {exercise: 1}}": "variants.0.name: a name takes letters",
    "- {name: a, asks: {exercise: 1, activation_checkpointing: true}}": "variant a: --activation-checkpointing needs",
    "- {name: a, name: b, asks: {exercise: 1}}": "is not valid YAML in line 5 (name is given twice)",
    "  []": "variants: Tuple should have at least 1 item",
}


@pytest.mark.parametrize("variants", WRONG)
def test_what_is_wrong_with_a_list_is_one_sentence_with_its_place(variants: str, tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(GOOD + variants, encoding="utf-8")
    with pytest.raises(RequestError) as wrong:
        load_list(str(path))
    said = str(wrong.value)
    assert said.startswith(f"list of variants {path}: ") and WRONG[variants] in said and "\n" not in said
