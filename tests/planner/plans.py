"""Plans in short form, and the rules that they break by the verifier."""

from __future__ import annotations

from typing import Any

from queuectl.domain.plan import Admission, Plan, Refusal
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.snapshot import CapacityLease, Snapshot
from queuectl.domain.workload import Placement, Workload
from queuectl.planner.verify import PlanRule, verify
from tests.planner.build import NOW, node, placed

REASON = (Reason(Code.TOPOLOGY_PLACEMENT_FAILED, "no rack has 2 free nodes"),)
NODES = [node(f"{r}{i}", r, gpu=8) for r in "ab" for i in range(2)]


def rules(snapshot: Snapshot, plan: Plan) -> set[PlanRule]:
    return {v.rule for v in verify(snapshot, plan)}


def start(workload: Workload, *nodes: dict[str, int], **kw: Any) -> Plan:
    return Plan(admitted=(Admission(workload.uid, placed(workload, *nodes, **kw)),))


def lease(placement: Placement, *victims: str) -> CapacityLease:
    return CapacityLease(placement, victims, NOW, NOW + 600)


def waits(workload: Workload, holds: CapacityLease | None = None) -> Refusal:
    return Refusal(workload.uid, REASON, holds)
