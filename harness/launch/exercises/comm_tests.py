"""The programs of exercise 0: the node's topology, the collectives or a health check, and a verdict over all nodes."""

from __future__ import annotations

from harness.experiment.comm_tests import CommTests
from harness.experiment.options import options_of
from harness.launch.argv import NODE, RUN_DIR, Word, join
from harness.launch.exercises.base import CommandPlace, ExercisePlan, Launch, LaunchCommand, script_path, torchrun

_TITLES = {"collectives": "collective benchmark", "health": "health check"}


class CommTestsLaunch(Launch[CommTests]):
    """No training and no profiler: the benchmark measures its own times."""

    def plan(self, experiment: CommTests, place: CommandPlace) -> ExercisePlan:
        measured = experiment.only or "collectives"
        verdict = _verdict(experiment, place)
        return ExercisePlan(
            commands=[
                _topology(experiment, place),
                LaunchCommand(_TITLES[measured], _measurement(experiment, place, measured), name="TEST"),
            ],
            after=[LaunchCommand("verdict over all nodes", [place.launcher_python, *verdict], contained=False)],
            expects=[f"comm/{measured}.json"],
        )


def _topology(experiment: CommTests, place: CommandPlace) -> LaunchCommand:
    """Outside of the container: ibstat is the node's."""
    quiet = ["--quiet"] if experiment.only else []
    words = [*_part(experiment, "topology"), "--node", NODE, *_port_rate(place), *quiet]
    return LaunchCommand("node topology", [place.launcher_python, *words], contained=False, name="TOPOLOGY")


def _verdict(experiment: CommTests, place: CommandPlace) -> list[Word]:
    part = _part(experiment, "answer" if experiment.only else "verdict")
    return [*part, "--nodes", str(experiment.nodes), *_port_rate(place)]


def _measurement(experiment: CommTests, place: CommandPlace, name: str) -> list[Word]:
    words = [
        *torchrun(experiment, place),
        *_part(experiment, name),
        *(["--device", "cpu"] if place.device == "cpu" else []),
    ]
    for option in options_of(CommTests):
        words += option.arguments(getattr(experiment, option.field))
    network = place.site.network
    intra = _given("--link-gbps-intra", network.link_intra_gbps)
    return [*words, *intra, *_given("--link-gbps-inter", network.link_inter_gbps)]


def _part(experiment: CommTests, name: str) -> list[Word]:
    return [script_path(experiment, "comm_tests.py"), name, "--run-dir", join(RUN_DIR)]


def _port_rate(place: CommandPlace) -> list[Word]:
    return _given("--expected-rate-gbps", place.site.network.expected_gbps)


def _given(flag: str, value: float | None) -> list[Word]:
    return [flag, str(value)] if value else []


LAUNCH = CommTestsLaunch()
