"""Planned starts and backfill: which gangs start before an earlier one that waits, and the time of its planned start."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from queuectl.domain.limits import Allowance, QuotaLimit
from queuectl.domain.plan import Admission, Plan, SlipCause
from queuectl.domain.quantity import GPU
from queuectl.domain.queues import (
    BackfillOrder,
    Cohort,
    QueueingStrategy,
    ReclaimWithinCohort,
    WithinClusterQueue,
)
from queuectl.domain.reasons import Code
from queuectl.domain.rules import Rules, UsageFairness
from queuectl.domain.snapshot import Admitted, Pending, Snapshot
from queuectl.domain.words import format_time
from queuectl.domain.workload import Duration, Workload
from queuectl.objects.files.plans import plan_document
from queuectl.planner import plan
from queuectl.planner.verify import PlanRule, verify
from tests.planner.backfill_clock import job, line, member
from tests.planner.build import NOW, gang, holding, node, placed, podset, queue, world
from tests.planner.splits import A, B, on, splitting

SCHEMA = json.loads((Path(__file__).parents[2] / "docs/reference/plan-schema.json").read_text())
PAST_USE = UsageFairness(user_label="user")
NODES = tuple(node(f"n{number}", gpu=1) for number in range(4))


def running(workload: Workload, *nodes: str, ends: float | None) -> Admitted:
    """On these nodes; ``ends`` seconds from now."""
    held = holding(workload, dict.fromkeys(nodes, 1))
    return replace(held, ends_at=None if ends is None else NOW + ends, end_enforced=True)


def starts(made: Plan) -> list[str]:
    return [admission.uid for admission in made.admitted]


def promises(made: Plan) -> dict[str, float]:
    """Seconds from now."""
    return {planned.uid: planned.start.at - NOW for planned in made.planned}


def why(made: Plan, uid: str) -> Code:
    return next(r.reasons[0].code for r in made.pending if r.uid == uid)


def half_full(*pending: Workload, planned_starts: int = 1, ends: float | None = 100.0) -> Snapshot:
    """Two of four nodes are in use; the first gang that waits needs all of them."""
    large = job("large", 4, 500)
    busy = running(job("busy", 2, None), "n0", "n1", ends=ends)
    return world(NODES, [large, *pending], [busy], line(planned_starts))


@pytest.mark.parametrize(
    ("later", "started"),
    [
        pytest.param([job("short", 1, 60, queued_at=1)], ["short"], id="ends before"),
        pytest.param([job("exact", 1, 100, queued_at=1)], ["exact"], id="ends at that time"),
        pytest.param([job("long", 1, 101, queued_at=1)], [], id="would still run"),
        pytest.param([job("open", 1, None, queued_at=1)], [], id="of unknown length"),
        pytest.param(
            [job("long", 1, 101, queued_at=1), job("short", 2, 60, queued_at=2)],
            ["short"],
            id="the next one that fits",
        ),
    ],
)
def test_a_later_gang_starts_if_the_first_keeps_its_time(
    later: list[Workload], started: list[str]
) -> None:
    made = plan(half_full(*later))
    assert starts(made) == started
    assert promises(made) == {"large": 100.0}


def test_the_reason_names_the_gang_that_would_wait_longer() -> None:
    made = plan(half_full(job("long", 1, 101, queued_at=1)))
    (reason,) = (r.reasons[0] for r in made.pending if r.uid == "long")
    assert reason.code is Code.WOULD_DELAY
    assert reason.details["behind"] == "team/large"
    assert reason.details["mostSeconds"] == 100.0


def test_without_known_ends_a_gang_has_no_planned_start() -> None:
    made = plan(half_full(job("long", 1, 101, queued_at=1), job("open", 1, None), ends=None))
    assert promises(made) == {}
    assert starts(made) == ["long"]
    assert why(made, "open") is Code.WOULD_DELAY


@pytest.mark.parametrize("seconds", [0.0, 1e-9])
def test_a_gang_that_is_expected_to_end_at_once_has_a_planned_start(seconds: float) -> None:
    """For example an evicted gang that has run for all of its expected time."""
    busy = running(job("busy", 4, None), "n0", "n1", "n2", "n3", ends=100.0)
    gangs = [job("first", 4, seconds), job("second", 4, seconds, queued_at=1)]
    snapshot = world(NODES, gangs, [busy], line(2))
    made = plan(snapshot)
    assert promises(made) == {"first": 100.0, "second": 101.0}
    assert not verify(snapshot, made)


def test_a_planned_gang_moves_to_other_nodes_for_a_later_one() -> None:
    """The first gang can use each of two racks; the later one fits only in the rack where it was planned."""
    nodes = [node(f"a{i}", "a", gpu=2) for i in range(2)] + [
        node(f"b{i}", "b", gpu=2) for i in range(2)
    ]
    small = [
        running(job(f"x{i}", 1, None), name, ends=100.0) for i, name in enumerate(("a0", "b0"))
    ]
    first = job("first", 4, 500, required="rack")
    later = job("later", 1, 5000, queued_at=1, gpu=2)
    made = plan(world(nodes, [first, later], small, line()))
    assert starts(made) == ["later"]
    assert promises(made) == {"first": 100.0}


def test_as_many_gangs_have_planned_starts_as_the_queue_permits() -> None:
    later = [job(f"next{number}", 4, 50, queued_at=number) for number in (1, 2, 3)]
    assert promises(plan(half_full(*later))) == {"large": 100.0}
    made = plan(half_full(*later, planned_starts=3))
    assert promises(made) == {"large": 100.0, "next1": 600.0, "next2": 650.0}


def test_the_shortest_candidate_is_first_with_that_backfill_order() -> None:
    slow, quick = job("slow", 2, 90, queued_at=1), job("quick", 2, 10, queued_at=2)
    snapshot = half_full(slow, quick)
    assert starts(plan(snapshot)) == ["slow"]
    queues = {"main": line(order=BackfillOrder.SHORTEST)}
    config = replace(snapshot.config, cluster_queues=queues)
    assert starts(plan(replace(snapshot, config=config))) == ["quick"]


@pytest.mark.parametrize(
    ("seconds", "started"),
    [pytest.param(60, ["later"], id="ends before"), pytest.param(101, [], id="would still run")],
)
def test_the_clusterqueues_of_a_cohort_are_one_line(seconds: float, started: list[str]) -> None:
    """The gang of another ClusterQueue passes the first gang of the Cohort by the same rule."""
    large = job("large", 4, 500)
    later = replace(job("later", 1, seconds, queued_at=1), queue="other")
    queues = [
        replace(
            queue(name), cohort="all", strategy=QueueingStrategy.BACKFILL, backfill=line().backfill
        )
        for name in ("main", "other")
    ]
    busy = running(job("busy", 2, None), "n0", "n1", ends=100.0)
    snapshot = world(NODES, [large, later], [busy], *queues)
    cohorts = {"all": Cohort("all", backfill=line().backfill)}
    made = plan(replace(snapshot, config=replace(snapshot.config, cohorts=cohorts)))
    assert starts(made) == started
    assert promises(made) == {"large": 100.0}


@pytest.mark.parametrize(
    ("seconds", "started"),
    [pytest.param(60, ["later"], id="ends before"), pytest.param(101, [], id="would still run")],
)
def test_a_gang_that_is_split_over_flavors_keeps_the_time_of_the_first_one(
    seconds: float, started: list[str]
) -> None:
    fleet = [on("a", "n0", "b/r"), on("b", "n1", "b/s", gpu=3)]
    large = job("large", 4, 500, required="rack")
    later = job("later", 4, seconds, queued_at=1)
    work = job("busy", 2, None)
    busy = Admitted(work, placed(work, {"n0": 2}, flavor="a"), ends_at=NOW + 100, end_enforced=True)
    rule = line().backfill
    of_both = replace(splitting(), strategy=QueueingStrategy.BACKFILL, backfill=rule)
    snapshot = world(fleet, [large, later], [busy], of_both, flavors=(A, B))
    made = plan(snapshot)
    assert verify(snapshot, made) == ()
    assert starts(made) == started
    assert promises(made) == {"large": 100.0}


@pytest.mark.parametrize(
    ("at", "message"),
    [
        pytest.param(NOW + 50, "asks 1, free 0", id="before a gang has ended"),
        pytest.param(NOW - 50, "in the past", id="in the past"),
    ],
)
def test_the_verifier_names_a_planned_start_that_cannot_happen(at: float, message: str) -> None:
    snapshot = half_full()
    made = plan(snapshot)
    (planned,) = made.planned
    bad = replace(made, planned=(replace(planned, start=replace(planned.start, at=at)),))
    assert [v.rule for v in verify(snapshot, made)] == []
    assert any(
        v.rule is PlanRule.PLANNED_START and message in v.message for v in verify(snapshot, bad)
    )


def test_the_verifier_names_a_start_that_delays_a_planned_one() -> None:
    snapshot = half_full(job("long", 1, 101, queued_at=1))
    made = plan(snapshot)
    kept = {p.uid: p for p in made.pending}
    placement = placed(job("long", 1, 101), {"n2": 1})
    bad = replace(made, admitted=(Admission("long", placement),), pending=(kept["large"],))
    assert {v.rule for v in verify(snapshot, bad)} == {PlanRule.PLANNED_START}


@pytest.mark.parametrize(
    ("rule", "counts", "user", "priority", "named"),
    [
        pytest.param(None, False, "bob", 0, True, id="no past use"),
        pytest.param(
            PAST_USE, False, "bob", 0, True, id="a queue in which past use does not count"
        ),
        pytest.param(PAST_USE, True, "ann", 0, True, id="one user"),
        pytest.param(PAST_USE, True, "bob", 1, True, id="higher priority"),
        pytest.param(PAST_USE, True, "bob", 0, False, id="past use decides"),
    ],
)
def test_the_verifier_names_a_gang_of_unknown_length_that_passes_one_that_waits(
    rule: UsageFairness | None, counts: bool, user: str, priority: int, named: bool
) -> None:
    """The later gang is of ann, and the one that waits is of ``user``."""
    later = replace(job("open", 1, None, queued_at=1), user="ann")
    first = replace(job("large", 4, 500, priority=priority), user=user)
    busy = running(job("busy", 2, None), "n0", "n1", ends=100.0)
    snapshot = world(NODES, [first, later], [busy], replace(line(), usage_fairness=counts))
    config = replace(snapshot.config, rules=Rules(usage_fairness=rule))
    snapshot = replace(snapshot, config=config)
    made = plan(replace(snapshot, pending=snapshot.pending[:1]))
    bad = replace(made, admitted=(Admission("open", placed(later, {"n2": 1})),), planned=())
    found = [v.message for v in verify(snapshot, bad) if v.rule is PlanRule.PLANNED_START]
    assert found == (["of unknown length, passes large"] if named else [])


@pytest.mark.parametrize(
    ("ends", "later", "started", "planned"),
    [
        pytest.param(None, None, [], {}, id="of unknown length"),
        pytest.param(200.0, 200.0, ["later"], {"owner": 200.0}, id="ends before the others"),
        pytest.param(200.0, 201.0, [], {"owner": 200.0}, id="ends after the others"),
    ],
)
def test_a_later_gang_does_not_delay_one_that_waits_before_it_evicts_borrowing_gangs(
    ends: float | None, later: float | None, started: list[str], planned: dict[str, float]
) -> None:
    """The plan is verified: a gang of unknown length that passes makes it invalid."""
    owners = replace(
        member("main", 4), reclaim_within_cohort=ReclaimWithinCohort.ANY, reclaim_patience=300.0
    )
    borrower = running(job("borrower", 2, None, of="others"), "n0", "n1", ends=ends)
    borrower = replace(borrower, started_at=NOW - 1000, end_enforced=False)
    waits = Pending(job("owner", 4, 500), reclaim_since=None)
    snapshot = world(
        NODES, [waits, job("later", 1, later, queued_at=1)], [borrower], owners, member("others", 0)
    )
    made = plan(snapshot)
    assert verify(snapshot, made) == ()
    assert why(made, "owner") is Code.WAITING_TO_RECLAIM
    assert starts(made) == started
    assert promises(made) == planned


def test_no_gang_waits_for_a_gang_that_a_limit_refuses_since_its_planned_start() -> None:
    """The reservation of a later gang uses what the ResourceQuota had left."""
    pools = {"n0": "wide", "n1": "wide", "n2": "other"}
    fleet = [node(name, gpu=8, labels={"pool": pool}) for name, pool in pools.items()]
    wide = podset(count=2, gpu=8, select={"pool": "wide"})
    first = gang("first", wide, priority=5)
    evicts = gang("evicts", podset(gpu=8, select={"pool": "other"}), priority=4)
    first, evicts = (replace(each, duration=Duration(300.0)) for each in (first, evicts))
    later = job("later", 1, 5000, priority=3, gpu=8)
    ends = running(job("ends", 1, None, priority=9, gpu=8), "n0", ends=1000.0)
    lower = running(job("lower", 1, None, gpu=8), "n2", ends=None)
    rule = line(within=WithinClusterQueue.LOWER_PRIORITY)
    snapshot = world(fleet, [first, evicts, later], [ends, lower], rule)
    quota = Allowance("quota", (QuotaLimit(f"requests.{GPU}", GPU, 36, 16),))
    made = plan(replace(snapshot, allowances={"team": (quota,)}))
    assert [each.preemptor for each in made.preempted] == ["evicts"]
    assert why(made, "first") is Code.RESOURCE_QUOTA_EXCEEDED
    assert (starts(made), promises(made)) == (["later"], {})


def test_the_verifier_names_a_late_start_without_a_cause() -> None:
    snapshot = half_full()
    made = plan(snapshot)
    (planned,) = made.planned
    promised = replace(planned.start, promised=NOW + 10)
    (large,) = snapshot.pending
    later = replace(snapshot, pending=(replace(large, planned_start=promised),))
    assert {v.rule for v in verify(later, made)} == {PlanRule.PLANNED_START}
    again = plan(later)
    assert [p.slip for p in again.planned] == [SlipCause.HIGHER_PRIORITY]
    assert not verify(later, again)


def test_the_document_of_a_plan_has_planned_starts() -> None:
    snapshot = half_full(job("long", 1, 101, queued_at=1))
    document = plan_document(snapshot, plan(snapshot))
    large, long = document["pending"]
    assert large["plannedStart"]["at"] == format_time(NOW + 100)
    assert large["plannedStart"]["podSets"][0]["nodes"] == dict.fromkeys(
        ["n0", "n1", "n2", "n3"], 1
    )
    assert "plannedStart" not in long
    Draft202012Validator(SCHEMA).validate(document)


@pytest.mark.parametrize(
    ("seconds", "enforced", "started"),
    [
        pytest.param(150, True, ["later"], id="until the latest time"),
        pytest.param(151, True, [], id="longer"),
        pytest.param(101, False, [], id="with an expected end"),
    ],
)
def test_a_gang_with_a_limit_can_delay_a_planned_start_by_a_part_of_its_run(
    seconds: float, enforced: bool, started: list[str]
) -> None:
    """The large gang runs for 500 s, so it can start 50 s later than at 100 s."""
    later = job("later", 1, seconds, queued_at=1, enforced=enforced)
    snapshot = half_full(later)
    delayed = world(
        NODES, [p.workload for p in snapshot.pending], snapshot.admitted, line(delay=0.1)
    )
    made = plan(delayed)
    assert verify(delayed, made) == ()
    assert starts(made) == started
    (planned,) = made.planned
    assert planned.start.at - NOW == (seconds if started else 100)
    assert planned.start.promised == NOW + 150


@pytest.mark.parametrize(
    ("pods", "delay", "started"),
    [
        pytest.param(1, None, ["later"], id="one pod"),
        pytest.param(2, None, [], id="several pods"),
        pytest.param(2, 0.1, ["later"], id="several pods, and the delay is set"),
    ],
)
def test_by_default_a_later_gang_delays_only_planned_starts_of_one_pod(
    pods: int, delay: float | None, started: list[str]
) -> None:
    """One GPU is in use for 100 s. The first gang needs all GPUs for 500 s, and the later one runs for 150 s."""
    nodes = [node(f"n{number}", gpu=8) for number in range(pods)]
    busy = running(job("busy", 1, 100), "n0", ends=100)
    first, later = job("first", pods, 500, gpu=8), job("later", 1, 150, queued_at=1)
    snapshot = world(nodes, [first, later], [busy], line(delay=delay))
    made = plan(snapshot)
    assert verify(snapshot, made) == ()
    assert starts(made) == started
