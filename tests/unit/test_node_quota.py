"""Quota that follows the nodes: the share of each queue, and the cases that return the same object."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuectl.domain.fleet import Fleet, Node
from queuectl.domain.node_quota import NodeQuota, quota_from_nodes
from queuectl.domain.quantity import GPU, Resources
from queuectl.domain.queues import (
    ClusterQueue,
    Cohort,
    FlavorQuotas,
    QueueConfig,
    ResourceFlavor,
    ResourceGroup,
)
from queuectl.domain.records import NodeRecord, Upserted
from queuectl.domain.snapshot import SolverLimits
from queuectl.objects.documents import as_document
from queuectl.offline.inputs import read_snapshot
from queuectl.state.freeze import SnapshotBuilder
from queuectl.state.ledger import Ledger
from queuectl.state.mirror import Mirror
from queuectl.state.usage import OtherPodUsage

FLAVORS = {
    "h100": ResourceFlavor("h100", (("gpu", "h100"),)),
    "a100": ResourceFlavor("a100", (("gpu", "a100"),)),
    "any": ResourceFlavor("any"),
}


def groups(**nominal: int) -> tuple[ResourceGroup, ...]:
    """GPU quota by flavor."""
    return (ResourceGroup((GPU,), tuple(FlavorQuotas(f, {GPU: n}) for f, n in nominal.items())),)


def queue(name: str, headroom: float | None = 0.0, **nominal: int) -> ClusterQueue:
    return ClusterQueue(name, groups(**nominal), headroom=headroom)


def config(*queues: ClusterQueue, cohorts: tuple[Cohort, ...] = ()) -> QueueConfig:
    named = {q.name: q for q in queues}
    return QueueConfig(cluster_queues=named, flavors=FLAVORS, cohorts={c.name: c for c in cohorts})


def fleet(h100: int = 0, a100: int = 0, gpus: int = 8, **labels: str) -> Fleet:
    """A number of nodes of each type."""
    return Fleet(
        tuple(
            Node(f"{kind}-{i}", {"gpu": kind, **labels}, Resources({GPU: gpus, "cpu": 64000}))
            for kind, count in (("h100", h100), ("a100", a100))
            for i in range(count)
        )
    )


def nominal(of: QueueConfig, flavor: str = "h100") -> dict[str, int]:
    """ClusterQueue to its GPU quota of a flavor."""
    return {
        q.name: quotas.nominal[GPU]
        for q in of.cluster_queues.values()
        for group in q.groups
        for quotas in group.flavors
        if quotas.flavor == flavor
    }


CASES = {
    "all the flavor's nodes": ([queue("a", h100=1)], fleet(h100=4, a100=2), {"a": 32}),
    "less its headroom": ([queue("a", 0.1, h100=1)], fleet(h100=4), {"a": 28}),  # of 28.8
    "exactly, not as floats round": ([queue("a", 0.1, h100=1)], fleet(h100=30, gpus=1), {"a": 27}),
    "in proportion to what is stated": (
        [queue("a", h100=1), queue("b", h100=3)],
        fleet(h100=4),
        {"a": 8, "b": 24},
    ),
    "rounded down": ([queue("a", h100=1), queue("b", h100=2)], fleet(h100=4), {"a": 10, "b": 21}),
    "equally where nothing is stated": (
        [queue("a", h100=0), queue("b", h100=0)],
        fleet(h100=4),
        {"a": 16, "b": 16},
    ),
    "nothing where others state something": (
        [queue("a", h100=0), queue("b", h100=5)],
        fleet(h100=4),
        {"a": 0, "b": 32},
    ),
    "each with its own headroom": (
        [queue("a", 0.5, h100=1), queue("b", h100=1)],
        fleet(h100=4),
        {"a": 8, "b": 16},
    ),
    "quota that another queue states is not assigned again": (
        [queue("a", h100=1), queue("fixed", None, h100=12)],
        fleet(h100=4),
        {"a": 20, "fixed": 12},
    ),
    "the stated quota exceeds the nodes": (
        [queue("a", h100=1), queue("fixed", None, h100=50)],
        fleet(h100=4),
        {"a": 0, "fixed": 50},
    ),
    "no node of the flavor is there": ([queue("a", h100=7)], fleet(a100=1), {"a": 0}),
    "no node at all is known": ([queue("a", h100=7)], Fleet(()), {"a": 7}),
    "the flavor names no nodes": ([queue("a", any=7)], fleet(h100=4), {"a": 7}),
}


@pytest.mark.parametrize("name", CASES)
def test_a_queue_gets_its_part_of_the_nodes(name: str) -> None:
    queues, nodes, expected = CASES[name]
    flavor = "any" if "names no nodes" in name else "h100"
    assert nominal(quota_from_nodes(config(*queues), nodes), flavor) == expected


def test_quota_that_a_cohort_states_is_not_assigned_again() -> None:
    own = Cohort("c", groups=groups(h100=10))
    assert nominal(quota_from_nodes(config(queue("a", h100=1), cohorts=(own,)), fleet(h100=4))) == {
        "a": 22
    }


@pytest.mark.parametrize("change", [{"ready": False}, {"unschedulable": True}])
def test_a_node_that_takes_no_pods_counts_for_nothing(change: dict[str, bool]) -> None:
    four = fleet(h100=4)
    nodes = Fleet((replace(four.nodes[0], **change), *four.nodes[1:]))  # type: ignore[arg-type]
    assert nominal(quota_from_nodes(config(queue("a", h100=1)), nodes)) == {"a": 24}


def test_limits_and_everything_else_of_a_queue_stay() -> None:
    quotas = FlavorQuotas("h100", {GPU: 1}, borrowing={GPU: 4}, lending={GPU: 2})
    stated = replace(queue("a"), groups=(ResourceGroup((GPU,), (quotas,)),), cohort="c", weight=500)
    derived = quota_from_nodes(config(stated), fleet(h100=1)).cluster_queues["a"]
    expected = replace(quotas, nominal={GPU: 8})
    assert derived == replace(stated, groups=(ResourceGroup((GPU,), (expected,)),))


def test_the_quota_of_other_nodes_follows_from_the_stated_quota() -> None:
    stated = config(queue("a", h100=1), queue("b", h100=3), queue("fixed", None, h100=8))
    none = quota_from_nodes(stated, fleet(a100=1))
    assert nominal(none) == {"a": 0, "b": 0, "fixed": 8}
    assert nominal(quota_from_nodes(none, fleet(h100=3))) == {"a": 4, "b": 12, "fixed": 8}


def test_each_resource_of_a_group_is_shared_by_itself() -> None:
    quotas = FlavorQuotas("h100", {GPU: 1, "cpu": 0, "pods": 3})
    both = [replace(queue(n), groups=(ResourceGroup((GPU, "cpu", "pods"), (quotas,)),)) for n in "ab"]  # fmt: skip
    derived = quota_from_nodes(config(*both), fleet(h100=2)).cluster_queues["a"]
    assert derived.groups[0].flavors[0].nominal == {GPU: 8, "cpu": 64000, "pods": 0}


class TestIdentity:
    """Caches hang on the configuration object, so it must be a new one when, and only when, something changed."""

    def test_where_no_queue_asks_it_is_the_configuration_itself(self) -> None:
        stated = config(queue("a", None, h100=1))
        assert NodeQuota().of(stated, fleet(h100=1)) is stated

    def test_the_same_nodes_give_the_same_object(self) -> None:
        quota, stated, nodes = NodeQuota(), config(queue("a", h100=1)), fleet(h100=1)
        assert quota.of(stated, nodes) is quota.of(stated, nodes)

    def test_a_node_that_changes_nothing_of_quota_gives_the_same_object(self) -> None:
        quota, stated = NodeQuota(), config(queue("a", h100=1))
        first = quota.of(stated, fleet(h100=1))
        assert quota.of(stated, fleet(h100=1, zone="new")) is first
        assert quota.of(stated, fleet(h100=1, a100=1)) is first

    def test_a_node_more_gives_another(self) -> None:
        quota, stated = NodeQuota(), config(queue("a", h100=1))
        first = quota.of(stated, fleet(h100=1))
        assert nominal(quota.of(stated, fleet(h100=2))) == {"a": 16}
        assert nominal(first) == {"a": 8}

    def test_another_configuration_gives_another_though_the_quota_is_the_same(self) -> None:
        quota, nodes = NodeQuota(), fleet(h100=1)
        first = quota.of(config(queue("a", h100=1)), nodes)
        then = quota.of(replace(config(queue("a", h100=1)), revision=7), nodes)
        assert then is not first
        assert then.revision == 7


parts = st.tuples(st.none() | st.sampled_from([0.0, 0.1, 0.333]), st.integers(0, 40))


@given(st.lists(parts, min_size=1, max_size=5), st.integers(0, 6))
def test_no_gpu_is_assigned_twice_and_none_is_lost_but_by_rounding(
    asked: list[tuple[float | None, int]], count: int
) -> None:
    queues = [queue(f"q{i}", headroom, h100=stated) for i, (headroom, stated) in enumerate(asked)]
    nodes = fleet(h100=count, a100=1)
    derived = nominal(quota_from_nodes(config(*queues), nodes))
    fixed = sum(stated for headroom, stated in asked if headroom is None)
    following = [(f"q{i}", h) for i, (h, _) in enumerate(asked) if h is not None]
    given_out = sum(derived[name] for name, _ in following)
    assert given_out <= max(0, 8 * count - fixed)
    if following and all(headroom == 0 for _, headroom in following):
        assert given_out > max(0, 8 * count - fixed) - len(following)


# ---- where it is used


def test_a_file_of_nodes_and_queues_is_planned_with_the_quota_of_the_nodes() -> None:
    group = {
        "coveredResources": [GPU],
        "flavors": [{"name": "h100", "resources": [{"name": GPU, "nominalQuota": 1}]}],
    }
    bodies = [
        ("ResourceFlavor", "h100", {"nodeLabels": {"gpu": "h100"}}),
        (
            "ClusterQueue",
            "a",
            {"resourceGroups": [group], "policy": {"quotaFromNodes": {"headroom": "25%"}}},
        ),
    ]
    documents = [
        as_document(
            {"apiVersion": "queuectl.dev/v1", "kind": k, "metadata": {"name": n}, "spec": s}
        )
        for k, n, s in bodies
    ]
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "n", "labels": {"gpu": "h100"}},
        "status": {"allocatable": {GPU: "8", "pods": "110"}},
    }
    assert nominal(read_snapshot(documents).snapshot.config) == {"a": 1}
    assert nominal(read_snapshot([*documents, as_document(node)]).snapshot.config) == {"a": 6}


def test_the_loop_plans_with_the_quota_of_the_nodes_it_sees() -> None:
    stated = config(queue("a", 0.5, h100=1))
    mirror, ledger = Mirror({"jobs": "Job"}), Ledger(())
    snapshot_builder = SnapshotBuilder(mirror, ledger, OtherPodUsage(mirror, ledger))
    mirror.apply([Upserted(NodeRecord(node, 1)) for node in fleet(h100=2).nodes])
    first = snapshot_builder.freeze(stated, 1.0, SolverLimits()).config
    assert nominal(first) == {"a": 8}
    assert snapshot_builder.freeze(stated, 2.0, SolverLimits()).config is first
    mirror.apply([Upserted(NodeRecord(replace(fleet(h100=1).nodes[0], ready=False), 2))])
    assert nominal(snapshot_builder.freeze(stated, 3.0, SolverLimits()).config) == {"a": 4}
