"""More results and messages of peers, next to ours for the same objects."""

from __future__ import annotations

import pytest

from tests.planner.documents import RACK, TOPOLOGY, Doc, cluster_queue, flavor, nodes, planned
from tests.planner.documents import workload as gang


def test_the_first_gang_leaves_the_only_node_that_the_second_fits() -> None:
    """P3, #4474: Kueue places two pods of one GPU on the node with two, and the pod of two GPUs behind them is pending."""
    made = planned(
        TOPOLOGY,
        flavor(topology=True),
        cluster_queue("q", 100),
        nodes("a", 1, gpu=2),
        nodes("b", 1, gpu=1),
        nodes("c", 1, gpu=1),
        preferring_a_rack(gang("first", "q", 2, at=1)),
        preferring_a_rack(gang("second", "q", 1, 2, at=2)),
    )
    assert made.started == ["first", "second"]
    assert made.podset("first")["nodes"] == {"b0": 1, "c0": 1}
    assert made.podset("second")["nodes"] == {"a0": 1}


def preferring_a_rack(body: Doc) -> Doc:
    body["spec"]["podSets"][0]["topologyRequest"] = {"preferred": RACK}
    return body


@pytest.mark.parametrize(
    ("least", "message"),
    [(1, "even with the minimum of 1 pod: "), (2, "even with the minimum of 2 pods: ")],
)
def test_the_reason_is_for_the_smallest_part(least: int, message: str) -> None:
    waiting = gang("g", "q", 4, least=least)
    made = planned(flavor(), cluster_queue("q", 0, "all"), cluster_queue("other", 4, "all"), waiting,
                   gang("runs", "other", 4, flavor="default"))  # fmt: skip
    assert made.reason("g")["message"].startswith(message)
