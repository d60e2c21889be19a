"""What a refusal by counting says: the freest domain and what it holds, or why none holds anything."""

from __future__ import annotations

import pytest

from queuectl.planner import plan
from tests.planner.build import gang, holding, node, podset, world

RACKS = {"a1": "r1", "a2": "r1", "b1": "r2", "b2": "r2"}


@pytest.mark.parametrize(
    ("full", "says"),
    [
        (["a1", "b1"], "the freest rack, r1, has room for 1; 16 nvidia.com/gpu are free in all"),
        (["a1", "a2", "b1"], "the freest rack, r2, has room for 1; 8 nvidia.com/gpu are free in all"),
        (
            ["a1", "a2", "b1", "b2"],
            "no rack has room for any part of it on the 4 nodes it may use; 0 nvidia.com/gpu are free in all",
        ),
    ],
    ids=["a node free in each rack", "one rack full", "both racks full"],
)  # fmt: skip
def test_a_refusal_names_the_freest_rack(full: list[str], says: str) -> None:
    nodes = [node(name, rack, gpu=8) for name, rack in RACKS.items()]
    held = [holding(gang(f"runs-{name}", podset(count=1, gpu=8)), {name: 1}) for name in full]
    pair = gang("w", podset(count=2, gpu=8, required="rack"))
    [refusal] = plan(world(nodes, [pair], held)).pending
    asked = "needs 2 pods × 8 nvidia.com/gpu in one rack"
    assert refusal.reasons[0].message == f"{asked}; {says}"
