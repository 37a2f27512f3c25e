"""Lessons are files. They state their question as pages and slides do, and find the student's own pair of runs."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
import yaml

from harness.analysis.metric_values import MEMORY_OF_PLAN, Metrics
from harness.analysis.metrics import COLLECTIVES, KEPT, METRICS
from harness.cli.main import main
from harness.cli.study.lesson import LessonAtSite, _next, _paired
from harness.common.errors import RequestError
from harness.common.paths import ROOT
from harness.common.users import this_user
from harness.experiment.exercises import DDP, DeepSpeed, Experiment, Megatron, Training
from harness.experiment.parse import all_options, build_experiment, command_of
from harness.run import Run, Stage
from harness.run.record import RunRecord, Status
from harness.site.site import Site, load_site
from harness.study.lessons import (
    ExperimentPair,
    Lesson,
    LessonArm,
    RelationOutcome,
    RelationResult,
    decide,
    find_pair,
    lesson_names,
    load_lesson,
    shell_command,
    slide_of,
    workshop_lessons,
)
from harness.study.reference.variants import at_site as reference_at_site
from harness.study.reference.variants import load_list

# The metrics that every run can have; a lesson that asks for anything else can never be answered.
NAMES = {
    *("peak_memory_bytes", "step_ns", "data_loading_share", "overlap_fraction", "tokens_per_s", "tokens_per_step"),
    *("gemm_bf16_share", "gemm_tf32_share", "failed_rank", "failed_by_error", "failed_others_count"),
    *("stuck_rank", "stuck_ranks_count", "stuck_waiting_count", "stuck_in_collective", "stuck_step"),
    *("tokens_per_s_per_rank", "bytes_across_nodes", "parameter_bytes", "message_bytes"),
    *(f"{kind}_{what}" for kind in COLLECTIVES for what in ("count", "bytes")),
}


ALL = lesson_names()
COMPLETED = [name for name in ALL if load_lesson(name).ends == "completed"]
TRACED = [name for name in COMPLETED if load_lesson(name).a.model_dump().get("profiler") != "none"]


def metrics_of(experiment: Experiment) -> Metrics:
    """The metrics that a run of this experiment can have: without a pipeline there is no bubble."""
    names = NAMES | {metric.name for metric in METRICS[len(KEPT) :]}
    if isinstance(experiment, Megatron) and experiment.pp > 1:
        names |= {"bubble", "expected_bubble", "microbatches"}
    if isinstance(experiment, DDP):
        names |= {"expected_all_reduce_bytes"}
    if isinstance(experiment, Training) and experiment.memory_snapshot:
        names |= {*MEMORY_OF_PLAN}
    if isinstance(experiment, DeepSpeed):
        names |= {"expected_all_gather_bytes"}
    return dict.fromkeys(names, 1.0)


def completed(root: Path, job_id: str, experiment: Experiment) -> Run:
    record = RunRecord.model_validate(
        {
            "job_id": job_id, "backend": "local", "experiment": experiment.model_dump(),
            "site": load_site("local").model_dump(), "job": {}, "command": [], "git": {}, "versions": {},
            "user": this_user(), "submit_host": "x", "created_ns": time.time_ns(),
        }
    )  # fmt: skip
    with Stage(root / experiment.folder) as stage:
        Run(stage.path).write_record(record)
        run = stage.publish(f"run-{job_id}", job_id)
    run.write_status(Status(state="completed"))
    return run


def answers(lesson: Lesson, a: Metrics, b: Metrics, on_gpu: bool, over_network: bool) -> list[RelationResult]:
    return decide(lesson, *(LessonArm("a run", metrics, on_gpu, over_network, []) for metrics in (a, b)))


@pytest.mark.parametrize("cpu", [True, False])
@pytest.mark.parametrize("name", ALL)
def test_each_lesson_asks_only_for_what_its_runs_can_measure(name: str, cpu: bool) -> None:
    lesson = load_lesson(name)
    pair = lesson.pair(cpu)
    decided = answers(lesson, metrics_of(pair.a), metrics_of(pair.b), on_gpu=not cpu, over_network=True)
    assert len(decided) >= 2
    for one in decided:
        assert one.outcome is not RelationOutcome.NOT_COMPARABLE or (cpu and one.relation.needs == "gpu"), one.why
        assert len(one.numbers) == len(one.relation.shows), one.relation.shows


@pytest.mark.parametrize("name", TRACED)
def test_each_view_a_lesson_names_is_there(name: str) -> None:
    views = re.findall(r"[\w.-]+\.cfg", load_lesson(name).look_at["Paraver"])
    assert views
    assert [view for view in views if not (ROOT / "configs" / "paraver" / view).is_file()] == []


def sections_page(name: str) -> str:
    """The page of a lesson's exercise."""
    (page,) = (ROOT / "exercises").glob(f"exercise_{name[0]}_*/README.md")
    return page.read_text(encoding="utf-8")


def sections() -> dict[str, str]:
    """The sections of the exercises' pages, and of the faults', that ask something, by their letter: `## 3a: …`."""
    found: dict[str, str] = {}
    for page in [*sorted((ROOT / "exercises").glob("exercise_*/README.md")), ROOT / "docs" / "faults.md"]:
        parts = re.split(r"^## ", page.read_text(encoding="utf-8"), flags=re.M)
        found |= {part.partition(":")[0]: part for part in parts if re.match(r"\d\w*:", part)}
    return found


def test_each_section_that_asks_something_has_the_lesson_of_its_name() -> None:
    assert lesson_names() == sorted(sections())
    assert all(re.search(r"^1\. .*\?", text, re.M) for text in sections().values())


@pytest.mark.parametrize("name", COMPLETED)
def test_a_lesson_is_about_its_section(name: str) -> None:
    """Both name the setting that the lesson changes."""
    lesson = load_lesson(name)
    flags = {
        "slow_dataloading": "loading",
        "mixed_precision": "mixed precision",
        "gradient_accumulation_steps": "accumulation",
        "bucket_cap_mb": "bucket",
        "pin_memory": "pinned",
        "dataloader_workers": "workers",
        "nccl_p2p_level": "copies from gpu to gpu",
        "fsdp": "fsdp",
        "lora": "lora",
        "activation_offload": "activation offload",
        "activation_checkpointing": "activation checkpointing",
        "zero_stage": "stage 2",
        "overlap_comm": "overlap",
        "hpz_partition": "partition",
        "no_ib": "infiniband",
        "tp": "tensor parallelism",
        "pp": "pipeline",
        "global_batch_size": "micro-batches",
        "vpp": "interleaving",
        "faults": "slow file system",
        "nodes": "one node and two",
    }
    differs = [f for f in flags if getattr(lesson.a, f, None) != getattr(lesson.b, f, None)]
    changed = [f for f in differs if f != "nodes"] or differs  # more ranks may need more nodes
    assert len(changed) == 1
    assert flags[changed[0]] in sections()[name].lower()


@pytest.mark.parametrize("name", ALL)
def test_a_lessons_commands_ask_for_its_experiments(name: str) -> None:
    lesson = load_lesson(name)
    for experiment in (lesson.a, lesson.b):
        words = command_of(experiment) or []
        pairs, i = [], 0
        flags = [w for w in words if w != "--"]
        while i < len(flags):
            takes = i + 1 < len(flags) and not flags[i + 1].startswith("-")
            pairs.append((flags[i], flags[i + 1] if takes else True))
            i += 1 + takes
        assert build_experiment(pairs, [], all_options()) == experiment


def test_the_newest_matching_pair_is_picked(tmp_path: Path) -> None:
    old = completed(tmp_path, "1", DDP())
    slow = completed(tmp_path, "2", DDP(slow_dataloading=True))
    new = completed(tmp_path, "3", DDP())
    found = find_pair(load_lesson("1a").pair(cpu=True), [old, slow, new])
    assert found.a is not None
    assert found.b is not None
    assert (found.a.job_id, found.b.job_id) == ("3", "2")


def test_a_pair_must_agree_in_what_the_lesson_leaves_open(tmp_path: Path) -> None:
    fp32 = completed(tmp_path, "1", DDP())
    bf16 = completed(tmp_path, "2", DDP(slow_dataloading=True, mixed_precision=True))
    found = find_pair(load_lesson("1a").pair(cpu=True), [fp32, bf16])
    assert found.a is not None
    assert found.b is None


def paired(name: str, runs: list[Run], site: Site) -> tuple[str | None, str | None, ExperimentPair]:
    pair, found = _paired(load_lesson(name), runs, site)
    a, b = (None if run is None else run.job_id for run in found)
    return a, b, pair


def test_a_missing_run_agrees_with_the_one_there_is(tmp_path: Path) -> None:
    """Once the missing run is made, the two runs are the pair."""
    site = load_site("local")
    of_four = completed(tmp_path, "1", DDP(micro_batch_size=4))
    a, b, pair = paired("1a", [of_four], site)
    assert (a, b) == ("1", None)
    assert pair.b == DDP(micro_batch_size=4, slow_dataloading=True)
    made = completed(tmp_path, "2", pair.b)
    assert paired("1a", [of_four, made], site)[:2] == ("1", "2")


def test_of_one_arm_the_lessons_own_run_comes_before_a_newer_one(tmp_path: Path) -> None:
    site = load_site("local")
    runs = [completed(tmp_path, "1", DDP()), completed(tmp_path, "2", DDP(micro_batch_size=4))]
    a, b, pair = paired("1a", runs, site)
    assert (a, b) == ("1", None)
    runs.append(completed(tmp_path, "3", pair.b))
    assert paired("1a", runs, site)[:2] == ("1", "3")


def test_a_run_without_a_trace_cannot_answer(tmp_path: Path) -> None:
    quick = completed(tmp_path, "1", DDP(steps=2, profiler="none"))
    a, b, pair = paired("1b", [quick], load_site("local"))
    assert (a, b) == (None, None)
    assert (pair.a, pair.b) == (DDP(), DDP(mixed_precision=True))


def test_a_run_that_the_other_arm_cannot_agree_with_is_not_half_a_pair(tmp_path: Path) -> None:
    """Activation checkpointing needs mixed precision, which one arm of 1b has not; the other is of another site."""
    runs = [completed(tmp_path, "1", DDP(mixed_precision=True, activation_checkpointing=True))]
    assert paired("1b", runs, load_site("local"))[:2] == (None, None)
    assert paired("1a", [completed(tmp_path, "2", DDP())], load_site("leonardo"))[:2] == (None, None)


def test_one_more_hint_is_offered_until_the_last_one_is_shown() -> None:
    assert [_next(2, given) for given in range(3)] == ["--hint · --answer", "--hint --hint · --answer", "--answer"]


def test_a_run_of_another_script_is_not_the_lessons(tmp_path: Path) -> None:
    runs = [completed(tmp_path, "1", DDP()), completed(tmp_path, "2", DDP(script="train_todo.py"))]
    assert paired("1a", runs, load_site("local"))[:2] == ("1", None)
    assert paired("1a", runs[1:], load_site("local"))[:2] == (None, None)


def test_a_run_that_left_no_trace_is_not_half_a_pair(tmp_path: Path) -> None:
    """Like train_todo.py copied over train.py: it trains and does not start the profiler."""
    there, empty = completed(tmp_path, "1", DDP()), completed(tmp_path, "2", DDP())
    empty.write_status(Status(state="completed", missing=["torch/rank0.json.gz"]))
    assert paired("1a", [there, empty], load_site("local"))[:2] == ("1", None)
    assert paired("1a", [empty], load_site("local"))[:2] == (None, None)


def test_where_a_node_has_other_gpus_the_lesson_asks_for_those_it_was_made_for(tmp_path: Path) -> None:
    of_slide = DeepSpeed(nodes=2, mixed_precision=True, gradient_accumulation_steps=16, micro_batch_size=8)
    assert paired("2c", [], load_site("leonardo"))[2].b == of_slide
    assert paired("2c", [], load_site("aws-p5"))[2].b == of_slide.model_copy(update={"gpus_per_node": 4})


def on_the_page(exercise: int) -> list[Experiment]:
    """What the commands of an exercise's page ask for; 4: those of the page about faults."""
    (page,) = [*(ROOT / "exercises").glob(f"exercise_{exercise}_*/README.md")] or [ROOT / "docs/faults.md"]
    commands = re.findall(r"bash slurm\.sh (-e \d[^`\n]*)(?:`|$)", page.read_text(encoding="utf-8"), re.M)
    return [experiment_of(line.split()) for line in commands if "--plan" not in line]


def experiment_of(words: list[str]) -> Experiment:
    pairs: list[tuple[str, object]] = []
    flags = [word for word in words if word != "--"]
    for word, after in zip(flags, [*flags[1:], "-"], strict=True):
        if word.startswith("-"):
            pairs.append((word, True if after.startswith("-") else after))
    return build_experiment(pairs, [], all_options())


@pytest.mark.parametrize("cpu", [True, False])
@pytest.mark.parametrize("name", ALL)
def test_the_exercises_page_has_the_two_commands_of_each_lesson(tmp_path: Path, name: str, cpu: bool) -> None:
    runs = [completed(tmp_path, str(n), asked) for n, asked in enumerate(on_the_page(int(name[0])))]
    found = find_pair(load_lesson(name).pair(cpu), runs)
    assert found.a is not None
    assert found.b is not None


def test_what_a_lesson_varies_is_not_left_open(tmp_path: Path) -> None:
    bf16 = completed(tmp_path, "1", DDP(mixed_precision=True))
    found = find_pair(load_lesson("1b").pair(cpu=True), [bf16])
    assert found.a is None
    assert found.b is not None


@pytest.mark.parametrize("name", ["1c", "2a"])
def test_where_a_step_is_a_micro_batch_the_lesson_says_micro_batch(name: str) -> None:
    for cpu in (True, False):
        lesson = load_lesson(name).here(cpu)
        texts = [lesson.question, lesson.because, *lesson.hints, *(r.says for r in lesson.relations)]
        assert all("step" not in re.sub("optimizer step|accumulation step", "", text) for text in texts)
        assert "a step is a micro-batch" in lesson.look_at["report"]


def test_without_a_gpu_no_lesson_promises_what_only_a_gpu_shows() -> None:
    cpu = {name: load_lesson(name).here(cpu=True) for name in ALL}
    shown = [r for lesson in cpu.values() for r in lesson.relations if r.needs != "gpu"]
    assert not any("memory" in r.holds for r in shown)
    assert "On a CPU it cannot" in cpu["2a"].because
    assert not any("most of the work" in hint for hint in cpu["1b"].hints)
    assert "A CPU has no streams" in cpu["2b"].because
    assert "Only a GPU shows" in cpu["2b"].question
    assert "A CPU has no streams" not in load_lesson("2b").because
    pages = sections()
    assert pages["2b"].index("Without a GPU, answer the first question only") < pages["2b"].index("\n1. ")
    assert "1. On a GPU: matrix multiplications in both" in pages["1b"]
    assert 'on a CPU "peak memory" is that of the whole' in pages["2a"]


SLIDES = yaml.safe_load((ROOT / "tests/golden/slides.yaml").read_text(encoding="utf-8"))["slides"]
COURSE = workshop_lessons()


@pytest.mark.parametrize("name", COURSE)
def test_slide_lesson_page_and_reference_ask_for_the_same_runs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    lesson, site = load_lesson(name), load_site("leonardo")
    commands = lesson.commands(cpu=False)
    page = sections_page(name)
    variants = [variant for variant in load_list("workshop").variants if name in variant.lessons]
    stored = [reference_at_site(variant.asks, {"gpus_per_node": 4}) for variant in variants]
    asked = LessonAtSite(lesson, commands, site, "leonardo")
    on_slides = {f"bash slurm.sh {slide['command']}" for slide in SLIDES}
    for arm, experiment in (("a", commands.a), ("b", commands.b)):
        typed = slide_of(experiment) or shell_command(experiment)
        assert typed is not None and f"`{typed}`" in page, "the page has the command, letter by letter"
        assert asked.command(experiment).replace(" --site leonardo", "") == typed, "and so has the lesson"
        assert experiment.model_copy(update={"gpus_per_node": 4}) in stored, "and the reference"
        if arm in lesson.slide:
            assert lesson.slide[arm] == typed and typed in on_slides, "and the slide"
            assert experiment_of(typed.split()[2:]) == experiment, "which asks for just this"
    assert main(["lesson", name, "--site", "leonardo", "--no-run"]) == 0
    printed = re.sub(r" +", " ", capsys.readouterr().out)
    assert all(asked.command(experiment) in printed for experiment in (commands.a, commands.b))


def test_every_pair_of_the_slides_is_a_lesson() -> None:
    of_lessons = {text for name in COURSE for text in load_lesson(name).slide.values()}
    plain = {"bash slurm.sh -e 0", "bash slurm.sh -e 1"}
    help_page = "bash slurm.sh -n 1 -g 4 -e 1 -a tra26_minwinsc -p boost_usr_prod"
    assert {
        command for slide in SLIDES if not (command := f"bash slurm.sh {slide['command']}").startswith(help_page)
    } <= of_lessons | plain


def test_a_wrong_lesson_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="there is no lesson '1z'"):
        load_lesson("1z")
    path = tmp_path / "mine.yaml"
    path.write_text("name: x\ntitle: y\n")
    with pytest.raises(RequestError, match="question: Field required"):
        load_lesson(str(path))


def test_a_command_is_written_as_on_the_slides() -> None:
    assert shell_command(DeepSpeed(overlap_comm=False)) == "bash slurm.sh -e 2 -- --ds-no-overlap"
    assert shell_command(DDP(nodes=2)) == "bash slurm.sh -e 1 -n 2"
