"""The reason of a refusal by sums names the best domain and the missing capacity."""

from __future__ import annotations

import pytest

from queuectl.planner import plan
from tests.planner.build import gang, holding, node, podset, world

RACKS = {"a1": "r1", "a2": "r1", "b1": "r2", "b2": "r2"}


@pytest.mark.parametrize(
    ("full", "missing", "best"),
    [
        (["a1", "b1"], "1 more pod", "at most 1 of 2 fits (r1), where 1 node lacks nvidia.com/gpu (0 free; team/runs-a1 holds 8 of 8); 16 nvidia.com/gpu are free in total"),
        (["a1", "a2", "b1"], "1 more pod", "at most 1 of 2 fits (r2), where 1 node lacks nvidia.com/gpu (0 free; team/runs-b1 holds 8 of 8); 8 nvidia.com/gpu are free in total"),
        (
            ["a1", "a2", "b1", "b2"],
            "2 pods",
            "no rack has room for any of them: 4 nodes lack nvidia.com/gpu (0 free; 4 gangs hold 32 of 32)",
        ),
    ],
    ids=["a node free in each rack", "one rack full", "both racks full"],
)  # fmt: skip
def test_a_refusal_names_the_best_rack(full: list[str], missing: str, best: str) -> None:
    nodes = [node(name, rack, gpu=8) for name, rack in RACKS.items()]
    held = [holding(gang(f"runs-{name}", podset(count=1, gpu=8)), {name: 1}) for name in full]
    pair = gang("w", podset(count=2, gpu=8, required="rack"))
    [refusal] = plan(world(nodes, [pair], held)).pending
    needed = f"room for {missing} × 8 nvidia.com/gpu is needed in one rack"
    assert refusal.reasons[0].message == f"{needed}; {best}"
