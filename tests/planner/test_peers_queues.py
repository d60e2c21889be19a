"""Flavors and quota as ordinary objects, alongside Kueue's result for them: measured with its own scheduler (August 2026)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from queuectl.objects.documents import as_document
from queuectl.offline.inputs import read_snapshot
from queuectl.planner import plan
from queuectl.planner.verify import verify
from tests.planner.documents import Doc, Planned, planned
from tests.planner.test_peers import LEVELS, RACK, document, nodes, podset


def _queue(name: str, flavors: Mapping[str, int], **spec: Any) -> list[Doc]:
    """A ClusterQueue with so much cpu of each flavor, and its LocalQueue."""
    quotas = [
        {"name": f, "resources": [{"name": "cpu", "nominalQuota": n}]} for f, n in flavors.items()
    ]
    groups = [{"coveredResources": ["cpu"], "flavors": quotas}]
    return [
        document("ClusterQueue", name, {"namespaceSelector": {}, "resourceGroups": groups} | spec),
        document("LocalQueue", name, {"clusterQueue": name}, namespace="default"),
    ]


def _workload(name: str, queue: str, *podsets: Doc, priority: int = 0, holds: str = "") -> Doc:
    spec = {"queueName": queue, "priority": priority, "podSets": list(podsets)}
    body = document("Workload", name, spec, namespace="default")
    if holds:
        assigned = [{"name": p["name"], "flavors": {"cpu": holds}} for p in podsets]
        body["status"] = {"admission": {"clusterQueue": queue, "podSetAssignments": assigned}}
    return body


def _flavors(made: Planned) -> list[str]:
    (admitted,) = made.document["admitted"]
    return [placed["flavors"]["cpu"] for placed in admitted["podSets"]]


def test_a_selector_distinguishes_flavors_by_their_own_labels_only() -> None:
    """Kueue takes ``a``: it lacks ``y``, a label of another flavor, which is not a statement about its nodes (#12449)."""
    made = planned(
        document("ResourceFlavor", "a", {"nodeLabels": {"x": "a"}}),
        document("ResourceFlavor", "b", {"nodeLabels": {"x": "b", "y": "k"}}),
        _queue("q", {"b": 4, "a": 4}),
        _workload("g", "q", podset(1, spec={"nodeSelector": {"x": "a", "y": "g"}})),
    )
    assert _flavors(made) == ["a"]


@pytest.mark.parametrize(
    ("offered", "asked", "flavor"),
    [
        ({"racks": 4, "plain": 4}, {}, "plain"),
        ({"racks": 4, "plain": 4}, {"required": RACK}, "racks"),
        ({"plain": 4, "racks": 4}, {"required": RACK}, "racks"),
        ({"racks": 4}, {}, "racks"),
    ],
    ids=["nothing asked", "a rack asked", "a rack asked, in either order", "nothing else offered"],
)
def test_flavors_with_a_topology_are_for_podsets_that_request_one(
    offered: dict[str, int], asked: dict[str, Any], flavor: str
) -> None:
    """As in Kueue, where a group of flavors has both kinds."""
    made = planned(
        document("Topology", "topo", {"levels": [{"nodeLabel": level} for level in LEVELS]}),
        document("ResourceFlavor", "racks", {"topologyName": "topo"}),
        document("ResourceFlavor", "plain", {}),
        _queue("q", offered),
        nodes({"b0-r0": (4,)}),
        _workload("g", "q", podset(2, **asked)),
    )
    assert _flavors(made) == [flavor]


def test_podsets_of_a_group_share_their_flavor_even_where_they_share_no_domain() -> None:
    """Kueue takes the second flavor for both: the first has room for the leader alone."""
    made = planned(
        document("ResourceFlavor", "one", {}),
        document("ResourceFlavor", "two", {}),
        _queue("q", {"one": 2, "two": 9}),
        _workload("g", "q", podset(1, name="leader", group="g"), podset(4, name="w", group="g")),
    )
    assert _flavors(made) == ["two", "two"]


@pytest.mark.parametrize("lends", [True, False], ids=["borrows from the bank", "bank keeps it"])
def test_own_victims_free_capacity_alongside_borrowed_quota(lends: bool) -> None:
    """Kueue evicts ``low`` where its queue may preempt to borrow and the bank then lends the rest, and no gang otherwise."""
    limit = {} if lends else {"lendingLimit": 0}
    lender = _queue("bank", {"default": 1}, cohortName="c")
    lender[0]["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0] |= limit
    preemption = {
        "withinClusterQueue": "LowerPriority",
        "reclaimWithinCohort": "LowerPriority",
        "borrowWithinCohort": {"policy": "LowerPriority"},
    }
    parts: list[Doc] = [
        document("ResourceFlavor", "default", {}),
        *_queue("q", {"default": 2}, cohortName="c", preemption=preemption),
        *lender,
        _workload("low", "q", podset(2), holds="default"),
        _workload("top", "q", podset(3), priority=1),
    ]
    given = read_snapshot([as_document(d) for d in parts])
    made = plan(given.snapshot)
    assert verify(given.snapshot, made) == ()
    assert [victim.victim for victim in made.preempted] == (
        ["Workload/default/low"] if lends else []
    )
