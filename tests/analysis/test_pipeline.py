"""A pipeline's bubble is what its schedule leaves idle; waiting for a neighbour is bubble, not work."""

from __future__ import annotations

import pytest

from harness.analysis.metrics import metrics_by_name
from harness.analysis.summary import PipelineStage, Summary
from harness.explain.findings import reason_of
from harness.replay.attribute.diagnosis import NOTICEABLE, by_share
from harness.report.tables.terminal import render
from harness.theory.flops import expected_bubble
from harness.traces.trace import Activity
from tests.analysis.measuring import a_rank, summary_of
from tests.synthetic.columns import Made

UNIT = 1000  # one forward; a backward is two
SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


def one_f_one_b(stage: int, stages: int, microbatches: int) -> list[tuple[str, int]]:
    """Non-interleaved 1F1B: the order in which a stage runs its micro-batches."""
    ahead = min(stages - 1 - stage, microbatches)
    order = [("forward", m) for m in range(ahead)]
    for m in range(microbatches - ahead):
        order += [("forward", ahead + m), ("backward", m)]
    return order + [("backward", m) for m in range(microbatches - ahead, microbatches)]


def schedule(stages: int, microbatches: int) -> dict[tuple[int, str, int], tuple[int, int]]:
    """When each stage runs each micro-batch, as early as its neighbours and its own order allow."""
    length = {"forward": UNIT, "backward": 2 * UNIT}
    done: dict[tuple[int, str, int], tuple[int, int]] = {}
    queues = {s: one_f_one_b(s, stages, microbatches) for s in range(stages)}
    free = dict.fromkeys(range(stages), 0)
    while any(queues.values()):
        for s in range(stages):
            while queues[s]:
                way, m = queues[s][0]
                before = (s - 1, way, m) if way == "forward" else (s + 1, way, m)
                if 0 <= before[0] < stages and before not in done:
                    break
                start = max(free[s], done.get(before, (0, 0))[1])
                done[s, way, m] = (start, start + length[way])
                free[s] = start + length[way]
                queues[s].pop(0)
    return done


def cpu_rank(stage: int, stages: int, microbatches: int, iterations: int = 3) -> Made:
    """A CPU trace of one stage: it waits in recv ranges for messages of its neighbours."""
    made = a_rank(stage, stages)
    done = schedule(stages, microbatches)
    period = max(end for _, end in done.values()) + 500
    for i in range(iterations):
        base, at = i * period, i * period
        made.range(base, base + period, f"iteration_{i}")
        for way, m in one_f_one_b(stage, stages, microbatches):
            start, end = (base + t for t in done[stage, way, m])
            if start > at:
                made.range(at, start, f"recv {way} mb{m}")
            made.range(start, end, f"{way} mb{m} stage{stage}")
            made.event(start + 10, end - 10, "aten::mm", activity=Activity.CPU_OP)
            at = end
    return made


def gpu_rank(stage: int, stages: int, microbatches: int, lag: int, iterations: int = 3) -> Made:
    """A GPU trace of one stage; its device runs `lag` nanoseconds after the marks of its host."""
    made = a_rank(stage, stages)
    done = schedule(stages, microbatches)
    period = max(end for _, end in done.values()) + 500
    for i in range(iterations):
        made.range(i * period, (i + 1) * period, f"iteration_{i}")
        for way, m in one_f_one_b(stage, stages, microbatches):
            start, end = (i * period + t for t in done[stage, way, m])
            made.range(start, start + 100, f"{way} mb{m} stage{stage}")
            made.event(start + lag, end + lag, launch_ns=start)
    return made


def with_messages(made: Made, stage: int, stages: int, microbatches: int, iterations: int = 3) -> Made:
    """The rank with gloo's spans of its receives, and of an all-reduce of all stages once the last backward ended."""
    for row in [r for r in made.ranges if made.names[r["name"]].startswith("recv")]:
        made.event(row["start_ns"], row["end_ns"], "gloo:recv", activity=Activity.CPU_COLLECTIVE)
    done = schedule(stages, microbatches)
    own = max(end for (s, _, _), (_, end) in done.items() if s == stage)
    last = max(end for _, end in done.values())
    for i in range(iterations):
        begin = i * (last + 500)
        made.event(begin + own, begin + last + 100, "gloo:all_reduce", activity=Activity.CPU_COLLECTIVE)
    return made


def cpu_job(stages: int, microbatches: int) -> Summary:
    return summary_of(*(cpu_rank(s, stages, microbatches) for s in reversed(range(stages))))


def stages_of(*ranks: Made) -> list[PipelineStage]:
    found = summary_of(*ranks).pipeline
    assert found is not None
    return found.per_stage


def lost_in(summary: Summary) -> dict[str, float]:
    return {found.cause: found.share for found in by_share(summary)}


@pytest.mark.parametrize(("stages", "microbatches"), [(2, 1), (2, 2), (2, 4), (4, 2), (4, 8)])
def test_an_ideal_schedule_shows_the_bubble_that_theory_predicts_and_its_own_parts(
    stages: int, microbatches: int
) -> None:
    found, done = cpu_job(stages, microbatches).pipeline, schedule(stages, microbatches)
    assert found is not None
    assert (found.stages, found.microbatches, found.virtual_stages) == (stages, microbatches, 1)
    assert found.expected_bubble_fraction == expected_bubble(stages, microbatches)
    assert found.mean_bubble_fraction == pytest.approx(found.expected_bubble_fraction, abs=1e-9)
    for s in found.per_stage:
        own = [times for (stage, _, _), times in done.items() if stage == s.stage]
        whole = max(end for _, end in own) - min(start for start, _ in own)
        assert s.warmup_ns + s.steady_ns + s.cooldown_ns == 3 * whole
        assert min(s.warmup_ns, s.steady_ns, s.cooldown_ns) >= 0
    assert [s.stage for s in found.per_stage] == list(range(stages))
    assert found.per_stage[-1].warmup_ns == 3 * UNIT, "its own forward"
    assert found.per_stage[0].warmup_ns > 3 * UNIT or microbatches == 1


def test_waiting_in_a_receive_is_bubble_even_where_it_lies_inside_a_forward() -> None:
    zero, one = cpu_rank(0, 2, 2, 1), cpu_rank(1, 2, 2, 1)
    before = stages_of(zero, one)[0].schedule_busy_ns
    assert before - stages_of(cpu_rank(0, 2, 2, 1).range(100, 300, "recv inside"), one)[0].schedule_busy_ns == 200


@pytest.mark.parametrize(("stages", "microbatches"), [(2, 2), (2, 4), (2, 8), (4, 4)])
def test_messages_that_wait_for_another_stage_are_counted_as_bubble_alone(stages: int, microbatches: int) -> None:
    """The receives, and the end of the first stage's backward for which the last stage waits in an all-reduce."""
    ranks = [with_messages(cpu_rank(s, stages, microbatches), s, stages, microbatches) for s in range(stages)]
    found = summary_of(*ranks)
    shares = lost_in(found)
    window = sum(d.window_ns for d in found.devices)
    exposed = sum(d.exposed_communication_ns for d in found.devices)
    assert exposed > 0.9 * sum(s.schedule_ns - s.schedule_busy_ns for s in found.pipeline.per_stage)
    outside = stages * 3 * 100  # the part of the all-reduces after the end of the schedules
    assert shares.get("communication", 0) == pytest.approx(outside / window, abs=NOTICEABLE)
    assert shares["bubble"] + outside / window == pytest.approx(
        (exposed + sum(c.duration_ns for c in found.idle_causes if c.cause == "communication")) / window
    )


def test_on_a_gpu_a_kernel_that_waits_for_another_stage_is_counted_as_bubble_alone() -> None:
    ranks, done = [gpu_rank(s, 2, 2, 0) for s in range(2)], schedule(2, 2)
    for i in range(3):
        begin = i * (max(end for _, end in done.values()) + 500)
        before = begin + done[0, "backward", 0][0]
        ranks[0].event(begin + done[0, "forward", 1][1], before, SEND_RECV, launch_ns=begin)
    found = summary_of(*ranks)
    assert found.pipeline is not None
    waited = found.pipeline.per_stage[0].bubble_communication_ns
    assert waited == sum(d.exposed_communication_ns for d in found.devices) > 0
    assert "communication" not in lost_in(found)


def cut(made: Made, ns: int, name: str) -> int:
    """Puts communication in the place of the end of each operator; returns how many there are."""
    work = [e for e in made.events if made.names[e["name"]] == "aten::mm"]
    for row in work:
        row["end_ns"] -= ns
        made.event(row["end_ns"], row["end_ns"] + ns, name, activity=Activity.CPU_COLLECTIVE)
    return len(work)


def test_a_message_on_its_way_beside_the_work_is_no_bubble_and_no_communication_to_avoid() -> None:
    """Under the interleaved schedule messages travel while a stage works, also while only its interpreter does."""
    ranks = [cpu_rank(s, 2, 2) for s in range(2)]
    before = lost_in(summary_of(*ranks))
    count = cut(ranks[0], 300, "gloo:recv")
    found = summary_of(*ranks)
    assert found.pipeline is not None
    assert sum(d.exposed_communication_ns for d in found.devices) == 300 * count
    assert found.pipeline.per_stage[0].work_send_recv_ns == 300 * count
    for what in ("bubble", "communication"):
        assert lost_in(found).get(what, 0) == pytest.approx(before.get(what, 0))


def test_collectives_inside_a_stages_work_stay_communication() -> None:
    ranks = [cpu_rank(s, 2, 2) for s in range(2)]
    count = sum(cut(made, 500, "gloo:all_reduce") for made in ranks)
    found = summary_of(*ranks)
    window = sum(d.window_ns for d in found.devices)
    assert lost_in(found)["communication"] == pytest.approx(count * 500 / window, abs=1e-3)


@pytest.mark.parametrize("ranks", [[0, 3], [0, 1], [1, 2, 3], [0, 1, 2]])
def test_the_depth_of_a_pipeline_is_not_made_up_where_a_stage_is_missing(ranks: list[int]) -> None:
    found = summary_of(*(cpu_rank(s, 4, 8) for s in ranks))
    assert found.pipeline is not None
    assert (found.pipeline.stages, found.pipeline.expected_bubble_fraction) == (None, None)
    (why,) = [w.reason for w in found.quality.withheld if w.field.startswith("pipeline.")]
    assert f"only the ranks of stage {', '.join(map(str, ranks))} were read" in why
    advice = next(reason_of(found, a) for a in by_share(found) if a.cause == "bubble")
    assert "stages may be missing" in advice.why and "fewer layers" not in advice.changes[0].text
    assert "stages may be missing, 8 micro-batches" in render(found)
    assert not [name for name in metrics_by_name(found) if name == "expected_bubble"]


def test_a_replica_that_is_missing_hides_no_stage_and_one_stage_is_no_pipeline() -> None:
    made = [cpu_rank(stage, 2, 4) for stage in (0, 1, 0)]
    for rank, one in enumerate(made):
        one.identity |= {"rank": rank, "world_size": 4, "path": f"rank{rank}.json"}
    found = summary_of(*made).pipeline
    assert found is not None and found.stages == 2
    assert summary_of(cpu_rank(0, 1, 4)).pipeline is None


def marked(stage: int, world: int = 2) -> Made:
    """A GPU's stage with a mark for each of its two passes."""
    made = a_rank(stage, world).range(0, 10_000, "iteration_0")
    return made.range(0, 100, f"forward mb0 stage{stage}").range(200, 300, f"backward mb0 stage{stage}")


def alone(stage: int) -> Made:
    """Its kernels, and a message between them."""
    made = marked(stage).event(1000 + 1000 * stage, 2000 + 1000 * stage, launch_ns=10)
    made.event(5000 - 1000 * stage, 6000 - 1000 * stage, launch_ns=210)
    return made.collective(2500 + 500 * stage, 2600 + 500 * stage, "send_recv", size=64, members=2)


def with_tensor_parallelism(stage: int) -> Made:
    """The collectives and copies of a stage are its work, its messages are not."""
    made = marked(stage, 4).event(1000, 2000, launch_ns=10).event(5000, 6000, launch_ns=210)
    made.collective(1900, 2400, "all_reduce", size=64, members=2, group="tp").copy(2400, 2500, 64)
    return made.event(2500, 3000, SEND_RECV)


@pytest.mark.parametrize(
    ("ranks", "busy_ns", "send_recv_ns"),
    [
        ([alone(0), alone(1)], 2000, 100),
        ([with_tensor_parallelism(0), with_tensor_parallelism(1)], 1000 + 400 + 100 + 1000, 500),
    ],
)
def test_on_a_gpu_stages_are_busy_with_kernels_and_send_recv_kernels_are_bubble(
    ranks: list[Made], busy_ns: int, send_recv_ns: int
) -> None:
    found = [(s.schedule_busy_ns, s.schedule_ns, s.send_recv_ns) for s in stages_of(*ranks)]
    assert found == [(busy_ns, 5000, send_recv_ns)] * 2


@pytest.mark.parametrize("lag", [0, UNIT, 5 * UNIT])
def test_a_device_behind_its_host_leaves_the_bubble_as_it_is(lag: int) -> None:
    found = summary_of(*(gpu_rank(s, 2, 4, lag) for s in range(2))).pipeline
    assert found is not None and found.mean_bubble_fraction == pytest.approx(0.2)
    assert [s.schedule_busy_ns for s in found.per_stage] == [3 * 4 * 3 * UNIT] * 2
