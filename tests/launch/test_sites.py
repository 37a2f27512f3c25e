"""A site is a validated file: found by name or path, its errors named with the nearest field, its schema checked in."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from harness.cli.sites import schema_text
from harness.common.errors import RequestError
from harness.experiment.exercises import DDP, Megatron
from harness.launch.backends.registry import backend_of
from harness.launch.job import resolve, warnings_of
from harness.launch.render import render
from harness.launch.resolve import Machine
from harness.site.alphabets import SCRIPTS_OWN, TAKES
from harness.site.detection import choose_site
from harness.site.site import Site, load_site, override, site_names
from tests.launch.launch_shared import ROOT, SITES, Harness


def test_the_sites_are_the_ones_promised() -> None:
    assert site_names() == sorted(SITES)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("name: x\ndescription: y\npartiton: z\n", "unknown field partiton (did you mean partition?)"),
        (
            "name: x\ndescription: y\ngpus: {per_nod: 4}\n",
            "unknown field gpus.per_nod (did you mean per_node?)",
        ),
        ("name: x\n", "field description is missing"),
        (
            "name: x\ndescription: y\naccount: 0123\n",
            "field account is text, and YAML reads it as 83: quote it",
        ),
        (
            "name: x\ndescription: y\nmodules: [2024.10]\n",
            "field modules.0 is text, and YAML reads it as 2024.1",
        ),
        ("name: 2024-01-01\ndescription: y\n", "YAML reads it as 2024-01-01: quote it"),
        ("name: x\ndescription: y\n1: 2\n", "key 1 is not text: quote it"),
        (
            "name: x\ndescription: y\nno: 2\n",
            "key False is not text, as YAML reads an unquoted yes, no, on or off",
        ),
        ("name: x\ndescription: y\ngpus: {1: 2}\n", "key 1 of gpus is not text"),
        ("name: x\ndescription: y\nenv: {1: a}\n", "key 1 of env is not text"),
        ("name: x\ndescription: y\ntime: soon\n", "field time: got 'soon', takes HH:MM:SS above zero"),
        ("name: x\ndescription: y\npartition: 'a b'\n", "field partition: got 'a b', takes one word"),
        ("name: x\ndescription: y\nsbatch: ['-p gpu']\n", "field sbatch.0"),
        (
            "name: x\ndescription: y\nsbatch: ['--comment=\"two words']\n",
            "two words': no closing quotation",
        ),
        *(
            (f"name: x\ndescription: y\nsbatch: ['{line}']\n", "one submission is one run")
            for line in (
                "--array=1-4",
                "--arr 1-4",
                "--wait",
                "--exclusive -W",
                "--nice=5 -a1-3",
                "--test-only",
            )
        ),
        ("name: [\n", "is not valid YAML"),
        ("- a list\n", "must be a mapping"),
        ("name: x\ndescription: y\nenv: {HF_TOKEN: abc}\n", "looks like a secret"),
        ("name: x\ndescription: y\ntime: 12:30:00\n", "YAML reads an unquoted 12:30:00: quote it"),
        ("name: x\ndescription: y\ntime: '0:00:00'\n", "a time limit of zero"),
        ("name: x\nname: y\ndescription: y\n", "name stands there twice"),
        ("name: x\ndescription: y\ngpus: {per_node: 1, per_node: 2}\n", "per_node stands there twice"),
        ("name: x\ndescription: y\ndata: /d/$5\n", "field data is '/d/$5': a $ begins a variable here"),
        (
            "name: x\ndescription: y\ndefaults: {active_step: 5}\n",
            "no exercise has a field active_step (did you mean active_steps?)",
        ),
        (
            "name: x\ndescription: y\nscheduler: local\ndevice: cuda\n",
            "says device: cuda, and this machine shows no NVIDIA GPU",
        ),
    ],
)
def test_a_wrong_site_file_is_one_sentence(
    tmp_path: Path, harness: Harness, text: str, sentence: str
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    done = harness("-e", "1", "--site", str(path), "--dry-run", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


NAMES = [
    "HF_TOKEN",
    "WANDB_KEY",
    "WANDB_API_KEY",
    "AWS_ACCESS_KEY_ID",
    "HF_AUTH",
    "SSH_PRIVATE_KEY",
    "db_password",
]
LINES = [
    f"{how}{name}={value}"
    for name in NAMES
    for how in ("export ", "A=1 ", "true;")
    for value in ("x1y", "'x y'")
]


def test_every_pattern_of_a_site_file_has_words_and_no_refusal_shows_a_pattern(tmp_path: Path) -> None:
    schema = json.dumps(Site.model_json_schema())
    patterns = {
        json.loads(f'"{found}"') for found in re.findall(r'"pattern": "((?:[^"\\\\]|\\\\.)*)"', schema)
    }
    assert len(patterns) >= 4 and patterns <= set(TAKES)
    wrong = {"time": "12h", "account": "a b", "sbatch": ["exclusive"], "modules": ["-x"], "env": {"1a": "b"}}
    for field, given in wrong.items():
        file = tmp_path / f"{field}.yaml"
        file.write_text(json.dumps({"name": "x", "description": "y", field: given}))
        with pytest.raises(RequestError) as refused:
            load_site(str(file))
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
def test_a_secret_does_not_fit_into_a_site_file_and_is_not_repeated(
    tmp_path: Path, part: dict[str, object]
) -> None:
    (tmp_path / "s.yaml").write_text(json.dumps({"name": "x", "description": "x"} | part))
    with pytest.raises(RequestError, match="looks like a secret") as refused:
        load_site(str(tmp_path / "s.yaml"))
    assert "x1y" not in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "part",
    [
        {"env": {"TOKENIZERS_PARALLELISM": "false", "MAX_TOKENS": "512", "MONKEY": "x"}},
        {
            "env": {
                "HF_TOKEN": "$MY_TOKEN",
                "HF_TOKEN_PATH": "/home/me/token",
                "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1",
            }
        },
        {
            "setup": [
                "export HF_TOKEN=$(cat ~/token)",
                'export HF_TOKEN="$(cat "$HOME/token")"',
                "A_KEY=`cat k`",
            ]
        },
        {
            "setup": [
                "export HF_TOKEN=${HF_TOKEN:?is not set}",
                'echo "$HF_TOKEN=there"',
                "sort --key=2,3 list",
            ]
        },
        {"sbatch": ["--export=ALL,HF_TOKEN", "--wait-all-nodes=1", "--account=x", '--comment="an --array"']},
    ],
    ids=str,
)
def test_what_only_names_a_secret_or_sounds_like_one_is_allowed(
    tmp_path: Path, part: dict[str, object]
) -> None:
    (tmp_path / "s.yaml").write_text(json.dumps({"name": "x", "description": "x"} | part))
    assert load_site(str(tmp_path / "s.yaml")).name == "x"


def test_an_unreadable_site_file_is_one_sentence(tmp_path: Path) -> None:
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RequestError, match="is not text in UTF-8"):
        load_site(str(binary))
    with pytest.raises(RequestError, match="cannot be read"):
        load_site(str(tmp_path) + "/folder.yaml")


def test_a_users_own_site_file_works(tmp_path: Path, harness: Harness) -> None:
    path = tmp_path / "ours.yaml"
    gpus = "gpus: {per_node: 8, request: gpus-per-node}"
    path.write_text(f"name: ours\ndescription: our cluster\npartition: a100\n{gpus}\n")
    done = harness("-e", "1", "--site", str(path), "--dry-run")
    assert done.returncode == 0
    assert "#SBATCH --gpus-per-node=8" in done.stdout
    assert done.stderr.startswith("site: ours (--site)")


def test_a_sites_defaults_hold_until_a_flag_says_otherwise(tmp_path: Path, harness: Harness) -> None:
    path = tmp_path / "ours.yaml"
    path.write_text("name: ours\ndescription: d\ndefaults: {active_steps: 3, tp: 2}\n")
    there = ("-e", "1", "--site", str(path), "--dry-run")
    assert "--active 3" in harness(*there).stdout
    assert "--active 7" in harness(*there, "--active-steps", "7").stdout
    path.write_text("name: ours\ndescription: d\ndefaults: {active_steps: none}\n")
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


def test_the_site_that_a_course_sets_is_said_to_come_from_its_file() -> None:
    environ = {"HARNESS_SITE": "leonardo", "HARNESS_COURSE": " HARNESS_RUNS HARNESS_SITE"}
    assert choose_site(None, environ).reason == "HARNESS_SITE in configs/course.env"
    assert choose_site(None, environ | {"HARNESS_COURSE": " HARNESS_RUNS"}).reason == "HARNESS_SITE"
    with pytest.raises(
        RequestError, match=r"^HARNESS_SITE in configs/course.env: there is no site 'leonado'"
    ):
        choose_site(None, environ | {"HARNESS_SITE": "leonado"})


def test_flags_override_the_site() -> None:
    site = override(load_site("leonardo"), {"account": "mine", "time": "01:00:00"})
    assert (site.account, site.time_s) == ("mine", 3600)


def test_the_warning_fits_into_a_short_time_limit() -> None:
    assert override(load_site("leonardo"), {"time": "00:02:00"}).warning_s == 30


def test_detection_goes_flag_then_variable_then_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    both = {"HARNESS_SITE": "marenostrum5", "SLURM_CLUSTER_NAME": "leonardo"}
    assert choose_site("jupiter", both).site.name == "jupiter"
    assert choose_site(None, both).site.name == "marenostrum5"
    assert choose_site(None, {"SLURM_CLUSTER_NAME": "leonardo"}).site.name == "leonardo"
    monkeypatch.setattr("socket.gethostname", lambda: "login07.leonardo.local")
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}" if name == "sbatch" else None)
    assert choose_site(None, {}).reason == "this host is login07.leonardo.local"


@pytest.mark.parametrize("host", ["asus-robert", "jwbook", "alogin-of-anna", "login07.leonardo.local"])
def test_a_laptop_is_no_cluster_by_its_name(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: host)
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert choose_site(None, {}).site.name == "local"
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}" if name == "sbatch" else None)
    assert choose_site(None, {}).site.name == ("leonardo" if "leonardo" in host else "local")


@pytest.mark.parametrize(
    ("host", "site"),
    [
        ("jwlogin24", "juwels-booster"),
        ("jwb0123.juwels", "juwels-booster"),
        ("as01r2b03", "marenostrum5"),
        ("alogin1", "marenostrum5"),
        ("jpbl-s01-01", "jupiter"),
        ("q-dy-p5-1", "aws-p5"),
    ],
)
def test_a_clusters_hosts_are_known(monkeypatch: pytest.MonkeyPatch, host: str, site: str) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: host)
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    assert choose_site(None, {}).site.name == site


def test_without_a_controller_the_site_is_local(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    choice = choose_site(None, {})
    assert (choice.site.name, choice.reason) == ("local", "no sbatch on this machine")


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


@pytest.mark.parametrize(("nodes", "gpus", "threads"), [(1, 1, 8), (1, 2, 4), (2, 2, 2), (4, 4, 1)])
def test_the_nodes_a_machine_plays_share_its_cores(
    machine: Machine, nodes: int, gpus: int, threads: int
) -> None:
    asked = DDP(nodes=nodes, gpus_per_node=gpus)
    env = resolve(asked, load_site("local"), machine._replace(cores=8)).env
    assert env["OMP_NUM_THREADS"] == str(threads)


def test_a_sites_environment_holds_and_keeps_the_checkout(machine: Machine) -> None:
    theirs = {"OMP_NUM_THREADS": "4", "PYTHONPATH": "$WORK/lib", "MY_FLAG": "1"}
    site = load_site("local").model_copy(update={"env": theirs})
    script = render(resolve(DDP(), site, machine))
    exports = script[script.index("export PYTHONPATH") : script.index("MASTER_ADDR")]
    code = f'WORK=/w\n{exports}\necho $OMP_NUM_THREADS $MY_FLAG; echo "$PYTHONPATH"'
    said = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True).stdout
    assert said == f"4 1\n{ROOT}:/w/lib\n"


def test_a_sites_environment_cannot_name_what_the_script_sets_or_is_told() -> None:
    shell = "".join((ROOT / "templates" / n).read_text("utf-8") for n in ("job.j2", "slurm.j2", "local.j2"))
    shell = re.sub(r"(?s){##.*?##}|{%.*?%}|{{.*?}}", "0", shell)
    code = re.sub(r"(?m)(?<!\S)#.*$", "", shell)
    names = set(re.findall(r"(?<![\w/.$-])([A-Za-z_]\w*)\+?=", code))
    names |= set(re.findall(r"\b(?:for \(*|mapfile .*?-t )(\w+) ", code))
    names |= {w for line in re.findall(r"\n *local ([^\n$(]*)", code) for w in re.findall(r"[a-z]+", line)}
    names |= set(re.findall(r"\$\{?((?:SLURM|HARNESS)_\w+)", code))
    assert names - {"PYTHONPATH", "CUDA_VISIBLE_DEVICES"} == SCRIPTS_OWN  # these two keep what the site says


@pytest.mark.parametrize(
    "name", ["RUN_DIR", "HARNESS_PYTHON", "NODE", "REASON", "SLURM_NODEID", "UID", "IFS"]
)
def test_the_scripts_own_names_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "s.yaml").write_text(json.dumps({"name": "x", "description": "x", "env": {name: "x"}}))
    with pytest.raises(RequestError, match=f"{name} is the script's own"):
        load_site(str(tmp_path / "s.yaml"))


def test_more_gpus_than_a_node_has_is_refused(machine: Machine) -> None:
    with pytest.raises(RequestError, match="a node of leonardo has 4: use -g 4"):
        resolve(DDP(gpus_per_node=8), load_site("leonardo"), machine)


def test_a_gpu_machine_runs_the_real_sizes_and_refuses_more_than_it_has(tmp_path: Path) -> None:
    gpus = Machine(gpus=2, cores=16, has_nsys=True, python="python", runs_dir=str(tmp_path))
    job = resolve(DDP(), load_site("local"), gpus)
    assert (job.device, job.profiler, job.experiment.gpus_per_node) == ("cuda", "nsys", 2)
    assert job.model is not None
    assert job.model.name == "llama-3.2-1b"
    with pytest.raises(RequestError, match="needs 4 GPUs and this machine has 2"):
        resolve(DDP(nodes=2), load_site("local"), gpus)


def test_every_cluster_asks_for_more_cpus_than_its_launcher_needs(machine: Machine) -> None:
    for name in SITES:
        site = load_site(name)
        if not backend_of(site).RUNS_HERE:
            job = resolve(DDP(), site, machine)
            assert (job.cpus_per_task or 1) >= 2 * (job.experiment.gpus_per_node or 1), name


def test_without_a_promise_of_nsys_the_default_is_torch_and_says_so(machine: Machine) -> None:
    bare, leonardo = load_site("slurm"), load_site("leonardo")
    job = resolve(DDP(), bare, machine)
    assert job.profiler == "torch"
    assert any("neither this machine nor the site brings nsys" in w for w in warnings_of(job, {}))
    for asked, site, here in [
        (DDP(), leonardo, machine),
        (DDP(), bare, machine._replace(has_nsys=True)),
        (DDP(profiler="nsys"), bare, machine),
    ]:
        job = resolve(asked, site, here)
        assert job.profiler == "nsys"
        assert warnings_of(job, {}) == []


def test_more_nodes_than_the_queue_lets_run_are_warned_of(machine: Machine) -> None:
    leonardo = load_site("leonardo")
    found = warnings_of(resolve(DDP(nodes=4), leonardo, machine), {})
    assert [w for w in found if "-n 4 is more nodes than boost_qos_dbg lets run (2)" in w]
    assert warnings_of(resolve(DDP(nodes=4), override(leonardo, {"qos": "normal"}), machine), {}) == []
    assert warnings_of(resolve(DDP(nodes=2), leonardo, machine), {}) == []


@pytest.mark.parametrize(
    ("words", "warned"),
    [
        ([], True),
        (["-p", "boost_usr_prod"], True),  # as the site file says already
        (["-p", "lrd_all_serial"], True),  # the QOS stays, and the limit is its own
        (["-q", "boost_qos_dbg"], True),
        (["-q", "normal"], False),
    ],
)
def test_the_limit_stays_as_long_as_the_queue_that_sets_it(
    harness: Harness, words: list[str], warned: bool
) -> None:
    done = harness("-n", "4", "-e", "1", "--site", "leonardo", *words, "--dry-run")
    assert ("more nodes than boost_qos_dbg lets run (2)" in done.stderr) == warned, done.stderr


def test_without_a_qos_the_limit_is_the_partitions() -> None:
    site = load_site("leonardo").model_copy(update={"qos": None})
    assert override(site, {"partition": "boost_usr_prod"}).max_nodes == 2
    assert override(site, {"partition": "other"}).max_nodes is None
    assert override(site, {"qos": "boost_qos_bprod"}).max_nodes is None


def test_what_sbatch_would_read_elsewhere_is_said(machine: Machine) -> None:
    job = resolve(DDP(), load_site("leonardo"), machine)
    assert any("SBATCH_ACCOUNT=mine is not used" in w for w in warnings_of(job, {"SBATCH_ACCOUNT": "mine"}))
    assert warnings_of(job, {"SBATCH_PARTITION": "boost_usr_prod", "SBATCH_RESERVATION": "x"}) == []


def test_a_machine_without_gpu_runs_the_tiny_twin(machine: Machine) -> None:
    job = resolve(DDP(), load_site("local"), machine)
    assert (job.device, job.profiler, job.experiment.gpus_per_node) == ("cpu", "torch", 2)
    assert job.model is not None
    assert job.model.name == "tiny-llama"


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (Megatron(tp=1, pp=3, gpus_per_node=3), "does not divide the 32 layers of mistral-7b"),
        (Megatron(tp=1, pp=4, vpp=3, gpus_per_node=4), "--pp 4 × --vpp 3 = 12 does not divide the 32 layers"),
        (Megatron(tp=3, pp=1, gpus_per_node=3, seq_length=3072), "does not divide the 32 attention heads"),
        (Megatron(tp=1, ep=3, gpus_per_node=3, model="mixtral-8x7b"), "--ep 3 does not divide the 8 experts"),
        (Megatron(tp=1, ep=2, gpus_per_node=2), "needs a mixture-of-experts model, and mistral-7b is dense"),
        (Megatron(tp=4, gpus_per_node=4, seq_length=4095), "--seq-length 4095 is not a multiple of 4"),
        (
            Megatron(tp=1, pp=2, vpp=2, gpus_per_node=2, micro_batch_size=1, global_batch_size=3),
            "needs a multiple of --pp 2 micro-batches per iteration and has 3",
        ),
    ],
)
def test_what_the_model_does_not_allow_is_named(machine: Machine, asked: Megatron, sentence: str) -> None:
    site = load_site("slurm").model_copy(update={"gpus": load_site("aws-p5").gpus})
    with pytest.raises(RequestError, match=re.escape(sentence)):
        resolve(asked, site, machine)


@pytest.mark.parametrize(
    ("asked", "ranks"),
    [
        (Megatron(), 2),
        (Megatron(tp=4), 4),
        (Megatron(nodes=2, tp=4, pp=2), 4),
        (Megatron(tp=1, pp=2), 2),
        (Megatron(pp=3), 3),
    ],
)
def test_a_laptop_starts_as_many_processes_as_the_parallelism_needs(
    machine: Machine, asked: Megatron, ranks: int
) -> None:
    model = "tiny-mistral-deep"  # 24 layers
    job = resolve(asked.model_copy(update={"model": model}), load_site("local"), machine)
    assert job.experiment.gpus_per_node == ranks


def test_tensor_parallelism_across_nodes_is_warned_of(machine: Machine) -> None:
    job = resolve(Megatron(nodes=2, tp=8), load_site("leonardo"), machine)
    assert any("cross the slow network" in w for w in warnings_of(job, {}))
    assert any("CUDA_LAUNCH_BLOCKING=1" in w for w in warnings_of(job, {"CUDA_LAUNCH_BLOCKING": "1"}))
    assert warnings_of(resolve(Megatron(nodes=2, tp=4, pp=2), load_site("leonardo"), machine), {}) == []
