"""What students get of a reference: a lesson's answer, the mention in their own report, and an archive."""

from __future__ import annotations

import hashlib
import json
import re
import tarfile
from html.parser import HTMLParser
from pathlib import Path

import pytest

from harness.analysis.metrics import judged_step_ns, metrics_by_name
from harness.analysis.summary import ReferenceStep, Withheld
from harness.cli.main import main
from harness.experiment.exercises import DDP
from harness.experiment.training import Mystery
from harness.explain.answer import answer
from harness.measure.references import differing, with_reference
from harness.study.reference.record import keep
from harness.study.reference.request import checked_runs
from harness.study.reference.variants import series_of
from tests.study.recorded_reference import plan, recorded, run_all
from tests.study.reference_runs import alone, made_run, summary_of

ASKED = DDP(gpus_per_node=2)


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return alone(tmp_path, monkeypatch)


def test_a_lesson_is_answered_from_a_reference_without_its_traces(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded(root)
    for trace in root.glob("exercise_1_DDP/profiler/*/torch/*"):
        trace.unlink()
    assert main(["lesson", "1a", "--reference", "ref"]) == 0
    said = capsys.readouterr().out
    assert "These are the numbers of the reference ref, not of your runs:\nrecorded on local (AMD EPYC)" in said
    assert said.count("✓") == 2
    assert "run a: 100 ms a step, run b: 180 ms a step" in said


def test_hints_come_before_the_answer(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded(root)
    assert main(["lesson", "1a", "--reference", "ref", "--hint"]) == 0
    said = capsys.readouterr().out
    assert "hint 1 of 3: " in said
    assert "✓" not in said


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["2a", "--reference", "ref"], "--reference ref: has no two runs for lesson 2a; it answers 1a"),
        (
            ["1a", "--reference", "rfe"],
            "there is no reference 'rfe': did you mean ref? (slurm.sh reference show lists all)",
        ),
        (["--reference", "ref"], "--reference ref: say which lesson"),
        (["1a", "--reference", "ref", "--again"], "--reference answers from stored runs, and --run and --again start"),
    ],
)
def test_a_lesson_that_the_reference_cannot_answer_is_a_sentence(
    root: Path, capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    recorded(root)
    assert main(["lesson", *words]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("step_ms", "says"),
    [
        (200.0, "2.00 times as slow"),
        (130.0, "1.30 times as slow"),
        (50.0, "2.00 times as fast"),
        (80.0, "1.25 times as fast"),
    ],
)
def test_a_runs_answer_says_how_it_compares_with_the_reference_and_what_can_judge_it(
    root: Path, step_ms: float, says: str
) -> None:
    recorded(root)
    said = answer(with_reference(summary_of(ASKED, step_ms)))
    assert said.reference == f"{says}; one run cannot tell why"
    assert said.further[-2:] == [
        "The reference is plain of ref, site local, AMD EPYC.",
        "`bash slurm.sh reference check 1` compares hardware, software, counts and step times.",
    ]


def test_a_run_as_fast_as_the_reference_gets_one_sentence(root: Path) -> None:
    recorded(root)
    said = answer(with_reference(summary_of(ASKED, 102.0)))
    assert said.reference == "about as fast (1.02 times)"
    assert said.further[-1] == "The reference is plain of ref, site local, AMD EPYC."


def test_the_answer_has_the_step_times_and_the_ratio_of_reference_check(root: Path) -> None:
    recorded(root)
    summary = with_reference(summary_of(ASKED, 130.0))
    time = checked_runs([made_run(root, ASKED, 130.0).job_id], "ref").variants[0].time
    assert time is not None and summary.reference is not None
    assert summary.reference.mean_step_ns == pytest.approx(time.a.value, rel=1e-6)
    assert judged_step_ns(metrics_by_name(summary)) == pytest.approx(time.b.value)
    assert time.b.value / time.a.value == pytest.approx(time.ratio)


def test_a_stored_run_in_doubt_counts_only_where_all_are(root: Path) -> None:
    recording = plan(root, "ref")
    for task in recording.tasks:
        point = task.point
        doubts = ("others used the cores",) * (point.repeat == 0)
        step_ms = 300.0 if doubts else 100.0
        made_run(root, point.experiment, step_ms, point.part(series_of("ref")), doubts=doubts)
    keep(recording)
    reference = with_reference(summary_of(ASKED, 130.0)).reference
    time = checked_runs([made_run(root, ASKED, 130.0).job_id], "ref").variants[0].time
    assert reference is not None and reference.mean_step_ns == pytest.approx(100e6, rel=1e-3)
    assert time is not None and time.a.value == pytest.approx(100e6, rel=1e-3)


@pytest.mark.parametrize(
    "asked",
    [
        DDP(gpus_per_node=2, mixed_precision=True),
        DDP(gpus_per_node=2, faults=("data-stall,ms=5",)),
        DDP(gpus_per_node=2, mystery=Mystery(level=1, commitment="0" * 64)),
    ],
)
def test_no_reference_is_mentioned_for_another_request_nor_for_what_is_slow_on_purpose(root: Path, asked: DDP) -> None:
    recorded(root)
    assert with_reference(summary_of(asked, 130.0)).reference is None


def test_a_gpu_is_not_compared_with_a_cpu(root: Path) -> None:
    recorded(root)
    assert with_reference(summary_of(ASKED, 130.0, device_kind="gpu")).reference is None


def test_a_setting_that_changes_nothing_that_is_measured_may_differ(root: Path) -> None:
    recorded(root)
    assert with_reference(summary_of(DDP(gpus_per_node=2, nsys2prv=True, seed=5), 130.0)).reference is not None


def test_of_several_references_that_of_the_same_site_is_mentioned_else_the_newest(root: Path) -> None:
    recorded(root, "here")
    recorded(root, "there", factor=2.0)
    index = root / "references" / "there" / "reference.json"
    index.write_text(re.sub(r'^ "site": "local"', ' "site": "leonardo"', index.read_text(), flags=re.M))
    names = {site: found.name for site in ("local", "leonardo", "jupiter")
             if (found := with_reference(summary_of(ASKED, 130.0, site=site)).reference)}  # fmt: skip
    assert names == {"local": "here", "leonardo": "there", "jupiter": "there"}


@pytest.mark.parametrize("content", ["", "{", "[]", '{"name": 3}', " " * 1_100_000])
def test_a_damaged_reference_breaks_no_report(root: Path, content: str) -> None:
    (recorded(root).folder / "reference.json").write_text(content, encoding="utf-8")
    assert with_reference(summary_of(ASKED, 130.0)).reference is None


def test_a_hidden_diagnosis_hides_the_mention(root: Path) -> None:
    step = ReferenceStep(name="r", variant="v", site="s", device_name="d", run_count=1, step_ns=1)
    summary = summary_of(ASKED, 130.0).model_copy(update={"reference": step})
    withheld = summary.quality.model_copy(update={"withheld": [Withheld(field="findings", reason="a mystery")]})
    assert answer(summary.model_copy(update={"quality": withheld})).further == []


class Links(HTMLParser):
    """Every address that a page names."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value or "" for name, value in attrs if name in ("href", "src")]


def package(root: Path, *flags: str) -> Path:
    """The archive of a reference whose runs have pages."""
    for run in root.glob("exercise_1_DDP/profiler/*"):
        (run / "report.html").write_text(f"<title>{run.name}</title>", encoding="utf-8")
    file = root / f"out{len(list(root.glob('out*')))}.tar.gz"
    assert main(["reference", "package", "ref", "-o", str(file), *flags]) == 0
    return file


def test_an_archive_holds_reports_traces_numbers_and_a_page_of_its_runs_and_names_no_owner(root: Path) -> None:
    recorded(root)
    with tarfile.open(package(root)) as archive:
        entries = archive.getmembers()
    names = [entry.name for entry in entries]
    assert names == sorted(names)
    assert {"ref/runs.html", "ref/reference.json", "ref/variants/plain.json"} <= {*names}
    assert {"ref/runs/slow/4/report.html", "ref/runs/slow/4/torch/rank1.json.gz"} <= {*names}
    assert {(e.uid, e.gid, e.uname, e.gname, e.mode) for e in entries} == {(0, 0, "", "", 0o644)}


def test_the_same_reference_gives_the_same_bytes(root: Path) -> None:
    recorded(root)
    assert len({hashlib.sha256(package(root).read_bytes()).hexdigest() for _ in range(2)}) == 1


def test_no_traces_leaves_the_traces_out(root: Path) -> None:
    recorded(root)
    with tarfile.open(package(root, "--no-traces")) as archive:
        assert not [name for name in archive.getnames() if "/torch/" in name]


def test_the_page_of_an_archive_links_each_run_and_names_it_for_a_comparison(root: Path) -> None:
    recorded(root)
    with tarfile.open(package(root)) as archive:
        archive.extractall(root / "opened", filter="data")
    page = root / "opened/ref/runs.html"
    text = page.read_text(encoding="utf-8")
    links = Links(text).found
    assert len(links) == 8 and all((page.parent / link).is_file() for link in links)
    names = re.findall(r'data-name="([^"]+)"', text)
    assert len(names) == 8 and all((page.parent / name).is_file() for name in names)
    assert str(root) not in text


def test_an_unpacked_archive_answers_lessons(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded(root)
    with tarfile.open(package(root, "--no-traces")) as archive:
        archive.extractall(root / "opened", filter="data")
    monkeypatch.setenv("HARNESS_REFERENCES", str(root / "opened"))
    assert main(["lesson", "1a", "--reference", "ref"]) == 0
    assert capsys.readouterr().out.count("✓") == 2


def test_summaries_in_an_archive_name_no_person(root: Path) -> None:
    recorded(root)
    with tarfile.open(package(root)) as archive:
        texts = [
            archive.extractfile(name).read().decode()
            for name in archive.getnames()
            if name.endswith((".json", ".html"))
        ]
    assert [text for text in texts if '"user"' in text or "/home/" in text or str(root) in text] == []


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("out.zip", "an archive's name ends with .tar.gz"),
        ("taken.tar.gz", "exists, and is not overwritten"),
        ("no/out.tar.gz", "there is no folder"),
    ],
)
def test_an_archive_goes_to_a_new_file_of_an_existing_folder(
    root: Path, capsys: pytest.CaptureFixture[str], name: str, sentence: str
) -> None:
    recorded(root)
    (root / "taken.tar.gz").write_text("mine")
    assert main(["reference", "package", "ref", "-o", str(root / name)]) == 2
    assert sentence in capsys.readouterr().err
    assert (root / "taken.tar.gz").read_text() == "mine"


def test_an_archive_without_the_runs_says_what_it_lacks(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import shutil

    recorded(root)
    shutil.rmtree(root / "exercise_1_DDP")
    assert main(["reference", "package", "ref", "-o", str(root / "o.tgz")]) == 0
    told = [line for line in capsys.readouterr().err.splitlines() if "without a report" in line]
    assert len(told) == 1
    assert told[0].startswith("without a report: 2 of 2 variants: a run of theirs is not on this machine")
    assert told[0].endswith("(plain, slow)")


def test_another_run_in_a_run_s_folder_is_neither_packed_nor_given_a_page_nor_called_damaged(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded(root)
    other = next(root.glob("exercise_1_DDP/profiler/*"))
    record = json.loads((other / "run.json").read_text())
    (other / "run.json").write_text(json.dumps(record | {"created_ns": record["created_ns"] + 1}))
    (other / "torch" / "rank0.json.gz").write_bytes(b"somebody else's")
    with tarfile.open(package(root)) as archive:
        packed = [archive.extractfile(entry).read() for entry in archive.getmembers() if "/runs/" in entry.name]
    assert "1 of 2 variants" in capsys.readouterr().err
    assert [content for content in packed if other.name.encode() in content or content == b"somebody else's"] == []
    assert main(["reference", "check", "ref"]) == 0


@pytest.mark.parametrize(("flag", "packed"), [((), 7), (("--no-traces",), 8)])
def test_a_run_with_other_traces_than_were_recorded_is_packed_only_without_its_traces(
    root: Path, flag: tuple[str, ...], packed: int
) -> None:
    recorded(root)
    trace = next(root.glob("exercise_1_DDP/profiler/*/torch/rank0.json.gz"))
    trace.write_bytes(trace.read_bytes()[::-1])
    with tarfile.open(package(root, *flag)) as archive:
        assert len([name for name in archive.getnames() if name.endswith("/report.html")]) == packed


def test_a_recording_says_what_it_would_run_and_writes_nothing(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan(root)
    words = ["--list", str(root / "two.yaml"), "--name", "x", "--repeats", "2", "--site", "local", "--dry-run"]
    before = sorted(root.rglob("*"))
    assert main(["reference", "record", *words]) == 0
    told = capsys.readouterr()
    assert "reference x, list two, at site local\n  4 runs: 0 done · 4 to do\n" in told.err
    assert told.out == "plain  bash slurm.sh -e 1 -g 2\nslow   bash slurm.sh -e 1 -g 2 -- --slow-dataloading\n"
    assert sorted(root.rglob("*")) == before


def test_a_recording_whose_runs_are_done_is_only_kept(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_all(root, plan(root, "x", repeats=2))
    words = ["--list", str(root / "two.yaml"), "--name", "x", "--repeats", "2", "--site", "local"]
    assert main(["reference", "record", *words]) == 0
    assert "x: kept 4 runs of 2 variants in" in capsys.readouterr().out
    assert main(["reference", "record", *words]) == 2
    assert "which is not overwritten: give another name" in capsys.readouterr().err


def test_a_recording_on_a_cluster_is_asked_about_first(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--site", "leonardo", "-a", "mine", "--name", "x", "--only", "ddp", "--max-gpu-hours", "1"]
    assert main(["reference", "record", *words]) == 2
    assert "add --yes to start 1 run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--list", "workshop", "--site", "local"], "its runs are for GPUs, and this site has CPUs: use --list mini"),
        (["--site", "local", "--max-parallel", "2"], "runs at the same time on this machine slow each other down"),
        (["--name", "a b", "--site", "local"], "--name a b"),
        (["--list", "nosuch"], "there is no list 'nosuch'"),
        (["--repeats", "0"], "--repeats: got '0', takes a whole number from 1 to 1000"),
        (["--micro-batch-size", "4"], "--micro-batch-size: the list has the experiments"),
        (["--csv", "x.csv"], "--csv: a reference is shown by slurm.sh reference show"),
    ],
)
def test_a_recording_that_cannot_be_is_a_sentence(
    capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    assert main(["reference", "record", "--dry-run", *words]) == 2
    assert sentence in capsys.readouterr().err


def test_a_setting_that_an_older_version_wrote_is_compared_as_it_is_written_today() -> None:
    """No rate of Python's samples was null, and is false now."""
    stored = {"exercise": 1, "python_sampling": None, "micro_batch_size": 2}
    assert differing(stored, {"exercise": 1, "python_sampling": False, "micro_batch_size": 2}) == {}
    assert differing(stored, {"exercise": 1, "python_sampling": True, "micro_batch_size": 4}) == {
        "python_sampling": (False, True),
        "micro_batch_size": (2, 4),
    }
