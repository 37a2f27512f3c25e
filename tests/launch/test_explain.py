"""`--dry-run --explain`: each option of a script has a sentence, and its source is where its value comes from."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from pages import our_options, slides_options

from harness.cli.launch.explain import ScriptLine, name_of, sections
from harness.experiment.exercises import EXERCISES, Experiment, OwnTraining
from harness.experiment.model import Model
from harness.experiment.nsys_sets import OPTION_SETS
from harness.experiment.options import options_of
from harness.launch.job import Job
from harness.launch.render import BELOW
from harness.site.site import Site, load_site
from tests.launch.launch_shared import SITES, Harness, site_file

EXPERIMENTS: list[type[Experiment]] = [*EXERCISES.values(), OwnTraining]
SCRIPTS = {
    "exercise 0": "-e 0 -n 2 --site leonardo",
    "exercise 1": "-e 1 --site leonardo",
    "exercise 2": "-e 2 -n 2 --site leonardo -- --ds-no-overlap",
    "exercise 3": "-e 3 -n 2 --site leonardo -- --tp 4 --pp 2 --nsys2prv",
    "exercise 1 on this machine": "-e 1 --site local",
    "exercise 2 with pyxis": "-e 2 -n 2 --site aws-p5",
    "exercise 3 by torchrun_jsc": "-e 3 -n 2 --site jureca",
    "exercise 1 on AMD's GPUs": "-e 1 --site lumi",
    "one nsys for each rank": "-e 1 --site marenostrum5 -- --nsys-per rank --nsys-options full --nic-metrics",
    "by the clock": "-e 1 --site slurm --monitor-hz 5 -- --profiler nsys --capture-delay 5 --capture-duration 9",
    "Megatron-LM's own script": "-e 3 -n 2 --site leonardo -- --engine megatron-lm",
    "faults and NCCL": "-e 1 -n 2 --site leonardo --no-ib --nccl ALGO=Ring -- --fault pause,every=3,ms=5 --lora",
}


def rows_of(harness: Harness, line: str, **environment: str) -> list[ScriptLine]:
    words = shlex.split(line)
    command, words = words[: words[0] == "run"], words[words[0] == "run" :]
    done = harness(*command, "--dry-run", "--explain", "--json", *words, **environment)
    assert done.returncode == 0, done.stderr
    return [ScriptLine(**row) for row in json.loads(done.stdout)]


def row_of(rows: list[ScriptLine], part: str, name: str) -> ScriptLine:
    """The row of an option, by its name without dashes, or the beginning of a line."""
    (found,) = (
        row for row in rows if row.part == part and (name_of(row.option) == name or row.option.startswith(name))
    )
    return found


def options_in(script: str) -> Iterator[str]:
    """Every option of the directives and of the arrays, as the script writes it, and the programs before them."""
    yield from re.findall(r"^#SBATCH (.+)$", script, re.MULTILINE)
    for array in re.findall(r"^[A-Z]+=\((.+?)\)$", script, re.MULTILINE | re.DOTALL):
        for line in array.split("\n"):
            yield from re.split(r" (?=--(?:wait|warmup|active) )", re.sub(r" # .*", "", line.strip()))


@pytest.mark.parametrize("line", SCRIPTS.values(), ids=SCRIPTS)
def test_every_option_and_line_of_a_script_has_a_sentence_and_a_source(harness: Harness, line: str) -> None:
    rows = rows_of(harness, line)
    script = harness("--dry-run", *shlex.split(line)).stdout
    of_others = {section.other.says for section in sections().values()}
    options, explained = list(options_in(script)), [row.option for row in rows]
    assert {option for option in options if option.startswith("--")} - {*explained} == set()
    assert [option for option in options if option not in " ".join(explained)] == []
    assert [row for row in rows if not row.sentence.endswith(".") or not row.source or row.source.endswith(".")] == []
    assert [row for row in rows if row.sentence in of_others and "site" not in row.source] == []
    whole = re.sub(r"^[A-Z]+=\(.+?\)$", "", script.replace(" \\\n", " "), flags=re.MULTILINE | re.DOTALL)
    lines = [re.sub(r" # .*", "", each) for each in whole.splitlines() if each and not each.startswith("#")]
    rest = [each for each in lines if not each.startswith(("export PYTHONPATH=", "srun ", '"$HARNESS_PYTHON" '))]
    assert [each for each in rest if not any(option in each for option in explained)] == []


@pytest.mark.parametrize(
    ("line", "part", "name", "source"),
    [
        ("-e 2 -n 2", "sbatch", "nodes", "flag -n"),
        ("-e 2", "sbatch", "nodes", "default of training-traces"),
        ("-e 2", "sbatch", "cpus-per-task", "site leonardo (cpus_per_node)"),
        ("-e 2 --site marenostrum5", "sbatch", "cpus-per-task",
         "site marenostrum5 (cpus_per_gpu, gpus.per_node)"),
        ("-e 2", "sbatch", "gres", "site leonardo (gpus.per_node, gpus.request)"),
        ("-e 2 -g 2", "sbatch", "gres", "flag -g; site leonardo (gpus.request)"),
        ("-e 2", "sbatch", "account", "site leonardo (account)"),
        ("-e 2 -a mine", "sbatch", "account", "flag -a"),
        ("-e 2 -a mine", "sbatch", "time", "site leonardo (time)"),
        ("-e 2 --time=00:10:00", "sbatch", "time", "flag --time"),
        ("-e 2", "sbatch", "signal", "default of training-traces"),
        ("-e 2", "sbatch", "output", "HARNESS_RUNS"),
        ("-e 1 --site jureca", "sbatch", "disable-dcgm", "site jureca (nsys_sbatch)"),
        ("-e 1 --site lumi", "sbatch", "mem-per-gpu", "site lumi (sbatch)"),
        ("-e 2", "script", "module load", "site leonardo (modules)"),
        ("-e 1 --site lumi", "script", "module load", "site lumi (setup)"),
        ("-e 1 --site jureca", "script", "MASTER_ADDR=", "site jureca (network.host_suffix)"),
        ("-e 1", "environment", "HF_HUB_OFFLINE", "site leonardo (env)"),
        ("-e 1", "environment", "OMP_NUM_THREADS", "default of training-traces"),
        ("-e 1 --nccl ALGO=Ring", "environment", "NCCL_ALGO", "flag --nccl"),
        ("-e 1 --site jureca", "environment", "NCCL_SOCKET_IFNAME", "site jureca (network.interface)"),
        ("-e 1 --site local", "environment", "NCCL_SOCKET_IFNAME", "default of training-traces"),
        ("-e 1", "nsys", "gpuctxsw", "option set default (configs/nsys/default.json)"),
        ("-e 3", "nsys", "trace", "option set megatron (configs/nsys/megatron.json)"),
        ("-e 1 -- --nsys-options full", "nsys", "sample",
         "option set full (configs/nsys/full.json), of flag --nsys-options"),
        ("-e 1 -- --nic-metrics", "nsys", "nic-metrics", "flag --nic-metrics"),
        ("-e 1 -- --capture-delay 5", "nsys", "delay", "flag --capture-delay"),
        ("-e 1 -- --python-sampling", "nsys", "python-sampling", "flag --python-sampling"),
        ("-e 1", "nsys", "output", "default of training-traces"),
        ("-e 1 --site local -- --profiler nsys", "nsys", "nvtx-capture", "option set cpu (configs/nsys/cpu.json)"),
        ("-e 1", "container", "nv", "default of training-traces"),
        ("-e 1", "container", '"$WORK/containers/training.sif"', "site leonardo (container.image)"),
        ("-e 3 -- --engine megatron-lm", "container", '"$WORK/containers/nemo.sif"',
         "site leonardo (container.nemo_image)"),
        ("-e 2 --site aws-p5", "container", "container-image", "site aws-p5 (container.image)"),
        ("-e 2 --site aws-p5", "container", "container-mount-home", "default of training-traces"),
        ("-e 2 -n 2", "accelerate", "config_file", "default of training-traces"),
        ("-e 2 -n 2", "accelerate.yaml", "num_machines", "flag -n"),
        ("-e 1", "accelerate.yaml", "mixed_precision", "default of training-traces"),
        ("-e 1 -- --mixed-precision bf16", "accelerate.yaml", "mixed_precision", "flag --mixed-precision"),
        ("-e 3 -n 2", "torchrun", "nnodes", "flag -n"),
        ("-e 3 -n 2 --site jureca", "torchrun", "rdzv-backend", "site jureca (network.torchrun)"),
        ("-e 2", "training", "model", "default of training-traces: the model of exercise 2"),
        ("-e 2 -- --model llama-3.2-1b", "training", "model", "flag --model"),
        ("-e 2", "training", "checkpoint", "site leonardo (models_dir)"),
        ("-e 2", "training", "data", "site leonardo (data)"),
        ("-e 2", "training", "seq-length", "model mistral-7b (defaults.seq_length)"),
        ("-e 3", "training", "seq-length", "model mistral-7b (defaults.pretrain_seq_length)"),
        ("-e 2", "training", "micro-batch-size", "model mistral-7b (defaults.fp32_micro_batch_size)"),
        ("-e 2 -- --mixed-precision", "training", "micro-batch-size", "model mistral-7b (defaults.micro_batch_size)"),
        ("-e 2 -- --micro-batch-size 2", "training", "micro-batch-size", "flag --micro-batch-size"),
        ("-e 2 -- --seed 1234", "training", "seed", "flag --seed"),
        ("-e 2", "training", "seed", "default of training-traces"),
        ("-e 3", "training", "tp", "default of training-traces: a node's GPUs divided by --pp and --cp"),
        ("-e 3", "training", "data-path", "site leonardo (megatron_data)"),
        ("-e 1 --no-profile", "training", "profiler", "flag --no-profile"),
        ("-e 1 -- --nic-metrics", "training", "profiler", "flag --nic-metrics"),
        ("-e 2 --site aws-p5", "training", "profiler", "site aws-p5 (profiler)"),
        ("-e 1 --site local", "training", "device", "site local (device)"),
        ("-e 2 -- --ds-no-overlap", "ds_config.json", '"overlap_comm"', "flag --ds-no-overlap"),
        ("-e 2 -- --ds-no-overlap", "ds_config.json", '"stage"', "default of training-traces"),
        ("-e 2 -- --ds-stage2 --mixed-precision", "ds_config.json", '"stage"', "flag --ds-stage2"),
        ("-e 2 -- --ds-stage2 --mixed-precision", "ds_config.json", '"enabled"', "flag --mixed-precision"),
        ("-e 2 -n 2 -g 4 -- --ds-hpz-partition 8", "ds_config.json", '"zero_hpz', "flag --ds-hpz-partition"),
        ("-e 2", "ds_config.json", '"zero_hpz', "default of training-traces: the GPUs per node"),
        ("-e 0", "tests", "link-gbps-inter", "site leonardo (network.link_inter_gbps)"),
        ("-e 2 --site aws-p5", "node", "setup", "site aws-p5 (node_setup)"),
        ("-e 1 --on-hang stop", "node", "on-hang", "flag --on-hang"),
        ("-e 3 -- --nsys2prv", "after", "env", "flag --nsys2prv"),
        ("-e 1 -- --capture-duration 9", "nsys", "duration", "flag --capture-duration"),
    ],
)  # fmt: skip
def test_a_source_is_where_the_value_comes_from(harness: Harness, line: str, part: str, name: str, source: str) -> None:
    site = "" if "--site" in line else "--site leonardo "
    assert row_of(rows_of(harness, site + line), part, name).source == source


def test_a_source_follows_the_sites_file(harness: Harness, tmp_path: Path) -> None:
    own = tmp_path / "own.json"
    own.write_text('{"trace": "cuda", "nic-metrics": "lf", "gpuctxsw": null}')
    fields = {
        "account": "mine", "nsys": str(own), "signal_seconds": 60, "modules": ["nsight"],
        "sbatch": ["--hint=nomultithread"],
        "defaults": {"active_steps": 5, "gpus_per_node": 2}, "env": {"MY_OWN": "1"},
        "container": {"image": "/x.sif", "arguments": ["exec", "--nv", "--userns"], "binds": ["/data:/inside"]},
    }  # fmt: skip
    rows = rows_of(harness, f"-e 1 --site {site_file(tmp_path, **fields)}")
    expected = {
        ("sbatch", "signal"): "site x (signal_seconds)",
        ("sbatch", "gres"): "site x (defaults.gpus_per_node); default of training-traces",
        ("sbatch", "hint"): "site x (sbatch)",
        ("sbatch", "time"): "default of training-traces",
        ("environment", "MY_OWN"): "site x (env)",
        ("nsys", "nic-metrics"): f"option set {own}, of site x (nsys)",
        ("container", "singularity exec"): "default of training-traces",
        ("container", "userns"): "site x (container.arguments)",
        ("container", "--bind /data:/inside"): "site x (container.binds)",
        ("training", "active"): "site x (defaults.active_steps)",
        (
            "training",
            "profiler",
        ): "default of training-traces: nsys if it is there and the GPUs are NVIDIA's, else torch.profiler",
    }
    assert {key: row_of(rows, *key).source for key in expected} == expected
    assert [row for row in rows if "gpuctxsw" in row.option] == []


def test_the_files_of_a_courses_folder_are_of_the_course(harness: Harness, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "containers").mkdir()
    (tmp_path / "containers/ai-profiling-workshop.sif").write_text("")
    rows = rows_of(harness, "-e 1 --site leonardo", HARNESS_COURSE_FOLDER=str(tmp_path))
    for part, name in (("training", "checkpoint"), ("container", f"{tmp_path}/c"), ("container", f"--bind {tmp_path}")):
        assert row_of(rows, part, name).source == "HARNESS_COURSE_FOLDER"
    assert row_of(rows, "training", "data").source == "site leonardo (data)"


def test_what_a_user_types_after_the_dashes_is_a_users(harness: Harness, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    words = f"{tmp_path}/train.py --lr 1e-4 -n 7"
    rows = rows_of(harness, f"run -n 2 -g 2 --site leonardo --launcher deepspeed -- {words}")
    assert " ".join(row.option for row in rows if row.part == "own") == words
    assert {row.source for row in rows if row.part == "own"} == {"the words after --"}
    assert row_of(rows, "deepspeed", "hostfile").source == "flag -n; flag -g"
    assert row_of(rows, "container", f"--bind {tmp_path}").source == "the folder of your program"


def test_the_text_has_each_row_and_is_no_wider_than_the_terminal(harness: Harness) -> None:
    line = ["-e", "2", "-n", "2", "--site", "leonardo", "--dry-run", "--explain", "--", "--ds-no-overlap"]
    text = harness(*line, COLUMNS="72").stdout
    rows = rows_of(harness, "-e 2 -n 2 --site leonardo -- --ds-no-overlap")
    whole = " ".join(text.split())
    for row in rows:
        assert f" {' '.join(row.option.split())} {row.sentence} From: {row.source}. " in f" {whole} "
    assert "On the slide: Track GPU context switches (optional, rarely a bottleneck)" in whole
    assert max(len(each) for each in text.splitlines() if each.startswith("    ")) <= 72
    assert "#!/bin/bash" not in text


@pytest.mark.parametrize(
    ("line", "changed", "lines"),
    [
        ("-e 2 -n 2", "--ds-no-overlap", ['"overlap_comm": false, # flag --ds-no-overlap']),
        ("-e 2 -n 2", "--ds-hpz-partition 8", ['"zero_hpz_partition_size": 8 # flag --ds-hpz-partition']),
        ("-e 1", "-g 2", ["num_processes: 2 # flag -g"]),
        ("-e 3", "--tp 2", []),
    ],
)
def test_a_dry_run_shows_the_settings_below_the_script_with_what_a_flag_set(
    harness: Harness, line: str, changed: str, lines: list[str]
) -> None:
    plain, other = (
        harness("--dry-run", "--site", "leonardo", *words.split()).stdout for words in (line, f"{line} {changed}")
    )
    below = [text.partition(BELOW)[2].splitlines() for text in (plain, other)]
    assert bool(below[0]) == bool(lines)
    assert [each.removeprefix("#").strip() for each in below[1] if each not in below[0]] == lines


def test_nothing_that_the_kit_declares_lacks_a_sentence() -> None:
    """Options of nsys in our sets and of our flags, variables and directives of the sites that come with the kit."""
    known = {name: set(section.options) for name, section in sections().items()}
    options = [option for cls in EXPERIMENTS for option in options_of(cls)]
    sites = [load_site(name) for name in SITES]
    sets = [json.loads(path.read_text()) for path in OPTION_SETS.glob("*.json")]
    assert {name for each in sets for name in each} - known["nsys"] == set()
    assert {name for option in options for name in option.flag.nsys} - known["nsys"] == set()
    assert {name for site in sites for name in site.env} - known["environment"] == set()
    lines = [line for site in sites for line in (*site.sbatch, *site.nsys_sbatch)]
    assert {name_of(line) for line in lines} - known["sbatch"] == set()


def test_a_value_comes_from_a_field_that_exists() -> None:
    fields = {name for cls in EXPERIMENTS for name in cls.model_fields} | Job.__dataclass_fields__.keys()
    whole = Site.model_validate({"name": "x", "description": "", "container": {"image": "/x.sif"}})
    for title, section in sections().items():
        assert all(re.fullmatch(r"[^\n]+\.", each.says) for each in (section.other, *section.options.values())), title
        assert title == "nsys" or not any(entry.slide for entry in section.options.values()), "only nsys is on a slide"
        for name in (name for entry in section.options.values() for name in entry.of):
            head, dot, rest = name.partition(".")
            if not dot:
                assert name in fields, name
            elif head == "site":
                first, *inner = rest.split(".")
                part = getattr(whole, first)
                assert all(each in type(part).model_fields for each in inner), name
            else:
                assert rest in Model.__dataclass_fields__, name


def test_the_page_compares_every_option_of_the_slide_and_of_ours() -> None:
    """Options of the slide: 11 of nsys, 2 of the container (one twice), 4 of accelerate, 10 of the training."""
    ours, rows = our_options(), slides_options()
    assert sorted(name for row in rows for name in row.ours) == sorted(ours)
    assert len([row for row in rows if row.slide.startswith("-")]) == 11 + 2 + 4 + 10
    same = {row.slide: [text for name in row.ours for text in ours[name]] for row in rows if row.why == "the same"}
    assert [slide for slide, texts in same.items() if texts != [slide] and "…" not in slide] == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--capture-duration 9", True),
        ("--capture-delay 9", False),
        ("--nsys-options {}/clock.json", True),
        ("--nsys-options {}/range.json", False),  # nsys itself takes the duration of a range
    ],
)
def test_the_script_says_who_ends_a_recording_by_the_clock(
    harness: Harness, tmp_path: Path, words: str, told: bool
) -> None:
    for name, more in (("clock", {}), ("range", {"capture-range": "cudaProfilerApi"})):
        (tmp_path / f"{name}.json").write_text(json.dumps({"trace": "cuda", "duration": "9", **more}))
    line = f"--dry-run -e 1 --site leonardo --profiler nsys {words.format(tmp_path)}"
    (nsys,) = [each for each in harness(*line.split()).stdout.splitlines() if each.startswith("NSYS=(")]
    assert ("; the harness ends it after --duration, and the training continues" in nsys) == told
