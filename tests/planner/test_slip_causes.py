"""Why a planned start moves: each cause from what has changed since the last plan. It is counted once, and without a change nothing moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from queuectl.domain.fleet import Fleet
from queuectl.domain.plan import Plan, ScheduledGang, SlipCause
from queuectl.domain.queues import ClusterQueue, Cohort
from queuectl.domain.snapshot import Admitted, Pending, Snapshot
from queuectl.domain.workload import Workload
from queuectl.planner import plan
from queuectl.planner.verify import verify
from tests.planner.backfill_clock import job, line, member
from tests.planner.build import NOW, holding, node, queue, resources, world
from tests.planner.test_advance import reserved

NODES = tuple(node(f"n{number}", gpu=1) for number in range(5))
LARGE = job("large", 4, 500)
ALL = job("all", 5, 50, queued_at=1)


def on(
    workload: Workload, *nodes: str, ends: float | None, started: float = -100, **more: Any
) -> Admitted:
    """A running gang; times in seconds from the first plan."""
    held = holding(workload, dict.fromkeys(nodes, 1), started_at=NOW + started)
    return replace(held, ends_at=None if ends is None else NOW + ends, **more)


def busy(first: float | None = 100, second: float | None = 1000) -> list[Admitted]:
    """Two of five nodes are in use: n0 and n4."""
    return [
        on(job("first", 1, None), "n0", ends=first),
        on(job("second", 1, None), "n4", ends=second),
    ]


def at_first(*pending: Workload, planned_starts: int = 1) -> Snapshot:
    """A gang that needs four of five nodes waits for the gang on n0."""
    return world(NODES, [LARGE, *pending], busy(), line(planned_starts))


def next_plan(
    snapshot: Snapshot, made: Plan, *more: Workload, after: float = 10, **changes: Any
) -> tuple[Snapshot, Plan]:
    """The plan of a few seconds later, from a snapshot with these changes."""
    starts = {planned.uid: planned.start for planned in made.planned}
    pending = [replace(p, planned_start=starts.get(p.workload.uid)) for p in snapshot.pending]
    pending += [Pending(workload) for workload in more]
    later = replace(snapshot, now=snapshot.now + after, pending=tuple(pending), **changes)
    found = plan(later)
    assert verify(later, found) == ()
    return later, found


def of(made: Plan, uid: str = "large") -> ScheduledGang:
    (planned,) = (each for each in made.planned if each.uid == uid)
    return planned


def without(snapshot: Snapshot, name: str) -> Fleet:
    return Fleet(tuple(each for each in snapshot.fleet.nodes if each.name != name))


HIGH = replace(job("high", 1, 5000), priority=10)
TALL = replace(job("tall", 4, 5000), priority=10)


@pytest.mark.parametrize(
    ("more", "changes", "cause", "at"),
    [
        pytest.param((), {}, None, 100, id="nothing"),
        pytest.param((), {"admitted": tuple(busy(60))}, None, 60, id="an earlier end"),
        pytest.param((), {"admitted": tuple(busy(150))}, None, 150, id="an overrun within slack"),
        pytest.param((), {"admitted": tuple(busy(300))}, SlipCause.OVERRUN, 300, id="an overrun"),
        pytest.param(
            (),
            {"fleet": Fleet(tuple(n for n in NODES if n.name != "n2"))},
            SlipCause.LOST_NODE,
            1000,
            id="a lost node",
        ),
        pytest.param(
            (),
            {"other_pods": {"n2": resources(gpu=1, pods=1)}},
            SlipCause.LOST_NODE,
            1000,
            id="a node with pods of no queue",
        ),
        pytest.param(
            (),
            {"reservations": (reserved(nodes=("n2",), starts=50, lasts=2950),)},
            SlipCause.CONFIGURATION,
            1000,
            id="a node that a Reservation keeps",
        ),
        pytest.param(
            (),
            {
                "reservations": (reserved(nodes=("n2",), starts=50, lasts=2950),),
                "other_pods": {"n2": resources(gpu=1, pods=1)},
            },
            SlipCause.LOST_NODE,
            1000,
            id="a node that pods of no queue use too",
        ),
        pytest.param((HIGH,), {}, SlipCause.HIGHER_PRIORITY, 1000, id="a gang before it starts"),
        pytest.param((TALL,), {}, SlipCause.HIGHER_PRIORITY, 5100, id="a gang before it waits"),
    ],
)
def test_a_cause_follows_from_what_has_changed(
    more: Sequence[Workload],
    changes: Mapping[str, Any],
    cause: SlipCause | None,
    at: float,
) -> None:
    snapshot = at_first(planned_starts=2)
    _, made = next_plan(snapshot, plan(snapshot), *more, **changes)
    assert of(made).slip is cause
    assert of(made).start.at == NOW + at


def test_small_delays_add_up_to_an_overrun() -> None:
    snapshot = at_first()
    made = plan(snapshot)
    slips = []
    for end in (130, 155, 180, 200, 225, 250):
        snapshot, made = next_plan(snapshot, made, admitted=tuple(busy(end)))
        slips.append(of(made).slip)
    assert slips == [None, None, SlipCause.OVERRUN, None, None, SlipCause.OVERRUN]
    assert of(made).start.overruns == 2


def test_the_overrun_counts_for_each_gang_that_it_delays() -> None:
    """The second gang waits for the first one, which waits for the gang that overruns."""
    snapshot = at_first(ALL, planned_starts=2)
    _, made = next_plan(snapshot, plan(snapshot), admitted=tuple(busy(300)))
    assert [(p.uid, p.slip, p.start.overruns) for p in made.planned] == [
        ("large", SlipCause.OVERRUN, 1),
        ("all", None, 0),  # it waits for the gang on n4 in any case
    ]
    snapshot = replace(at_first(ALL, planned_starts=2), admitted=tuple(busy(100, 200)))
    _, made = next_plan(snapshot, plan(snapshot), admitted=tuple(busy(300, 200)))
    assert [(p.uid, p.slip, p.start.overruns) for p in made.planned] == [
        ("large", SlipCause.OVERRUN, 1),
        ("all", SlipCause.OVERRUN, 1),
    ]


def test_a_gang_that_stops_slowly_has_overrun() -> None:
    snapshot = at_first()
    made = plan(snapshot)
    stopping = tuple(replace(g, leaving=True) if g.workload.uid == "first" else g for g in busy())
    slips = []
    for _ in range(3):
        snapshot, made = next_plan(snapshot, made, after=60, admitted=stopping)
        slips.append(of(made).slip)
    assert slips == [None, None, SlipCause.OVERRUN]


def test_a_repaired_gang_ends_when_it_would_have_ended() -> None:
    """It moves from its lost node to a node of the planned start, until its end."""
    snapshot = at_first()
    made = plan(snapshot)
    broken = on(job("second", 1, None), "n4", ends=90, lost=(("w", "n4", 1),))
    changes: dict[str, Any] = {
        "admitted": (busy()[0], broken),
        "fleet": without(snapshot, "n4"),
    }
    _, repaired = next_plan(snapshot, made, **changes)
    assert [(a.uid, a.repaired) for a in repaired.admitted] == [("second", True)]
    assert (of(repaired).slip, of(repaired).start.at) == (None, NOW + 100)
    endless = {**changes, "admitted": (busy()[0], replace(broken, ends_at=None))}
    _, lost = next_plan(snapshot, made, **endless)
    assert (of(lost).slip, of(lost).is_current) == (SlipCause.LOST_NODE, False)


def test_a_planned_start_without_a_time_keeps_its_overruns_and_counts_once() -> None:
    snapshot = at_first()
    made = plan(snapshot)
    snapshot, made = next_plan(snapshot, made, admitted=tuple(busy(None, None)))
    withdrawn = of(made)
    assert (withdrawn.slip, withdrawn.is_current) == (SlipCause.OVERRUN, False)
    assert (withdrawn.start.promised, withdrawn.start.overruns) == (None, 1)
    snapshot, made = next_plan(snapshot, made)
    assert of(made) == replace(withdrawn, slip=None)
    snapshot, made = next_plan(snapshot, made, admitted=tuple(busy(700)))
    assert (of(made).slip, of(made).is_current, of(made).start.overruns) == (None, True, 1)
    assert of(made).start.promised == NOW + 700


# Several ClusterQueues.


def of_cohort(name: str, gpu: int) -> ClusterQueue:
    return replace(member(name, gpu), cohort="both")


def borrowing() -> Snapshot:
    """A gang of ClusterQueue main borrows from other, once the gang on n0 has ended."""
    snapshot = world(NODES, [LARGE], busy(), of_cohort("main", 2), of_cohort("other", 3))
    config = replace(snapshot.config, cohorts={"both": Cohort("both")})
    return replace(snapshot, config=config)


def test_quota_that_its_owner_uses_again_is_reclaimed() -> None:
    snapshot = replace(borrowing(), admitted=tuple(busy()))
    made = plan(snapshot)
    own = replace(job("own", 1, 5000, queued_at=5), queue="other")
    _, later = next_plan(snapshot, made, own)
    assert [a.uid for a in later.admitted] == ["own"]
    assert of(later).slip is SlipCause.RECLAIM


def test_less_quota_is_a_change_of_the_configuration() -> None:
    snapshot = at_first()
    made = plan(snapshot)
    less = replace(line(), groups=queue(gpu=4).groups)
    config = replace(snapshot.config, cluster_queues={"main": less}, revision=2)
    _, later = next_plan(snapshot, made, config=config)
    assert (of(later).slip, of(later).start.at) == (SlipCause.CONFIGURATION, NOW + 1000)


def test_a_node_that_the_rules_exclude_is_not_lost() -> None:
    snapshot = at_first()
    made = plan(snapshot)
    labeled = {"default": replace(snapshot.config.flavors["default"], node_labels=(("x", "y"),))}
    fleet = Fleet(
        tuple(
            replace(each, labels={**each.labels, "x": "y"}) if each.name != "n2" else each
            for each in NODES
        )
    )
    config = replace(snapshot.config, flavors=labeled, revision=2)
    _, later = next_plan(snapshot, made, config=config, fleet=fleet)
    assert of(later).slip is SlipCause.CONFIGURATION
