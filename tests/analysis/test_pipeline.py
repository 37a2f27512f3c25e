"""A pipeline's bubble is what its schedule leaves idle; waiting for a neighbour is bubble, not work."""

from __future__ import annotations

import pytest

from harness.analysis.job.summarise import summarise_job
from harness.analysis.metrics import metrics_by_name
from harness.analysis.process.kinds import load_rules
from harness.analysis.summary import Summary, Window
from harness.explain.findings import reason_of
from harness.replay.attribute.diagnosis import NOTICEABLE, by_share
from harness.report.tables.terminal import render
from harness.theory.flops import expected_bubble
from harness.traces.trace import Activity
from tests.analysis.measuring import measure_trace
from tests.synthetic.columns import Made

RULES = load_rules()
UNIT = 1000  # one forward; a backward is two


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
    made = Made(rank=stage, world_size=stages, path=f"rank{stage}.json", host="n", clock="unix")
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
    made = Made(rank=stage, world_size=stages, path=f"rank{stage}.json", host="n", clock="unix")
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


def job(ranks: list[Made]) -> Summary:
    return summarise_job([part for made in ranks for part in measure_trace(made.trace(), Window.STEPS, RULES)])


@pytest.mark.parametrize(("stages", "microbatches"), [(2, 2), (2, 4), (2, 8), (4, 8)])
def test_an_ideal_schedule_shows_the_bubble_that_theory_predicts(stages: int, microbatches: int) -> None:
    found = job([cpu_rank(s, stages, microbatches) for s in range(stages)]).pipeline
    assert found is not None
    assert (found.stages, found.microbatches, found.virtual_stages) == (stages, microbatches, 1)
    assert found.expected_bubble_fraction == expected_bubble(stages, microbatches)
    assert found.mean_bubble_fraction == pytest.approx(found.expected_bubble_fraction, abs=1e-9)


def test_the_last_stage_has_no_warm_up_but_its_own_forward_and_the_first_warms_up_longest() -> None:
    stages = job([cpu_rank(s, 4, 8) for s in range(4)]).pipeline.per_stage
    assert [s.stage for s in stages] == [0, 1, 2, 3]
    assert stages[3].warmup_ns == 3 * UNIT
    assert stages[0].warmup_ns > stages[3].warmup_ns
    for s in stages:
        assert s.warmup_ns + s.steady_ns + s.cooldown_ns <= s.schedule_ns


def test_waiting_in_a_receive_is_bubble_even_where_it_lies_inside_a_forward() -> None:
    zero, one = cpu_rank(0, 2, 2, 1), cpu_rank(1, 2, 2, 1)
    before = job([zero, one]).pipeline.per_stage[0].schedule_busy_ns
    zero = cpu_rank(0, 2, 2, 1)
    zero.range(100, 300, "recv inside")
    after = job([zero, one]).pipeline.per_stage[0].schedule_busy_ns
    assert before - after == 200


def test_a_message_on_its_way_beside_the_work_is_no_bubble() -> None:
    ranks = [cpu_rank(0, 2, 2), cpu_rank(1, 2, 2)]
    before = job(ranks).pipeline.mean_bubble_fraction
    ranks[0].collective(0, 500, "recv", size=64, members=2)
    ranks[0].events[-1]["activity"] = Activity.CPU_COLLECTIVE
    assert job(ranks).pipeline.mean_bubble_fraction == before


@pytest.mark.parametrize(("stages", "microbatches"), [(2, 2), (2, 4), (2, 8), (4, 4)])
def test_messages_that_wait_for_another_stage_are_counted_as_bubble_alone(stages: int, microbatches: int) -> None:
    """The receives, and the end of the first stage's backward for which the last stage waits in an all-reduce."""
    ranks = [with_messages(cpu_rank(s, stages, microbatches), s, stages, microbatches) for s in range(stages)]
    found = job(ranks)
    shares = {a.cause: a.share for a in by_share(found)}
    window = sum(d.window_ns for d in found.devices)
    exposed = sum(d.exposed_communication_ns for d in found.devices)
    assert exposed > 0.9 * sum(s.schedule_ns - s.schedule_busy_ns for s in found.pipeline.per_stage)
    outside = stages * 3 * 100  # the part of the all-reduces after the end of the schedules
    assert shares.get("communication", 0) == pytest.approx(outside / window, abs=NOTICEABLE)
    assert shares["bubble"] + outside / window == pytest.approx(
        (exposed + sum(c.duration_ns for c in found.idle_causes if c.cause == "communication")) / window
    )


def test_on_a_gpu_a_kernel_that_waits_for_another_stage_is_counted_as_bubble_alone() -> None:
    ranks = [gpu_rank(s, 2, 2, 0) for s in range(2)]
    done = schedule(2, 2)
    receive = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
    for i in range(3):
        begin = i * (max(end for _, end in done.values()) + 500)
        before = begin + done[0, "backward", 0][0]
        ranks[0].event(begin + done[0, "forward", 1][1], before, receive, launch_ns=begin)
    found = job(ranks)
    stage = found.pipeline.per_stage[0]
    assert stage.bubble_communication_ns == sum(d.exposed_communication_ns for d in found.devices) > 0
    assert not [a for a in by_share(found) if a.cause == "communication"]


def test_a_message_on_its_way_beside_the_work_is_no_communication_to_avoid() -> None:
    """Under the interleaved schedule messages travel while a stage works, also while only its interpreter does."""
    ranks = [cpu_rank(s, 2, 2) for s in range(2)]
    before = {a.cause: a.share for a in by_share(job(ranks))}
    work = [e for e in ranks[0].events if ranks[0].names[e["name"]] == "aten::mm"]
    for row in work:
        row["end_ns"] -= 300
        ranks[0].event(row["end_ns"], row["end_ns"] + 300, "gloo:recv", activity=Activity.CPU_COLLECTIVE)
    found = job(ranks)
    assert sum(d.exposed_communication_ns for d in found.devices) == 300 * len(work)
    assert found.pipeline.per_stage[0].work_send_recv_ns == 300 * len(work)
    after = {a.cause: a.share for a in by_share(found)}
    for what in ("bubble", "communication"):
        assert after.get(what, 0) == pytest.approx(before.get(what, 0))


def test_collectives_inside_a_stages_work_stay_communication() -> None:
    ranks = [cpu_rank(s, 2, 2) for s in range(2)]
    for made in ranks:
        for row in [e for e in made.events if made.names[e["name"]] == "aten::mm"]:
            row["end_ns"] -= 500
            made.event(row["end_ns"], row["end_ns"] + 500, "gloo:all_reduce", activity=Activity.CPU_COLLECTIVE)
    found = job(ranks)
    (part,) = [a for a in by_share(found) if a.cause == "communication"]
    window = sum(d.window_ns for d in found.devices)
    assert part.share == pytest.approx(2 * 3 * 4 * 500 / window, abs=1e-3)


def read(ranks: list[int], microbatches: int, stages: int) -> Summary:
    """A job with one rank per stage; only some ranks were read."""
    made = [cpu_rank(s, stages, microbatches) for s in ranks]
    parts = [part for m in made for part in measure_trace(m.trace(), Window.STEPS, RULES)]
    return summarise_job(parts)


@pytest.mark.parametrize("ranks", [[0, 3], [0, 1], [1, 2, 3], [0, 1, 2]])
def test_the_depth_of_a_pipeline_is_not_made_up_where_a_stage_is_missing(ranks: list[int]) -> None:
    found = read(ranks, 8, 4)
    assert found.pipeline is not None
    assert (found.pipeline.stages, found.pipeline.expected_bubble_fraction) == (None, None)
    (why,) = [w.reason for w in found.quality.withheld if w.field.startswith("pipeline.")]
    assert f"only the ranks of stage {', '.join(map(str, ranks))} were read" in why
    advice = next(reason_of(found, a) for a in by_share(found) if a.cause == "bubble")
    assert "stages may be missing" in advice.why and "fewer layers" not in advice.changes[0].text
    assert "stages may be missing, 8 micro-batches" in render(found)
    assert not [name for name in metrics_by_name(found) if name == "expected_bubble"]


def test_a_replica_that_is_missing_hides_no_stage() -> None:
    ranks = [(s, s) for s in range(2)] + [(2, 0)]
    parts = []
    for rank, stage in ranks:
        made = cpu_rank(stage, 2, 4)
        made.identity |= {"rank": rank, "world_size": 4, "path": f"rank{rank}.json"}
        parts += measure_trace(made.trace(), Window.STEPS, RULES)
    assert summarise_job(parts).pipeline.stages == 2


def test_one_stage_is_no_pipeline() -> None:
    assert job([cpu_rank(0, 1, 4)]).pipeline is None


def test_on_a_gpu_stages_are_busy_with_kernels_and_send_recv_kernels_are_bubble() -> None:
    ranks = []
    for stage in range(2):
        made = Made(rank=stage, world_size=2, path=f"r{stage}", host="n", clock="unix")
        made.range(0, 10_000, "iteration_0")
        made.range(0, 100, f"forward mb0 stage{stage}").range(200, 300, f"backward mb0 stage{stage}")
        made.event(1000 + 1000 * stage, 2000 + 1000 * stage, launch_ns=10)
        made.event(5000 - 1000 * stage, 6000 - 1000 * stage, launch_ns=210)
        made.collective(2500 + 500 * stage, 2600 + 500 * stage, "send_recv", size=64, members=2)
        ranks.append(made)
    found = job(ranks).pipeline
    assert [s.schedule_busy_ns for s in found.per_stage] == [2000, 2000]
    assert [s.schedule_ns for s in found.per_stage] == [5000, 5000]
    assert [s.send_recv_ns for s in found.per_stage] == [100, 100]


@pytest.mark.parametrize("lag", [0, UNIT, 5 * UNIT])
def test_a_device_behind_its_host_leaves_the_bubble_as_it_is(lag: int) -> None:
    found = job([gpu_rank(s, 2, 4, lag) for s in range(2)]).pipeline
    assert found is not None
    assert found.mean_bubble_fraction == pytest.approx(0.2)
    assert [s.schedule_busy_ns for s in found.per_stage] == [3 * 4 * 3 * UNIT] * 2


def test_on_a_gpu_the_collectives_and_copies_of_a_stage_are_its_work() -> None:
    ranks = []
    for stage in range(2):
        made = Made(rank=stage, world_size=4, path=f"r{stage}", host="n", clock="unix")
        made.range(0, 10_000, "iteration_0")
        made.range(0, 100, f"forward mb0 stage{stage}").range(200, 300, f"backward mb0 stage{stage}")
        made.event(1000, 2000, launch_ns=10).event(5000, 6000, launch_ns=210)
        made.collective(1900, 2400, "all_reduce", size=64, members=2, group="tp")
        made.copy(2400, 2500, 64)
        made.event(2500, 3000, "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)")
        ranks.append(made)
    found = job(ranks).pipeline
    assert [s.schedule_busy_ns for s in found.per_stage] == [1000 + 400 + 100 + 1000] * 2
    assert [s.send_recv_ns for s in found.per_stage] == [500, 500]


@pytest.mark.parametrize(("stages", "microbatches"), [(2, 1), (2, 2), (4, 2), (4, 8)])
def test_warm_up_steady_and_cool_down_are_the_ranks_own_schedule(stages: int, microbatches: int) -> None:
    done = schedule(stages, microbatches)
    for s in job([cpu_rank(i, stages, microbatches) for i in range(stages)]).pipeline.per_stage:
        own = [times for (stage, _, _), times in done.items() if stage == s.stage]
        whole = max(end for _, end in own) - min(start for start, _ in own)
        assert s.warmup_ns + s.steady_ns + s.cooldown_ns == 3 * whole
        assert min(s.warmup_ns, s.steady_ns, s.cooldown_ns) >= 0


def test_interleaving_divides_the_bubble_by_its_virtual_stages() -> None:
    assert expected_bubble(4, 8, 2) == pytest.approx(3 / 19)
    assert expected_bubble(1, 8) == 0
