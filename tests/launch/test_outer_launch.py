"""Variables that another launch left in the shell make no rank of a training, and a launch names them."""

from __future__ import annotations

import json
from pathlib import Path

from harness.common.system.scrub_environment import scrub_environment
from harness.run import all_runs
from tests.launch.launch_shared import Harness

OUTER = {
    "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "NODE_RANK": "3", "GROUP_RANK": "1",
    "ROLE_RANK": "1", "CROSS_RANK": "1", "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_USE_AGENT_STORE": "True",
    "OMPI_COMM_WORLD_RANK": "1", "PMI_RANK": "1", "PMIX_NAMESPACE": "x", "MV2_COMM_WORLD_SIZE": "2",
    "PET_NNODES": "2", "PET_STANDALONE": "1", "SUBMITIT_LOCAL_GLOBALID": "1", "MASTER_ADDR": "10.255.255.1",
}  # fmt: skip
OF_SLURM = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_LOCALID": "1", "SLURM_NODEID": "1", "SLURM_JOB_ID": "77"}
SETTINGS = {"PET_MAX_RESTARTS": "0", "PMIX_MCA_gds": "hash", "OMPI_MCA_btl": "tcp", "TORCHELASTIC_LOG_LEVEL": "x"}
TELLS = "import json, os; print(json.dumps(dict(os.environ)))"


def test_what_a_launcher_tells_its_ranks_is_left_behind_and_settings_stay() -> None:
    environ = OUTER | SETTINGS
    (sentence,) = scrub_environment(environ)
    assert environ == SETTINGS
    assert sentence.startswith(", ".join(sorted(OUTER)) + " of your shell are not passed to the job: ")
    assert scrub_environment({"RANK": "0"})[0].startswith("RANK of your shell is not passed to the job: it is of an")


def test_a_run_here_gets_nothing_of_an_outer_launch(harness: Harness, tmp_path: Path) -> None:
    done = harness("run", "--no-profile", "--", "python3", "-c", TELLS, **OUTER, **OF_SLURM, **SETTINGS)
    (run,) = all_runs(tmp_path / "runs")
    got = json.loads(run.out.read_text())
    assert not [name for name in got if name in OUTER | OF_SLURM and name not in ("NODE_RANK", "MASTER_ADDR")]
    assert (got["NODE_RANK"], got["MASTER_ADDR"], got | SETTINGS) == ("0", "127.0.0.1", got)
    assert done.stderr.count("outer launch") == 1
