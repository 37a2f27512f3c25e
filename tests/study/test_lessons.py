"""Lessons are files. They state their question as pages and slides do, and find the student's own pair of runs,
at their site."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from pathlib import Path

import pytest
import yaml

from harness.analysis.metric_values import MEMORY_OF_PLAN, Metrics
from harness.analysis.metrics import COLLECTIVES, KEPT, METRICS
from harness.cli.study.lesson import LessonAtSite, _paired
from harness.common.errors import RequestError
from harness.common.paths import ROOT
from harness.experiment.exercises import DDP, DeepSpeed, Experiment, Megatron
from harness.experiment.model import find_model
from harness.experiment.parse import command_of
from harness.launch.submit import prepare
from harness.plan.memory import workload_of
from harness.plan.speed import traffic_of
from harness.run.record import Status
from harness.site.site import Site, load_site
from harness.study.lessons import (
    Lesson,
    at_site,
    find_pair,
    lesson_names,
    load_lesson,
    pairs_like,
    shell_command,
    slide_of,
    workshop_lessons,
)
from harness.study.reference.variants import at_site as reference_at_site
from harness.study.reference.variants import load_list
from harness.study.relations import LessonArm, RelationOutcome, RelationResult, decide
from harness.theory.communication import ddp_buckets
from tests.study.kit import Say, asked_at, completed, page_of

# The metrics that every run can have; a lesson that asks for anything else can never be answered.
NAMES = {
    *(
        "peak_memory_bytes",
        "kernels_per_step",
        "last_loss",
        "step_ns",
        "data_loading_share",
        "overlap_fraction",
        "tokens_per_s",
        "tokens_per_step",
    ),
    *("gemm_bf16_share", "gemm_tf32_share", "failed_rank", "failed_by_error", "failed_others_count"),
    *("stuck_rank", "stuck_ranks_count", "stuck_waiting_count", "stuck_in_collective"),
    *("tokens_per_s_per_rank", "bytes_across_nodes", "parameter_bytes", "message_bytes", "pageable_copy_bytes"),
    *(f"{kind}_{what}" for kind in COLLECTIVES for what in ("count", "bytes")),
}


ALL = lesson_names()
COMPLETED = [name for name in ALL if load_lesson(name).ends == "completed"]
TRACED = [name for name in COMPLETED if load_lesson(name).a.model_dump().get("profiler") != "none"]


MORE: dict[type[Experiment], set[str]] = {
    DDP: {"expected_all_reduce_bytes", *MEMORY_OF_PLAN},
    DeepSpeed: {"expected_all_gather_bytes"},
    Megatron: {"bubble", "expected_bubble", "microbatches"},
}


def metrics_of(experiment: Experiment) -> Metrics:
    """The metrics that a run of this experiment can have."""
    names = NAMES | {metric.name for metric in METRICS[len(KEPT) :]} | MORE.get(type(experiment), set())
    return dict.fromkeys(names, 1.0)


def answers(lesson: Lesson, a: Metrics, b: Metrics, on_gpu: bool, over_network: bool) -> list[RelationResult]:
    return decide(lesson, *(LessonArm("a run", metrics, on_gpu, over_network, []) for metrics in (a, b)))


@pytest.mark.parametrize("cpu", [True, False])
@pytest.mark.parametrize("name", ALL)
def test_each_lesson_asks_only_for_what_its_runs_can_measure(name: str, cpu: bool) -> None:
    lesson = load_lesson(name)
    pair = lesson.pair(cpu)
    decided = answers(lesson, metrics_of(pair.a), metrics_of(pair.b), on_gpu=not cpu, over_network=True)
    assert len(decided) >= 2
    assert lesson.guess.metric in metrics_of(pair.a) if lesson.guess else lesson.ends != "completed"
    for one in decided:
        assert one.outcome is not RelationOutcome.NOT_COMPARABLE or (cpu and one.relation.needs == "gpu"), one.why
        assert len(one.numbers) == len(one.relation.shows), one.relation.shows


@pytest.mark.parametrize("name", TRACED)
def test_each_view_a_lesson_names_is_there(name: str) -> None:
    views = re.findall(r"[\w.-]+\.cfg", load_lesson(name).look_at["Paraver"])
    assert views and [view for view in views if not (ROOT / "configs" / "paraver" / view).is_file()] == []


def test_each_section_that_asks_something_has_the_lesson_of_its_name() -> None:
    parts = [part for exercise in "01234" for part in re.split(r"^##+ ", page_of(exercise), flags=re.M)]
    sections = {part.partition(":")[0]: part for part in parts if re.match(r"\d\w*:", part)}
    assert sorted(sections) == ALL
    assert all(re.search(r"^1\. .*\?", text, re.M) for text in sections.values())


def experiment_of(words: list[str]) -> Experiment:
    return asked_at("--site", "local", *words)[0]


@pytest.mark.parametrize("name", ALL)
def test_a_lessons_commands_ask_for_its_experiments(name: str) -> None:
    for experiment in (load_lesson(name).a, load_lesson(name).b):
        assert experiment_of(command_of(experiment) or []) == experiment


@pytest.mark.parametrize("cpu", [True, False])
@pytest.mark.parametrize("name", ALL)
def test_the_exercises_page_has_the_two_commands_of_each_lesson(tmp_path: Path, name: str, cpu: bool) -> None:
    commands = re.findall(r"bash slurm\.sh (-e \d[^`#\n]*)(?:[`#]|$)", page_of(name[0]), re.M)
    asked = [experiment_of(line.split()) for line in commands if "--plan" not in line]
    runs = [completed(tmp_path, str(n), each) for n, each in enumerate(asked)]
    assert None not in find_pair(load_lesson(name).pair(cpu), runs)


PLAIN, SLOW = DDP(), DDP(slow_dataloading=True)
OF_FOUR, BF16 = DDP(micro_batch_size=4), DDP(mixed_precision=True)


@pytest.mark.parametrize(
    ("name", "made", "found", "site"),
    [
        ("1a", [PLAIN, SLOW, PLAIN], ("2", "1"), "local"),  # the newest
        ("1a", [PLAIN, DDP(slow_dataloading=True, mixed_precision=True)], ("0", None), "local"),  # what is left open
        ("1a", [OF_FOUR, DDP(micro_batch_size=4, slow_dataloading=True)], ("0", "1"), "local"),
        ("1a", [PLAIN, OF_FOUR], ("0", None), "local"),  # the lesson's own run comes before a newer one
        ("1a", [PLAIN, OF_FOUR, SLOW], ("0", "2"), "local"),
        ("1b", [DDP(steps=2, profiler="none")], (None, None), "local"),  # without a trace it cannot answer
        ("1b", [DDP(mixed_precision=True, activation_checkpointing=True)], (None, None), "local"),  # needs bf16 in both
        ("1b", [BF16], (None, "0"), "local"),  # what the lesson varies is not left open
        ("1a", [PLAIN], (None, None), "leonardo"),  # runs of another site
        ("1a", [PLAIN, DDP(script="train_todo.py")], ("0", None), "local"),
        ("1a", [DDP(script="train_todo.py")], (None, None), "local"),
    ],
)
def test_which_of_the_students_runs_are_the_pair(
    runs: Path, name: str, made: list[Experiment], found: tuple[str | None, str | None], site: str
) -> None:
    there = [completed(runs, str(number), asked) for number, asked in enumerate(made)]
    _, pair = _paired(load_lesson(name), there, load_site(site))
    assert tuple(run and run.job_id for run in pair) == found


def test_a_missing_run_agrees_with_the_one_there_is(runs: Path) -> None:
    pair, _ = _paired(load_lesson("1a"), [completed(runs, "1", OF_FOUR)], load_site("local"))
    assert pair.b == DDP(micro_batch_size=4, slow_dataloading=True)


def test_an_answer_takes_the_pairs_of_the_same_settings_the_newest_last(runs: Path) -> None:
    slow = DDP(slow_dataloading=True)
    asked = [PLAIN, slow, OF_FOUR, PLAIN, slow, PLAIN]
    there = [completed(runs, str(number), each) for number, each in enumerate(asked)]
    found = pairs_like(load_lesson("1a").pair(cpu=True), there[4], there)
    assert [(a.job_id, b.job_id) for a, b in found] == [("3", "1"), ("5", "4")]


def test_a_run_that_left_no_trace_is_not_half_a_pair(runs: Path) -> None:
    """Like train_todo.py copied over train.py: it trains and does not start the profiler."""
    there, empty = completed(runs, "1", DDP()), completed(runs, "2", DDP())
    empty.write_status(Status(state="completed", missing=["torch/rank0.json.gz"]))
    found = [_paired(load_lesson("1a"), each, load_site("local"))[1].a for each in ([there, empty], [empty])]
    assert found == [there, None]


def test_where_a_node_has_other_gpus_the_lesson_asks_for_those_it_was_made_for() -> None:
    of_slide = DeepSpeed(nodes=2, mixed_precision=True, gradient_accumulation_steps=16, micro_batch_size=8)
    asked = [_paired(load_lesson("2c"), [], load_site(site))[0].b for site in ("leonardo", "aws-p5")]
    assert asked == [of_slide, of_slide.model_copy(update={"gpus_per_node": 4})]


def test_without_a_gpu_no_lesson_promises_what_only_a_gpu_shows() -> None:
    relations = [relation for name in ALL for relation in load_lesson(name).here(cpu=True).relations]
    assert not any("memory" in relation.holds for relation in relations if relation.needs != "gpu")
    own = [load_lesson(name).on_cpu for name in ("1b", "2a", "2b")]
    assert all(each.because or each.hints or each.question for each in own)


SLIDES = yaml.safe_load((ROOT / "tests/golden/slides.yaml").read_text(encoding="utf-8"))["slides"]
ON_SLIDES = {f"bash slurm.sh {slide['command']}" for slide in SLIDES}
COURSE = workshop_lessons()


@pytest.mark.parametrize("name", COURSE)
def test_slide_lesson_page_and_reference_ask_for_the_same_runs(name: str, say: Say) -> None:
    lesson = load_lesson(name)
    commands = lesson.commands(cpu=False)
    variants = [variant for variant in load_list("workshop").variants if name in variant.lessons]
    stored = [reference_at_site(variant.asks, {"gpus_per_node": 4}) for variant in variants]
    asked = LessonAtSite(lesson, commands, load_site("leonardo"), "leonardo")
    printed = re.sub(r" +", " ", say("lesson", name, "--site", "leonardo", "--no-run").out)
    for arm, experiment in (("a", commands.a), ("b", commands.b)):
        typed = slide_of(experiment) or shell_command(experiment)
        assert typed is not None and f"`{typed}`" in page_of(name[0]), "the page has the command, letter by letter"
        command = asked.command(experiment)
        assert command.replace(" --site leonardo", "") == typed and command in printed, "and so has the lesson"
        assert experiment.model_copy(update={"gpus_per_node": 4}) in stored, "and the reference"
        if arm in lesson.slide:
            assert lesson.slide[arm] == typed and typed in ON_SLIDES, "and the slide"
            assert experiment_of(typed.split()[2:]) == experiment, "which asks for just this"


def test_every_pair_of_the_slides_is_a_lesson() -> None:
    of_lessons = {text for name in COURSE for text in load_lesson(name).slide.values()}
    plain = {"bash slurm.sh -e 0", "bash slurm.sh -e 1"}
    help_page = "bash slurm.sh -n 1 -g 4 -e 1 -a tra26_minwinsc -p boost_usr_prod"
    assert {command for command in ON_SLIDES if not command.startswith(help_page)} <= of_lessons | plain


def test_a_wrong_lesson_file_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("name: x\ntitle: y\n")
    with pytest.raises(RequestError, match="question: Field required"):
        load_lesson(str(path))


def planned(experiment: Experiment, site: str) -> Metrics:
    """What a rank of the experiment sends in a step, as the plan counts it, by the names of a lesson's metrics."""
    w = workload_of(prepare(experiment, load_site(site)).job)
    found: Counter[str] = Counter()
    for sent in traffic_of(w) if w else ():
        for kind in ("message", sent.kind, f"expected_{sent.kind}"):
            found[f"{kind}_bytes"] += round(sent.message_bytes)
        found[f"{sent.kind}_count"] += round(sent.messages or 0)
    return {**found, "parameter_bytes": w.parameters * (2 if w.bf16 else 4)} if w else {}


COUNTING = [name for name in TRACED if name != "1c"]  # which counts what its window has


@pytest.mark.parametrize(
    ("site", "name"),
    [("leonardo", name) for name in COUNTING]
    + [("local", name) for name in COUNTING if not load_lesson(name).needs_gpus],
)
def test_a_run_that_sends_what_the_plan_expects_is_not_refuted_by_its_lesson(site: str, name: str) -> None:
    lesson, cpu = load_lesson(name), site == "local"
    pair = at_site(lesson.commands(cpu), {"gpus_per_node": 2 if cpu else 4})
    decided = answers(lesson, planned(pair.a, site), planned(pair.b, site), on_gpu=not cpu, over_network=True)
    assert [each.why for each in decided if each.outcome is RelationOutcome.FAILS] == []


@pytest.mark.parametrize(("site", "said"), [("leonardo", "8 and 192"), ("local", "1 and 4")])
def test_the_buckets_that_the_plan_counts_are_what_1d_expects_and_its_page_says(site: str, said: str) -> None:
    lesson, cpu = load_lesson("1d"), site == "local"
    pair = at_site(lesson.commands(cpu), {"gpus_per_node": 2})
    a, b = planned(pair.a, site), planned(pair.b, site)
    decided = answers(lesson, a, b, on_gpu=not cpu, over_network=False)
    assert [each.outcome for each in decided] == [RelationOutcome.HOLDS] * 2
    assert f"{a['all_reduce_count']} and {b['all_reduce_count']}" == said and said in page_of("1")
    whole = find_model("llama-3.2-1b")[0].gradients()
    assert f"take {ddp_buckets(reversed(whole))} and {ddp_buckets(reversed(whole), 2**18)}" in page_of("1")


# ---- Lessons at a site


GPU_LESSONS = ["1e", "1j", "1m", "1n"]


@pytest.mark.parametrize("flags", [[], ["--run"], ["--again"], ["--answer"]])
def test_a_lesson_for_gpus_is_refused_on_cpus_before_anything_else(runs: Path, flags: list[str], say: Say) -> None:
    said = say("lesson", "1e", *flags)
    assert (said.code, said.out, list(runs.iterdir())) == (2, "", [])
    assert said.err.startswith("slurm.sh: lesson 1e needs GPUs, and site local runs on CPUs: use a --site")


@pytest.mark.parametrize("name", GPU_LESSONS)
def test_the_question_of_a_lesson_for_gpus_can_be_read_on_cpus_and_every_next_command_works(
    runs: Path, name: str, say: Say
) -> None:
    said = say("lesson", name, "--no-run").out
    assert "This lesson needs GPUs, and site local runs on CPUs: choose another --site." in said
    (following,) = re.findall(r"^next: bash slurm\.sh (.*)$", said, re.M)
    hints = say(*following.split()).out
    assert hints.count("\nhint ") == len(load_lesson(name).hints) and "next: " not in hints


def test_the_list_says_which_lessons_need_gpus(runs: Path, say: Say) -> None:
    lines = say("lesson").out.splitlines()
    assert [line.split()[0] for line in lines if "needs GPUs" in line] == GPU_LESSONS
    assert "next: bash slurm.sh lesson 1a --site leonardo · --hint" in say("lesson", "--site", "leonardo").out


@pytest.mark.parametrize("site", ["local", "leonardo"])
@pytest.mark.parametrize("name", lesson_names())
def test_each_command_that_a_lesson_prints_is_accepted_or_marked_as_needing_gpus_and_tells_no_answer(
    runs: Path, name: str, site: str, say: Say
) -> None:
    said = say("lesson", name, "--site", site, "--no-run").out
    printed = [shlex.split(line) for line in re.findall(r"^  [ab] \(not run yet\): bash slurm\.sh (.*)$", said, re.M)]
    codes = [say("--dry-run", *words).code for words in printed]
    marked = "This lesson needs GPUs" in said
    tells = name in ("4a", "4b")  # the fault of a command would be the answer
    assert (len(codes), tells and "--fault" in said) == (0 if tells else 2, False)
    assert marked == (site == "local" and name in GPU_LESSONS)
    assert (2 in codes) if marked else not any(codes)


def test_at_a_site_with_defaults_a_lesson_is_what_its_commands_ask_for() -> None:
    """What the lesson compares is its own, what it leaves open the site's, as in any launch there."""
    site = Site(name="x", description="x", defaults={"mixed_precision": True, "active_steps": 3, "seed": 7})
    pair = at_site(load_lesson("1b").pair(cpu=False), site.defaults)
    assert (pair.a, pair.b) == (DDP(active_steps=3, seed=7), DDP(mixed_precision=True, active_steps=3, seed=7))
    assert shell_command(pair.a, "x.yaml", site.defaults) == "bash slurm.sh -e 1 --site x.yaml -- --no-mixed-precision"
    assert shell_command(pair.b, None, site.defaults) == "bash slurm.sh -e 1"


def test_what_no_flag_takes_back_the_lesson_runs_itself() -> None:
    lesson, site = load_lesson("1a"), Site(name="x", description="x", defaults={"slow_dataloading": True})
    asked = LessonAtSite(lesson, at_site(lesson.pair(cpu=False), site.defaults), site, "my x.yaml")
    assert asked.command(asked.pair.a) == "bash slurm.sh lesson 1a --site 'my x.yaml' --run"
    assert asked.command(asked.pair.b) == "bash slurm.sh -e 1 --site 'my x.yaml'"


def test_defaults_that_break_a_lesson_are_one_sentence() -> None:
    with pytest.raises(RequestError, match="--activation-checkpointing needs --mixed-precision: add it"):
        at_site(load_lesson("1b").pair(cpu=False), {"activation_checkpointing": True})
