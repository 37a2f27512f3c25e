"""The programs of exercise 0: the node's topology, the collectives, and a verdict over all nodes."""

from __future__ import annotations

from harness.experiment.comm_tests import CommTests
from harness.launch.argv import NODE, RUN_DIR, Word, join
from harness.launch.exercises.base import Command, Launch, Place, Plan, script_path, torchrun


class CommTestsLaunch(Launch[CommTests]):
    """No training and no profiler: the benchmark measures its own times."""

    def plan(self, asked: CommTests, place: Place) -> Plan:
        rate = _given("--expected-rate-gbps", place.site.network.expected_gbps)
        topology = [*_part(asked, "topology"), "--node", join(NODE), *rate]
        verdict = [*_part(asked, "verdict"), "--nodes", str(asked.nodes), *rate]
        return Plan(
            commands=[
                # Outside of the container: ibstat is the node's.
                Command("node topology", [place.launcher_python, *topology], contained=False),
                Command("collective benchmark", _collectives(asked, place)),
            ],
            after=[Command("verdict over all nodes", [place.launcher_python, *verdict], contained=False)],
            expects=["comm/collectives.json"],
        )


def _collectives(asked: CommTests, place: Place) -> list[Word]:
    network = place.site.network
    return [
        *torchrun(asked, place),
        *_part(asked, "collectives"),
        *(["--device", "cpu"] if place.device == "cpu" else []),
        *_given("--max-bytes", asked.max_bytes),
        *_given("--link-gbps-intra", network.link_intra_gbps),
        *_given("--link-gbps-inter", network.link_inter_gbps),
    ]


def _part(asked: CommTests, name: str) -> list[Word]:
    return [script_path(asked, "comm_tests.py"), name, "--run-dir", join(RUN_DIR)]


def _given(flag: str, value: float | None) -> list[Word]:
    return [flag, str(value)] if value else []


LAUNCH = CommTestsLaunch()
