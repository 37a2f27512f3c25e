"""A site is a validated file: found by name or path; errors name the nearest field; its schema is checked in."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from harness.cli.launch.sites import schema_text
from harness.common.errors import RequestError
from harness.experiment.exercises import DDP, CommTests
from harness.launch.job import Machine, resolve
from harness.site.alphabets import SCRIPTS_OWN, TAKES
from harness.site.detection import choose_site
from harness.site.site import Site, load_site, override, site_names
from tests.launch.launch_shared import ROOT, SITES, Harness, site_file

WRONG_FILES = {
    "name: x\n": "field description is missing",
    "name: 2024-01-01\ndescription: y\n": "YAML reads it as 2024-01-01: quote it",
    "name: [\n": "is not valid YAML",
    "- a list\n": "must be a mapping",
    "name: x\nname: y\ndescription: y\n": "name is given twice",
}
WRONG_FIELDS = {
    "partiton: z": "unknown field partiton (did you mean partition?)",
    "gpus: {per_nod: 4}": "unknown field gpus.per_nod (did you mean per_node?)",
    "account: 0123": "field account is text, and YAML reads it as 83: quote it",
    "modules: [2024.10]": "field modules.0 is text, and YAML reads it as 2024.1",
    "env: {1: a}": "is text, and YAML reads it as 1: quote it",
    "time: soon": "field time: got 'soon', takes HH:MM:SS above zero",
    "time: 12:30:00": "field time is text, and YAML reads it as 45000: quote it",
    "time: '0:00:00'": "a time limit of zero",
    "partition: 'a b'": "field partition: got 'a b', takes one word",
    "sbatch: ['-p gpu']": "field sbatch.0",
    "sbatch: ['--comment=\"two words']": "two words': no closing quotation",
    "env: {HF_TOKEN: abc}": "looks like a secret",
    "env: {RUN_DIR: x}": "RUN_DIR is the script's own",
    "env: {IFS: x}": "IFS is the script's own",
    "gpus: {per_node: 1, per_node: 2}": "per_node is given twice",
    "data: /d/$5": "field data is '/d/$5': a $ begins a variable here",
    "defaults: {active_step: 5}": "no exercise has a field active_step (did you mean active_steps?)",
    "container: {runtime: pyxsi, image: a}": "field container.runtime: got 'pyxsi', takes 'singularity', 'apptainer', "
    "'pyxis' or 'none' (did you mean pyxis?)",
    "container: {runtime: none, imag: a}": "unknown field container.imag (did you mean image?)",
    "container: {runtime: pyxis, image: training.sqsh}": "looks for it in a registry: write the whole path, from / on",
    "container: {runtime: pyxis, image: /x/training.sif}": "pyxis reads .sqsh files and images of a registry",
    "container: {runtim: pyxis, image: a}": "unknown field container.runtim (did you mean runtime?)",
    "container: {runtime: pyxis, image: nvcr.io#a}\nscheduler: local\ndevice: cpu": "is an option of Slurm's srun, and",
    "network: {torchrun: torchrun-jsc}": "'torchrun' or 'torchrun_jsc' (did you mean torchrun_jsc?)",
    "nsys_sbatch: [disable-dcgm]": "field nsys_sbatch.0: got 'disable-dcgm', takes one line that begins with --",
    "nsys_sbatch: ['--array=1-4']": "one submission is one run",
    "job_python: python3": "field job_python is 'python3': a job runs in another folder: write the whole path",
    "gpus: {vendor: amd}\nprofiler: nsys": "field profiler is 'nsys': it records NVIDIA's GPUs only, and gpus.",
    "gpus: {vendor: adm}": "field gpus.vendor: got 'adm', takes 'nvidia' or 'amd' (did you mean amd?)",
    "scheduler: local\ndevice: cuda": "has device: cuda, but this machine shows no NVIDIA GPU",
    "scheduler: queue": "scheduler is 'queue', and takes slurm or local",
}
MANY_RUNS = ["--array=1-4", "--arr 1-4", "--wait", "--exclusive -W", "--nice=5 -a1-3", "--test-only"]
WRONG_FIELDS |= {f"sbatch: ['{option}']": "one submission is one run" for option in MANY_RUNS}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        *WRONG_FILES.items(),
        *((f"name: x\ndescription: y\n{fields}\n", sentence) for fields, sentence in WRONG_FIELDS.items()),
    ],
)
def test_a_wrong_site_file_is_one_sentence(tmp_path: Path, harness: Harness, text: str, sentence: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    done = harness("-e", "1", "--site", str(path), "--dry-run", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


NAMES = ["HF_TOKEN", "WANDB_KEY", "WANDB_API_KEY", "AWS_ACCESS_KEY_ID", "HF_AUTH", "SSH_PRIVATE_KEY", "db_password"]
LINES = [f"{how}{name}={value}" for name in NAMES for how in ("export ", "A=1 ", "true;") for value in ("x1y", "'x y'")]


def test_every_pattern_of_a_site_file_has_words_and_no_refusal_shows_a_pattern(tmp_path: Path) -> None:
    schema = json.dumps(Site.model_json_schema())
    patterns = {json.loads(f'"{found}"') for found in re.findall(r'"pattern": "((?:[^"\\\\]|\\\\.)*)"', schema)}
    assert len(patterns) >= 4 and patterns <= set(TAKES)
    wrong = {"time": "12h", "account": "a b", "sbatch": ["exclusive"], "modules": ["-x"], "env": {"1a": "b"}}
    for field, given in wrong.items():
        with pytest.raises(RequestError) as refused:
            load_site(site_file(tmp_path, **{field: given}))
        said = str(refused.value)
        assert field in said and "takes" in said and not re.search(r"\^|\]\*|\)\?", said)


@pytest.mark.parametrize(
    "part",
    [
        *({"env": {name: "x1y"}} for name in NAMES),
        *({"setup": [line]} for line in LINES),
        *({field: [LINES[0]]} for field in ("node_setup", "node_cleanup")),
        {"sbatch": ["--export=ALL,HF_TOKEN=x1y"]},
        {"setup": ['export HF_TOKEN="${HF_TOKEN:-x1y}"']},
    ],
    ids=str,
)
def test_a_secret_does_not_fit_into_a_site_file_and_is_not_repeated(tmp_path: Path, part: dict[str, object]) -> None:
    with pytest.raises(RequestError, match="looks like a secret") as refused:
        load_site(site_file(tmp_path, **part))
    assert "x1y" not in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "part",
    [
        {"env": {"TOKENIZERS_PARALLELISM": "false", "MAX_TOKENS": "512", "MONKEY": "x"}},
        {"env": {"HF_TOKEN": "$MY_TOKEN", "HF_TOKEN_PATH": "/home/me/t", "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1"}},
        *(
            {"setup": [line]}
            for line in (
                "export HF_TOKEN=$(cat ~/token)",
                'export HF_TOKEN="$(cat "$HOME/token")"',
                "A_KEY=`cat k`",
                "export HF_TOKEN=${HF_TOKEN:?is not set}",
                'echo "$HF_TOKEN=there"',
                "sort --key=2,3 list",
            )
        ),
        {"sbatch": ["--export=ALL,HF_TOKEN", "--wait-all-nodes=1", "--account=x", '--comment="an --array"']},
    ],
    ids=str,
)
def test_what_only_names_a_secret_or_sounds_like_one_is_allowed(tmp_path: Path, part: dict[str, object]) -> None:
    assert load_site(site_file(tmp_path, **part)).name == "x"


def test_a_sites_defaults_hold_until_a_flag_says_otherwise(tmp_path: Path, harness: Harness) -> None:
    there = ("-e", "1", "--site", site_file(tmp_path, defaults={"active_steps": 3, "tp": 2}), "--dry-run")
    assert "--active 3" in harness(*there).stdout
    assert "--active 7" in harness(*there, "--active-steps", "7").stdout
    site_file(tmp_path, defaults={"active_steps": "none"})
    assert "--active-steps: got 'none'" in harness(*there).stderr


def test_the_site_to_copy_shows_fields_that_are_valid_once_the_comment_sign_is_gone(tmp_path: Path) -> None:
    shown = (ROOT / "configs" / "sites" / "slurm.yaml").read_text(encoding="utf-8")
    file = tmp_path / "mine.yaml"
    file.write_text(re.sub(r"^( *)# ( *[A-Za-z_]+:)(?= |$)", r"\1\2", shown, flags=re.M), encoding="utf-8")
    site = load_site(str(file))
    assert site.account and site.partition and site.qos and site.modules and site.exclusive
    assert site.container and site.container.image and site.container.nemo_image and site.container.binds
    assert site.network.interface and site.network.link_intra_gbps and site.network.link_inter_gbps
    assert site.data and site.megatron_data and site.models_dir
    assert site.env["HF_HUB_OFFLINE"] == "1"
    plain = load_site("slurm")
    assert plain.account is None and plain.container is None and plain.data is None


@pytest.mark.parametrize("name", [name for name in site_names() if load_site(name).network.ports])
def test_a_gpus_share_of_the_network_is_that_of_its_nodes_ports(name: str) -> None:
    network, gpus = load_site(name).network, load_site(name).gpus.per_node
    assert network.expected_gbps and gpus
    assert network.link_inter_gbps == network.ports * network.expected_gbps / gpus
    file = (ROOT / "configs" / "sites" / f"{name}.yaml").read_text(encoding="utf-8")
    fields = ("ports", "expected_gbps", "link_inter_gbps")
    assert all(re.search(rf"^  {field}: \d+ +# \S", file, re.M) for field in fields)


@pytest.fixture
def course(tmp_path: Path) -> Path:
    folder = tmp_path / "the course"
    for name in ("containers", "models", "DATA/alpaca-cleaned", "packages"):
        (folder / name).mkdir(parents=True)
    for name in ("containers/ai-profiling-workshop.sif", "DATA/alpaca-cleaned/alpaca_data_cleaned.json"):
        (folder / name).touch()
    return folder


def test_a_courses_files_come_before_the_sites_where_they_can_be_read(course: Path) -> None:
    plain = load_site("leonardo")
    choice = choose_site("leonardo", {"HARNESS_COURSE_FOLDER": str(course)})
    assert choice.reason == f"--site; image, models, data, packages of {course}"
    site = choice.site
    assert site.container and plain.container
    assert site.container.image == f"{course}/containers/ai-profiling-workshop.sif"
    assert site.container.binds == [*plain.container.binds, str(course)]
    data = f"{course}/DATA/alpaca-cleaned/alpaca_data_cleaned.json"
    assert (site.models_dir, site.data, site.env["PYTHONPATH"]) == (f"{course}/models", data, f"{course}/packages")
    (course / "containers/ai-profiling-workshop.sif").unlink()
    without = choose_site("leonardo", {"HARNESS_COURSE_FOLDER": str(course)}).site
    assert without.container and without.container.image == plain.container.image


def test_a_course_that_cannot_be_read_changes_nothing_unless_it_was_asked_for(course: Path, tmp_path: Path) -> None:
    assert choose_site("leonardo", {}).site == load_site("leonardo")
    assert choose_site("local", {"HARNESS_COURSE_FOLDER": str(course)}).site == load_site("local")
    with pytest.raises(RequestError, match=r"^HARNESS_COURSE_FOLDER=/not/here: there is no such folder, or you may"):
        choose_site("leonardo", {"HARNESS_COURSE_FOLDER": "/not/here"})
    file = site_file(tmp_path, container={"image": "/own.sif"}, course={"folder": "$WHERE/the course"})
    site = choose_site(file, {"WHERE": str(tmp_path)}).site
    assert site.container and site.container.image.startswith(str(course)), "the folder of a site may have variables"


HOSTS = {
    "login07.leonardo.local": "leonardo",
    "jwlogin24": "juwels-booster",
    "jwb0123.juwels": "juwels-booster",
    "jrlogin04.jureca": "jureca",
    "as01r2b03": "marenostrum5",
    "alogin1": "marenostrum5",
    "jpbl-s01-01": "jupiter",
    "q-dy-p5-1": "aws-p5",
}
LAPTOPS = ("asus-robert", "jwbook", "alogin-of-anna")
BOTH = {"HARNESS_SITE": "lumi", "SLURM_CLUSTER_NAME": "leonardo"}


@pytest.mark.parametrize(
    ("environ", "host", "name", "reason"),
    [
        (BOTH, "x", "lumi", "HARNESS_SITE"),
        (BOTH | {"HARNESS_COURSE": " HARNESS_RUNS HARNESS_SITE"}, "x", "lumi", "HARNESS_SITE in configs/course.env"),
        (BOTH | {"HARNESS_SITE": ""}, "x", "leonardo", "SLURM_CLUSTER_NAME is leonardo"),
        *(({}, host, name, f"this host is {host}") for host, name in HOSTS.items()),
        *(({}, host, "local", "sbatch is here but its controller does not answer") for host in LAPTOPS),
    ],
)
def test_a_site_is_known_by_flag_variable_cluster_or_host_and_a_laptop_is_no_cluster(
    monkeypatch: pytest.MonkeyPatch, *, environ: dict[str, str], host: str, name: str, reason: str
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: host)
    for sbatch in ("/usr/bin/sbatch", None):  # another machine may have such a host name
        monkeypatch.setattr("shutil.which", lambda program, sbatch=sbatch: sbatch if program == "sbatch" else None)
        choice = choose_site(None, environ)
        assert choice.site.name == (name if sbatch or environ else "local")
        assert choice.reason == reason or not sbatch
        assert choose_site("jupiter", environ).site.name == "jupiter"


def test_the_schema_for_editors_is_up_to_date() -> None:
    """After a change: slurm.sh sites --schema > configs/sites/site.schema.json"""
    assert (ROOT / "configs" / "sites" / "site.schema.json").read_text(encoding="utf-8") == schema_text()


def test_sites_lists_and_shows(harness: Harness) -> None:
    listing = harness("sites").stdout
    assert all(name in listing for name in SITES)
    assert "* local" in listing
    shown = harness("sites", "leonardo")
    assert "boost_usr_prod" in shown.stdout
    assert json.loads(harness("sites", "leonardo", "--json").stdout)["gpus"]["per_node"] == 4
    assert harness("sites", "leonrdo").returncode == 2


def test_a_sites_environment_cannot_name_what_the_script_sets_or_gets() -> None:
    shell = "".join((ROOT / "templates" / f"{name}.j2").read_text("utf-8") for name in
                    ("job", "environment", "meeting", "slurm", "local"))  # fmt: skip
    shell = re.sub(r"(?s){##.*?##}|{%.*?%}|{{.*?}}", "0", shell)
    code = re.sub(r"(?m)(?<!\S)#.*$", "", shell)
    names = set(re.findall(r"(?<![\w/.$-])([A-Za-z_]\w*)\+?=", code))
    names |= set(re.findall(r"\$\{?((?:SLURM|HARNESS)_\w+)", code))
    on_nodes = ("node.py", "node_status.py", "supervise.py")
    programs = [(ROOT / "harness/launch/on_node" / name).read_text("utf-8") for name in on_nodes]
    names |= set(re.findall(r"\b((?:SLURM_TOPOLOGY|HARNESS)_\w+)", "".join(programs)))
    machine = Machine(0, 2, True, "python", "/runs")
    jobs = [resolve(asked, load_site("leonardo"), machine) for asked in (CommTests(), DDP(profiler="nsys"))]
    arrays = {array.name for job in jobs for array in job.arrays}
    assert names | arrays | {"HARNESS_HEARTBEATS", "SLURM_NODEID"} == SCRIPTS_OWN


@pytest.mark.parametrize(
    ("qos", "given", "found"),
    [
        ("boost_qos_dbg", {"account": "mine", "time": "01:00:00"}, {"account": "mine", "time_s": 3600}),
        ("boost_qos_dbg", {"time": "00:02:00"}, {"warning_s": 30}),  # the warning fits into a short time limit
        (None, {"partition": "boost_usr_prod"}, {"max_nodes": 2}),  # without a QOS the limit is the partition's
        (None, {"partition": "other"}, {"max_nodes": None}),
        (None, {"qos": "boost_qos_bprod"}, {"max_nodes": None}),
    ],
)
def test_flags_override_the_site(qos: str | None, given: dict[str, str], found: dict[str, object]) -> None:
    site = override(load_site("leonardo").model_copy(update={"qos": qos}), given)
    assert {name: getattr(site, name) for name in found} == found
