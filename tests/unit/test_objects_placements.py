"""Running pods without a known node: each is placed on a node that fits, so that the free capacity is right in sum."""

from __future__ import annotations

from typing import Any

import pytest

from queuectl.domain.quantity import GPU
from queuectl.offline.inputs import SnapshotInput
from tests.unit.test_objects_snapshots import (
    RACK,
    admission,
    load,
    on_hosts,
    pod,
    workload,
)

WARNING = "f.yaml: document 7 (Workload/w): podset main: "


def held(given: SnapshotInput, name: str = "w") -> dict[str, int]:
    """Pods of one gang on each node."""
    (gang,) = [a for a in given.snapshot.admitted if a.workload.name == name]
    return gang.placement.podsets[0].by_node


def free(given: SnapshotInput, rack: str) -> int:
    """Unused GPUs in one rack."""
    nodes = {n.name: n for n in given.snapshot.fleet.nodes if n.labels.get(RACK) == rack}
    total = sum(n.allocatable[GPU] for n in nodes.values())
    for gang in given.snapshot.admitted:
        used = gang.placement.use(gang.workload)
        total -= sum(amount[GPU] for name, amount in used.items() if name in nodes)
    return total - sum(a[GPU] for name, a in given.snapshot.other_pods.items() if name in nodes)


IN_R2: list[dict[str, Any]] = [
    {"levels": [RACK], "domains": [{"values": ["r2"], "count": 2}]},
    {
        "levels": [RACK],
        "slices": [
            {
                "domainCount": 1,
                "valuesPerLevel": [{"universal": "r2"}],
                "podCounts": {"universal": 2},
            }
        ],
    },
]


@pytest.mark.parametrize("assignment", IN_R2, ids=["domains", "slices"])
def test_an_assignment_that_ends_at_the_rack_uses_that_rack(assignment: dict[str, Any]) -> None:
    empty = load()
    given = load(workload(status=admission(**assignment)))
    assert free(given, "r2") == free(empty, "r2") - 16
    assert free(given, "r1") == free(empty, "r1")
    seats = sorted(held(given))
    text = f"2 pods have no stated nodes; assumed on {', '.join(seats)}"
    assert given.warnings == (WARNING + text,)


def test_an_admission_that_names_no_domain_uses_no_node() -> None:
    given = load(workload(status=admission()))
    assert held(given) == {"(unknown node)": 2}
    assert given.warnings == (WARNING + "2 pods without a node in the input",)


def test_a_gang_with_billions_of_pods_that_the_input_does_not_show_uses_nothing() -> None:
    count = 2_000_000_000
    status = admission()
    status["admission"]["podSetAssignments"][0]["count"] = count
    given = load(workload(count=count, status=status), workload("small", status=admission()))
    assert (held(given), held(given, "small")) == ({}, {"(unknown node)": 2})
    assert [gang.lost for gang in given.snapshot.admitted] == [(), ()]
    assert given.warnings[-1] == (
        "f.yaml: document 7 (Workload/w): 2000000000 pods without a node in the input: they use no quota"
    )


def test_no_pod_is_placed_on_capacity_that_others_use() -> None:
    """Stated hosts and other pods are first, at any position in the file."""
    in_r1 = {"levels": [RACK], "domains": [{"values": ["r1"], "count": 2}]}
    for taken, left in (("r1-a", "r1-b"), ("r1-b", "r1-a")):
        given = load(workload(status=admission(**in_r1)), pod("stranger", taken))
        assert held(given) == {left: 1, "(unknown node)": 1}
    given = load(
        workload(status=admission(**in_r1)), workload("other", status=on_hosts(r1_a=1, r1_b=1))
    )
    assert held(given) == {"(unknown node)": 2}


def test_a_pod_that_fits_on_no_node_uses_no_node_and_gives_a_warning() -> None:
    names = ["r1-a", "r1-b"]
    in_r1 = {"levels": [RACK], "domains": [{"values": ["r1"], "count": 2}]}
    full = [pod(f"p{i}", name) for i, name in enumerate(names)]
    given = load(workload(status=admission(**in_r1)), *full)
    assert held(given) == {"(unknown node)": 2}
    assert given.warnings == (WARNING + "2 pods without a node in the input",)


def test_the_pods_that_are_given_keep_their_seats() -> None:
    in_r2 = workload(status=admission(**IN_R2[0]))
    mine = pod("w-0", "r2-b", metadata={"annotations": {"kueue.x-k8s.io/workload": "w"}})
    given = load(in_r2, mine)
    assert held(given)["r2-b"] == 1
    assert sum(held(given).values()) == 2


def test_the_same_file_the_same_seats() -> None:
    bodies = [workload(name, status=admission(**IN_R2[0])) for name in ("w", "v")]
    assert load(*bodies).snapshot.admitted == load(*bodies).snapshot.admitted


def test_values_that_do_not_match_the_levels_are_a_mistake() -> None:
    broken = {"levels": ["a", "b", RACK], "domains": [{"values": ["x", "r1"], "count": 2}]}
    (ignored,) = load(workload(status=admission(**broken))).account.ignored
    path = "status.admission.podSetAssignments[0].topologyAssignment"
    assert ignored.reason.endswith(f"{path}.domains[0].values: not as many as levels")
