"""The reference that comes with the harness: whole, small, of nobody's machine by name, and true to its list."""

from __future__ import annotations

import json
import re

import pytest

from harness.study.lessons import load_lesson, workshop_lessons
from harness.study.reference.collect import lessons_of, stored_pair
from harness.study.reference.differences import changed_metrics
from harness.study.reference.stored import SHIPPED, read_reference, read_runs
from harness.study.reference.variants import load_list
from harness.study.relations import RelationOutcome, decide
from tests.study.kit import Say

NAME = "cpu-miniatures"
FOLDER = SHIPPED / NAME
MOST_BYTES = 350_000


def strings(content: object) -> list[str]:
    """Every text of a JSON document, keys included."""
    if isinstance(content, dict):
        return [word for pair in content.items() for each in pair for word in strings(each)]
    if isinstance(content, list):
        return [word for each in content for word in strings(each)]
    return [content] if isinstance(content, str) else []


def test_it_is_small_and_names_no_person_no_host_and_no_path_of_a_machine() -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in SHIPPED.rglob("*") if path.is_file()}
    assert {path.suffix for path in texts} == {".json"}
    assert sum(len(text.encode()) for text in texts.values()) <= MOST_BYTES
    for path, text in texts.items():
        words = set(strings(json.loads(text)))
        assert {word for word in words if re.search(r"^[/~]|\\|@|home|root|tmp|work/", word)} == set(), path
        assert not re.search(r'"(user|host|hosts|submit_host|pid)"|"nodes": \[[^\]]', text), path


def test_it_is_whole_and_true_to_its_list() -> None:
    reference = read_reference(FOLDER)
    asked = {variant.name: variant for variant in load_list("miniatures").variants}
    assert reference.complete and {each.name for each in reference.variants} == set(asked)
    for each in reference.variants:
        wanted = asked[each.name].asks
        given = {name: getattr(each.asked, name) for name in wanted.model_fields_set}
        assert (type(each.asked), given) == (type(wanted), {name: getattr(wanted, name) for name in given})
        assert each.lessons == asked[each.name].lessons


def test_its_counts_and_bytes_are_the_same_in_each_of_its_runs() -> None:
    for each in read_reference(FOLDER).variants:
        runs = read_runs(FOLDER, each).runs
        assert len(runs) >= 2
        assert changed_metrics(runs[:1], runs[1:], on_gpu=False) == {}, each.name


@pytest.mark.parametrize("name", workshop_lessons())
def test_it_answers_every_lesson_as_far_as_a_cpu_can_and_counts_hold(name: str) -> None:
    reference, lesson = read_reference(FOLDER), load_lesson(name)
    assert name in lessons_of(reference)
    decided = decide(lesson, *(stored.arm for stored in stored_pair(FOLDER, reference, lesson)))
    for one in decided:
        assert one.outcome is not RelationOutcome.FAILS or one.relation.depends_on_load, one.relation.says
        assert one.outcome is not RelationOutcome.NOT_COMPARABLE or one.relation.needs is not None, one.why


def test_a_student_gets_an_answer_from_it_at_once(say: Say) -> None:
    said = say("lesson", "2a", "--reference", NAME)
    assert said.code == 0 and f"These are the numbers of the reference {NAME}, not of your runs" in said.out
