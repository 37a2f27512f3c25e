"""A reference on disk is whole, small, private and not overwritten; an incomplete one goes on. Its list is one file."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from harness.analysis.summary import Summary
from harness.common.errors import RequestError, WorkError
from harness.common.paths import ROOT
from harness.experiment.exercises import DDP, CommTests
from harness.site.site import load_site
from harness.study.lessons import fixed_fields, is_asked, load_lesson, open_fields
from harness.study.reference.collect import collect
from harness.study.reference.record import keep
from harness.study.reference.stored import (
    compared_settings,
    differing,
    file_digest,
    read_reference,
    read_runs,
    readable_references,
    reference_folders,
    variant_file,
)
from harness.study.reference.variants import at_site, list_names, load_list
from harness.study.series.runner import survey, to_make
from tests.study.kit import Say, asked_at
from tests.study.reference_runs import made_run, plan, recorded, run_all, summary_of

pytestmark = pytest.mark.usefixtures("runs")


def test_a_reference_keeps_each_run_with_its_numbers_and_no_name_of_a_person_or_a_host(runs: Path) -> None:
    folder = recorded(runs).folder
    reference = read_reference(folder)
    assert folder == runs / "references" / "ref" and reference.complete
    assert [(v.name, v.runs, v.lessons) for v in reference.variants] == [("plain", 4, ("1a",)), ("slow", 4, ("1a",))]
    steps = [run.metrics["step_ns"] for run in read_runs(folder, reference.variants[0]).runs]
    assert steps == pytest.approx([1e8, 1.01e8, 0.99e8, 1.005e8])
    assert reference.variants[0].step_ns == pytest.approx(1.0025e8)
    text = "".join(path.read_text(encoding="utf-8") for path in folder.rglob("*.json"))
    assert re.findall(r"someone|laptop|\"/|/home|" + re.escape(str(runs)), text) == []


def test_nodes_of_a_cluster_are_kept(runs: Path) -> None:
    found = collect(made_run(runs, DDP(nodes=2), 100.0, site="slurm", hosts=("n1", "n2")))
    assert (found.run.nodes, found.environment.hardware.machine) == (("n1", "n2"), None)


def test_a_recording_of_which_runs_are_missing_goes_on_with_them(runs: Path) -> None:
    recording = plan(runs)
    run_all(runs, recording._replace(tasks=[task for task in recording.tasks if task.point.key == "slow"]))
    assert keep(recording).reference.missing == {"plain": "0 of 4 runs completed"}
    left = to_make(survey(recording.series, recording.tasks)[0], retry_failed=False)
    assert [task.point.key for task in left] == ["plain"] * 4
    run_all(runs, recording._replace(tasks=left))
    assert keep(recording).reference.complete
    assert sorted(p.name for p in (runs / "references").iterdir()) == ["ref"]


def test_without_a_completed_run_nothing_is_written(runs: Path) -> None:
    with pytest.raises(WorkError, match="no run of the list completed"):
        keep(plan(runs))
    assert not (runs / "references").exists()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"name": "ref"}', '{"name": 3}', " " * 1_100_000])
def test_a_damaged_reference_is_a_sentence_and_left_out_of_the_others(runs: Path, content: str) -> None:
    recorded(runs, "whole")
    folder = recorded(runs).folder
    (folder / "reference.json").write_text(content, encoding="utf-8")
    with pytest.raises(WorkError, match=r"reference\.json: (is not a reference|cannot be read) \(.+\)$"):
        read_reference(folder)
    assert {folder.name for folder, _ in readable_references()} == {"whole"}


def test_a_file_that_was_edited_is_not_read_and_one_of_an_earlier_version_is(runs: Path) -> None:
    """The earlier one, which had the traces of each run, has the checksum of its own text."""
    folder = recorded(runs).folder
    path, index = variant_file(folder, "plain"), read_reference(folder).variants[0]
    stored = json.loads(path.read_text())
    stored["runs"][0]["traces"] = [{"path": "x", "size_bytes": 1, "sha256": "0"}]
    path.write_text(json.dumps(stored))
    with pytest.raises(WorkError, match=r"plain\.json: was changed after it was recorded"):
        read_runs(folder, index)
    assert len(read_runs(folder, index.model_copy(update={"sha256": file_digest(path)})).runs) == 4


def test_references_may_live_elsewhere(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_REFERENCES", str(runs / "shared"))
    assert recorded(runs).folder == runs / "shared" / "ref"
    assert runs / "shared" / "ref" in list(reference_folders())


def test_a_sites_folder_for_traces_gets_whole_runs_and_the_name_of_the_folder_stays_a_variable(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARCHIVE", str(runs / "archive"))
    site = load_site("local").model_copy(update={"reference_traces": "$ARCHIVE/traces"})
    recording = plan(runs, site=site)
    run_all(runs, recording)
    kept = keep(recording).reference
    copies = runs / "archive" / "traces" / "ref"
    assert kept.traces_in == "$ARCHIVE/traces"
    assert len([*copies.glob("exercise_1_DDP/profiler/*/run.json")]) == 8
    assert len([*copies.glob("exercise_1_DDP/profiler/*/torch/rank1.json.gz")]) == 8


def test_show_lists_and_shows(runs: Path, say: Say) -> None:
    recorded(runs)
    assert "ref: 2 variants on local (AMD EPYC)" in say("reference", "show").out
    shown = say("reference", "show", "ref").out
    assert re.search(r"^  plain +4 +100 ms +20\.0 % +500 MB +– +1a$", shown, re.M), shown
    plain, slow = say("reference", "show", "ref", "--json").json["variants"]
    assert (plain["variant"], slow["variant"], slow["step_ns"]) == ("plain", "slow", pytest.approx(1.8045e8))


def test_exercise_0_is_kept_by_the_bandwidth_and_latency_of_its_links(runs: Path) -> None:
    run = made_run(runs, CommTests(), 100.0)
    run.summary.write_text(Summary(run={"resolved": {"exercise": 0}}).model_dump_json(), encoding="utf-8")
    point = {"message_bytes": 8, "time_ns": 9e3, "busbw_gbytes_per_s": 0.1, "correct": True}
    largest = {"message_bytes": 1 << 30, "time_ns": 5e6, "busbw_gbytes_per_s": 210.0, "correct": True}
    fit = {"alpha_ns": 9000.0, "beta_ns_per_byte": 0.005, "r2_log": 0.99}
    result = {"collective": "all_reduce", "scope": "intra", "ranks": 4, "points": [point, largest], "fit": fit}
    run.collectives.parent.mkdir()
    off = {**result, "collective": "broadcast", "points": [], "fit": {**fit, "r2_log": 0.89}}
    document = {"backend": "nccl", "device_name": "NVIDIA A100", "results": [result, off]}
    run.collectives.write_text(json.dumps(document), encoding="utf-8")
    found = collect(run)
    assert found.run.metrics == {
        "all_reduce_intra_alpha_ns": 9000,
        "all_reduce_intra_bus_gb_per_s": 210,
        "largest_messages_ns": 5_000_000,
    }
    assert (found.environment.hardware.device_kind, found.environment.hardware.device) == ("gpu", "NVIDIA A100")


def test_a_setting_is_compared_as_it_is_written_today_and_only_if_it_changes_what_is_measured() -> None:
    """No rate of Python's samples was null in an older version, and is false now."""
    plain, other = DDP(gpus_per_node=2), DDP(gpus_per_node=2, nsys2prv=True, seed=5)
    assert compared_settings(summary_of(other, 130.0)) == compared_settings(summary_of(plain, 130.0))
    stored = {"exercise": 1, "python_sampling": None, "micro_batch_size": 2}
    assert differing(stored, {"exercise": 1, "python_sampling": False, "micro_batch_size": 2}) == {}
    assert differing(stored, {"exercise": 1, "python_sampling": True, "micro_batch_size": 4}) == {
        "python_sampling": (False, True),
        "micro_batch_size": (2, 4),
    }


# ---- The list of variants


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


NAMED = {name: sorted({lesson for v in load_list(name).variants for lesson in v.lessons}) for name in list_names()}


@pytest.mark.parametrize(("name", "lesson"), [(name, lesson) for name in NAMED for lesson in NAMED[name]])
def test_a_lesson_of_a_list_has_both_arms_and_they_agree_in_what_it_leaves_open(name: str, lesson: str) -> None:
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
