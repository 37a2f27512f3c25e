"""A reference on disk is whole, small, private and never overwritten; an incomplete one goes on."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from harness.analysis.summary import Summary
from harness.common.errors import RequestError, WorkError
from harness.experiment.exercises import DDP, CommTests
from harness.site.site import load_site
from harness.study.reference.collect import collect
from harness.study.reference.record import keep
from harness.study.reference.stored import read_reference, read_runs, reference_folder, reference_folders, variant_file
from harness.study.reference.variants import series_of, traces_root
from harness.study.series.runner import survey, to_make
from tests.study.recorded_reference import plan, recorded, run_all
from tests.study.reference_runs import alone, made_run


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return alone(tmp_path, monkeypatch)


def test_a_reference_keeps_each_run_with_its_numbers_and_checksums(root: Path) -> None:
    kept = recorded(root)
    reference = read_reference(kept.folder)
    assert kept.folder == root / "references" / "ref"
    assert reference.complete
    assert [(v.name, v.runs, v.lessons) for v in reference.variants] == [("plain", 4, ("1a",)), ("slow", 4, ("1a",))]
    runs = read_runs(kept.folder, reference.variants[0]).runs
    assert [run.metrics["step_ns"] for run in runs] == pytest.approx([1e8, 1.01e8, 0.99e8, 1.005e8])
    assert all(len(run.traces) == 2 and len(run.traces[0].sha256) == 64 for run in runs)
    assert reference.variants[0].step_ns == pytest.approx(1.0025e8)


def test_a_reference_names_no_person_no_host_and_no_absolute_path(root: Path) -> None:
    folder = recorded(root).folder
    text = "".join(path.read_text(encoding="utf-8") for path in folder.rglob("*.json"))
    assert re.findall(r"someone|laptop|\"/|/home|" + re.escape(str(root)), text) == []


def test_nodes_of_a_cluster_are_kept(root: Path) -> None:
    run = made_run(root, DDP(nodes=2), 100.0, site="slurm", hosts=("n1", "n2"))
    found = collect(run)
    assert found.run.nodes == ("n1", "n2")
    assert found.environment.hardware.machine is None


def test_a_complete_reference_is_never_overwritten(root: Path) -> None:
    folder = recorded(root).folder
    before = (folder / "reference.json").read_bytes()
    with pytest.raises(RequestError, match=r"--name ref: there is a reference of this name .* give another name"):
        plan(root)
    assert (folder / "reference.json").read_bytes() == before


def test_a_recording_with_only_some_variants_goes_on_with_the_others(root: Path) -> None:
    some = plan(root, only=("slow",))
    run_all(root, some)
    first = keep(some)
    assert first.reference.missing == {"plain": "not asked for (--only)"}
    rest = plan(root)
    left = to_make(survey(rest.series, rest.tasks)[0], retry_failed=False)
    assert [task.point.key for task in left] == ["plain"] * 4
    for task in left:
        made_run(root, task.point.experiment, 100.0, task.point.part(series_of("ref")))
    assert keep(rest).reference.complete
    assert sorted(p.name for p in (root / "references").iterdir()) == ["ref"]


def test_without_a_completed_run_nothing_is_written(root: Path) -> None:
    with pytest.raises(WorkError, match="no run of the list completed"):
        keep(plan(root))
    assert not (root / "references").exists()


def test_a_summary_that_was_edited_is_not_read(root: Path) -> None:
    folder = recorded(root).folder
    path = variant_file(folder, "plain")
    path.write_text(path.read_text(encoding="utf-8").replace("100000000", "200000000"), encoding="utf-8")
    with pytest.raises(WorkError, match=r"plain\.json: was changed after it was recorded"):
        read_runs(folder, read_reference(folder).variants[0])


def test_a_file_that_is_no_reference_is_a_sentence(root: Path) -> None:
    folder = recorded(root).folder
    (folder / "reference.json").write_text('{"name": "ref"}', encoding="utf-8")
    with pytest.raises(WorkError, match=r"reference\.json: is not a reference \(\w+: Field required\)"):
        read_reference(folder)


def test_an_unknown_reference_names_the_nearest(root: Path) -> None:
    recorded(root, "leonardo")
    with pytest.raises(
        RequestError,
        match=r"there is no reference 'leonard': did you mean leonardo\? \(slurm.sh reference show lists all\)",
    ):
        reference_folder("leonard")


def test_references_may_live_elsewhere(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_REFERENCES", str(root / "shared"))
    assert recorded(root).folder == root / "shared" / "ref"
    assert root / "shared" / "ref" in list(reference_folders())


def test_a_sites_folder_for_traces_gets_whole_runs_and_the_name_of_the_folder_stays_a_variable(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARCHIVE", str(root / "archive"))
    site = load_site("local").model_copy(update={"reference_traces": "$ARCHIVE/traces"})
    recording = plan(root, site=site)
    run_all(root, recording)
    kept = keep(recording)
    assert kept.reference.traces_in == "$ARCHIVE/traces"
    assert traces_root(kept.reference) == root / "archive" / "traces" / "ref"
    run = read_runs(kept.folder, kept.reference.variants[0].model_copy(update={
        "sha256": read_reference(kept.folder).variants[0].sha256})).runs[0]  # fmt: skip
    copied = root / "archive" / "traces" / "ref" / run.path
    assert (copied / "run.json").is_file()
    assert [(copied.parents[2] / trace.path).stat().st_size for trace in run.traces] == [
        trace.size_bytes for trace in run.traces
    ]


def test_without_traces_numbers_alone_are_kept(root: Path) -> None:
    recording = plan(root)
    run_all(root, recording)
    kept = keep(recording, traces=False)
    assert "sha256" not in variant_file(kept.folder, "plain").read_text(encoding="utf-8")


def test_show_lists_and_shows(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from harness.cli.main import main

    recorded(root)
    assert main(["reference", "show"]) == 0
    assert "ref: 2 variants on local (AMD EPYC)" in capsys.readouterr().out
    assert main(["reference", "show", "ref"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"^  plain +4 +100 ms +20\.0 % +500 MB +– +1a$", said, re.M)
    assert re.search(r"^  slow +4 +180 ms +\+80\.0 % ± \d\.\d % +worse ", said, re.M)
    assert main(["reference", "show", "ref", "--json"]) == 0
    plain, slow = json.loads(capsys.readouterr().out)["variants"]
    assert (plain["variant"], plain["comparison"], slow["variant"]) == ("plain", None, "slow")
    assert (slow["comparison"]["a"]["name"], slow["comparison"]["verdict"]) == ("plain", "worse")


def test_exercise_0_is_kept_by_the_bandwidth_and_latency_of_its_links(root: Path) -> None:
    run = made_run(root, CommTests(), 100.0)
    run.summary.write_text(Summary(run={"resolved": {"exercise": 0}}).model_dump_json(), encoding="utf-8")
    point = {"message_bytes": 8, "time_ns": 9e3, "busbw_gbytes_per_s": 0.1, "correct": True}
    largest = {"message_bytes": 1 << 30, "time_ns": 5e6, "busbw_gbytes_per_s": 210.0, "correct": True}
    fit = {"alpha_ns": 9000.0, "beta_ns_per_byte": 0.005}
    result = {"collective": "all_reduce", "scope": "intra", "ranks": 4, "points": [point, largest], "fit": fit}
    run.collectives.parent.mkdir()
    run.collectives.write_text(
        json.dumps({"backend": "nccl", "device_name": "NVIDIA A100", "results": [result]}), encoding="utf-8"
    )
    found = collect(run)
    assert found.run.metrics == {
        "all_reduce_intra_alpha_ns": 9000,
        "all_reduce_intra_bus_gb_per_s": 210,
        "largest_messages_ns": 5_000_000,
    }
    assert (found.environment.hardware.device_kind, found.environment.hardware.device) == ("gpu", "NVIDIA A100")
