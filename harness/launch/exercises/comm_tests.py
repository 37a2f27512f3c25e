"""The programs of exercise 0: the node's topology, the collectives or one other test, and a verdict over all nodes."""

from __future__ import annotations

from harness.experiment.comm_tests import CommTests
from harness.experiment.options import options_of
from harness.launch.argv import NODE, RUN_DIR, Word, join
from harness.launch.exercises.base import CommandPlace, ExercisePlan, Launch, LaunchCommand, script_path, torchrun


class CommTestsLaunch(Launch[CommTests]):
    """No training and no profiler: the benchmark measures its own times."""

    def plan(self, asked: CommTests, place: CommandPlace) -> ExercisePlan:
        measured = asked.only or "collectives"
        verdict = _verdict(asked, place)
        return ExercisePlan(
            commands=[
                *_topology(asked, place),
                LaunchCommand(_TITLES[measured], _measurement(asked, place, measured), name="TEST"),
            ],
            after=[LaunchCommand("verdict over all nodes", [place.launcher_python, *verdict], contained=False)],
            expects=[f"comm/{measured}.json"],
        )


_TITLES = {"collectives": "collective benchmark", "overlap": "overlap test", "health": "health check"}


def _topology(asked: CommTests, place: CommandPlace) -> list[LaunchCommand]:
    """Outside of the container: ibstat is the node's."""
    if asked.only == "overlap":
        return []
    quiet = ["--quiet"] if asked.only else []
    words = [*_part(asked, "topology"), "--node", NODE, *_port_rate(place), *quiet]
    return [LaunchCommand("node topology", [place.launcher_python, *words], contained=False, name="TOPOLOGY")]


def _verdict(asked: CommTests, place: CommandPlace) -> list[Word]:
    part = [*_part(asked, "answer"), asked.only] if asked.only else _part(asked, "verdict")
    return part if asked.only == "overlap" else [*part, "--nodes", str(asked.nodes), *_port_rate(place)]


def _measurement(asked: CommTests, place: CommandPlace, name: str) -> list[Word]:
    words = [*torchrun(asked, place), *_part(asked, name), *(["--device", "cpu"] if place.device == "cpu" else [])]
    for option in options_of(CommTests):
        words += option.arguments(getattr(asked, option.field))
    if asked.only == "overlap":
        return words
    network = place.site.network
    intra = _given("--link-gbps-intra", network.link_intra_gbps)
    return [*words, *intra, *_given("--link-gbps-inter", network.link_inter_gbps)]


def _part(asked: CommTests, name: str) -> list[Word]:
    return [script_path(asked, "comm_tests.py"), name, "--run-dir", join(RUN_DIR)]


def _port_rate(place: CommandPlace) -> list[Word]:
    return _given("--expected-rate-gbps", place.site.network.expected_gbps)


def _given(flag: str, value: float | None) -> list[Word]:
    return [flag, str(value)] if value else []


LAUNCH = CommTestsLaunch()
