"""Quota, use and shares as Prometheus sees them."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from queuectl.domain.events import Event
from queuectl.domain.fleet import Node
from queuectl.domain.jobs import JobOutcome
from queuectl.domain.ledger import Entry, EntryChange, State
from queuectl.domain.quantity import Resources
from queuectl.domain.records import NodeRecord
from queuectl.objects.configuration.queue_config import build
from queuectl.state.holdings import Holdings
from queuectl.state.mirror import Mirror
from queuectl.telemetry.quota import QuotaGauges
from tests.api.support import (
    CLUSTER_QUEUE,
    COHORT,
    DOCUMENTS,
    LIVES,
    job,
    live_through,
)

GPU = "nvidia.com/gpu"


def queue(name: str, nominal: int, *, weight: str = "1", **limits: int) -> dict[str, Any]:
    """A ClusterQueue in the cohort ``all``."""
    document = deepcopy(CLUSTER_QUEUE)
    document["metadata"]["name"] = name
    spec = document["spec"]
    spec["cohortName"] = "all"
    spec["fairSharing"] = {"weight": weight}
    row = {"name": GPU, "nominalQuota": nominal, **limits}
    spec["resourceGroups"][0]["flavors"][0]["resources"] = [row]
    return document


def documents(**queues: dict[str, Any]) -> list[dict[str, Any]]:
    parent = {**COHORT, "metadata": {"name": "org"}}
    child = {**COHORT, "spec": {"parentName": "org"}}
    rest = [d for d in DOCUMENTS.values() if d["kind"] not in ("ClusterQueue", "Cohort")]
    stated = [queue("team-a", 16, borrowingLimit=40, lendingLimit=8), queue("team-b", 48)]
    return [*rest, parent, child, *(queues.values() or stated)]


def node(name: str, *, ready: bool = True, unschedulable: bool = False) -> Node:
    offers = Resources({GPU: 8, "cpu": 1500})
    return Node(name, allocatable=offers, ready=ready, unschedulable=unschedulable)


def holdings(
    *entries: Entry, config: list[dict[str, Any]] | None = None, nodes: Sequence[Node] = ()
) -> Holdings:
    """Quota that these workloads hold, each of 32 GPUs in LocalQueue team-a/default."""
    mirror = Mirror({})
    mirror.jobs = {e.uid: job(e.name) for e in entries}
    for node in nodes:
        mirror.nodes.put(NodeRecord(node, 1))
    held = Holdings(mirror)
    held.configure(build(config or documents(), 1), entries)
    return held


def registry(held: Holdings | None) -> CollectorRegistry:
    gauges = QuotaGauges()
    gauges.show(held)
    made = CollectorRegistry()
    made.register(gauges)
    return made


def value(held: Holdings, name: str, /, **labels: str) -> float | None:
    return registry(held).get_sample_value(f"queuectl_{name}", labels)


def live(life: str) -> Entry:
    return live_through(job(life), *LIVES[life])[-1].after


A = {"cohort": "all", "cluster_queue": "team-a", "flavor": "h100", "resource": GPU}


@pytest.mark.parametrize(
    ("name", "labels", "stated"),
    [
        ("cluster_queue_nominal_quota", A, 16),
        ("cluster_queue_resource_usage", A, 0),
        ("cluster_queue_resource_reservation", A, 0),
        ("cohort_subtree_resource_reservations", {"cohort": "all", "flavor": "h100", "resource": GPU}, 0),
        ("cluster_queue_borrowing_limit", A, 40),
        ("cluster_queue_lending_limit", A, 8),
        ("cluster_queue_borrowing_limit", A | {"cluster_queue": "team-b"}, None),
        ("cluster_queue_info", {"cluster_queue": "team-a", "parent_cohort": "all", "root_cohort": "org"}, 1),
        ("cohort_info", {"cohort": "all", "parent_cohort": "org", "root_cohort": "org"}, 1),
        ("cohort_info", {"cohort": "org", "parent_cohort": "", "root_cohort": "org"}, 1),
        ("cohort_subtree_quota", {"cohort": "all", "flavor": "h100", "resource": GPU}, 8 + 48),
        ("cluster_queue_status", {"cluster_queue": "team-a", "status": "active"}, 1),
        ("cluster_queue_status", {"cluster_queue": "team-a", "status": "pending"}, 0),
        ("local_queue_status", {"name": "default", "namespace": "team-a", "cluster_queue": "team-a"}, 1),
    ],
)  # fmt: skip
def test_what_is_configured_is_shown(
    name: str, labels: dict[str, str], stated: float | None
) -> None:
    assert value(holdings(), name, **labels) == stated


@pytest.mark.parametrize("stopped", ["ClusterQueue", "LocalQueue"])
def test_a_stopped_queue_shows(stopped: str) -> None:
    config = [deepcopy(d) for d in documents(a=queue("team-a", 16))]
    for document in config:
        if document["kind"] == stopped:
            document["spec"]["stopPolicy"] = "Hold"
    held = holdings(config=config)
    labels = {"name": "default", "namespace": "team-a", "cluster_queue": "team-a"}
    assert value(held, "local_queue_status", **labels) == 0
    active = value(held, "cluster_queue_status", cluster_queue="team-a", status="active")
    assert active == (stopped == "LocalQueue")


@pytest.mark.parametrize(
    ("life", "usage", "reservation", "pending"),
    [
        ("pending", None, None, 32),
        ("reserved", None, 32, 32),
        ("starting", 32, 32, None),
        ("running", 32, 32, None),
        ("evicting", 32, 32, None),
        ("requeued", None, None, 32),
        ("backoff", None, None, 32),
        ("held", None, None, None),
        ("finished", None, None, None),
    ],
)
def test_what_a_workload_holds_and_asks_for(
    life: str, usage: float | None, reservation: float | None, pending: float | None
) -> None:
    held = holdings(live(life))
    assert value(held, "cluster_queue_resource_usage", **A) == (usage or 0)
    assert value(held, "cluster_queue_resource_reservation", **A) == (reservation or 0)
    asked = value(held, "cluster_queue_resource_pending", cluster_queue="team-a", resource=GPU)
    assert asked == pending
    local = A | {"name": "default", "namespace": "team-a"}
    del local["cohort"]
    assert value(held, "local_queue_resource_usage", **local) == usage
    assert value(held, "local_queue_resource_reservation", **local) == reservation
    for cohort in ("all", "org"):
        labels = {"cohort": cohort, "flavor": "h100", "resource": GPU}
        used = value(held, "cohort_subtree_resource_reservations", **labels)
        assert used == (reservation or 0)


@pytest.mark.parametrize(("weight", "share"), [("1", 250.0), ("2", 125.0), ("0", inf)])
def test_the_share_is_what_is_borrowed_of_what_can_be_lent_by_weight(
    weight: str, share: float
) -> None:
    config = documents(a=queue("team-a", 16, weight=weight), b=queue("team-b", 48))
    held = holdings(live("running"), config=config)  # 32, so 16 borrowed of 64
    labels = {"cluster_queue": "team-a", "cohort": "all"}
    assert value(held, "cluster_queue_weighted_share", **labels) == share
    assert value(held, "cohort_weighted_share", cohort="all") == 0


def test_cores_are_shown_not_thousandths() -> None:
    config = [deepcopy(d) for d in documents(a=queue("team-a", 16))]
    for document in config:
        if document["kind"] == "ClusterQueue":
            group = document["spec"]["resourceGroups"][0]
            group["coveredResources"] = ["cpu"]
            group["flavors"][0]["resources"] = [{"name": "cpu", "nominalQuota": "1500m"}]
    labels = A | {"resource": "cpu"}
    assert value(holdings(config=config), "cluster_queue_nominal_quota", **labels) == 1.5


def test_jobs_that_are_over_count_until_they_are_deleted() -> None:
    mirror = Mirror({})
    mirror.jobs = {
        name: replace(job(name), uid=name, outcome=outcome)
        for name, outcome in (("a", JobOutcome.SUCCEEDED), ("b", JobOutcome.FAILED), ("c", None))
    }
    held = Holdings(mirror)
    held.configure(build(documents(), 1), ())
    local = {"name": "default", "namespace": "team-a"}
    assert value(held, "finished_workloads", cluster_queue="team-a") == 2
    assert value(held, "finished_workloads", cluster_queue="team-b") == 0
    assert value(held, "local_queue_finished_workloads", **local) == 2
    del mirror.jobs["a"]
    assert value(held, "finished_workloads", cluster_queue="team-a") == 1


def test_nodes_that_take_no_pods_offer_nothing() -> None:
    nodes = [node("a"), node("b"), node("c", unschedulable=True), node("d", ready=False)]
    held = holdings(nodes=nodes)
    assert value(held, "nodes_allocatable", resource=GPU) == 16
    assert value(held, "nodes_allocatable", resource="cpu") == 3
    counted = [value(held, "nodes", status=s) for s in ("ready", "cordoned", "not_ready")]
    assert counted == [2, 1, 1]


def test_a_process_that_does_not_lead_shows_nothing() -> None:
    assert list(registry(None).collect()) == []


LIFE = st.sampled_from(sorted(LIVES.values(), key=len))


@given(st.lists(st.tuples(LIFE, st.integers(1, 5)), max_size=6), st.randoms(use_true_random=False))
def test_following_changes_equals_counting_entries(
    lives: list[tuple[tuple[Event, ...], int]], random: Any
) -> None:
    changes: list[list[EntryChange]] = [
        live_through(job(f"w{number}"), *life)[:steps] for number, (life, steps) in enumerate(lives)
    ]
    standing = [each[-1].after for each in changes]
    counted = holdings(*standing)
    followed = holdings()
    followed._mirror.jobs = dict(counted._mirror.jobs)
    rest = [list(each) for each in changes]
    while any(rest):
        followed.note([random.choice([each for each in rest if each]).pop(0)])
    for name in ("held", "kept", "pending"):
        sums = {row: n for row, n in getattr(followed, name).items() if n}
        assert sums == dict(getattr(counted, name)), name
    assert sum(counted.held.values()) == 32 * sum(
        e.placement is not None and e.state is not State.FINISHED for e in standing
    )
