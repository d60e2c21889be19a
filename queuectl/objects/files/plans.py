"""A Plan as a document for people and scripts: the output of ``queuectl plan``.

Its schema is docs/reference/plan-schema.json. Workloads are named ``namespace/name``, nodes by ``metadata.name``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from queuectl.domain.diagnosis import Diagnosis, Obstacle, SuggestedFix
from queuectl.domain.gpus import as_number
from queuectl.domain.ignored import Ignored
from queuectl.domain.plan import Cost, Eviction, Plan, Preemption, Proof, Refusal, ScheduledGang
from queuectl.domain.reasons import Reason
from queuectl.domain.snapshot import Snapshot
from queuectl.domain.words import format_time
from queuectl.domain.workload import Placement, Workload


def plan_document(
    snapshot: Snapshot,
    plan: Plan,
    ignored: Iterable[Ignored] = (),
    warnings: Iterable[str] = (),
    diagnoses: Iterable[Diagnosis] = (),
    evicted: Iterable[Eviction] = (),
    mig: Iterable[tuple[str, SuggestedFix]] | None = None,
    documents: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """Plain JSON values.

    Args:
        snapshot: the input of the plan.
        plan: the decisions.
        ignored: documents without effect on the plan.
        warnings: fields that are not supported. Warnings of the plan are added.
        diagnoses: of pending gangs, if requested.
        evicted: gangs that are evicted independently of the plan; they precede its own evictions.
        mig: gangs by uid, and the nodes to reconfigure for them; None = this was not requested.
        documents: the number of documents of each use; None or empty = the input has none.
    """
    diagnosed = {diagnosis.uid: diagnosis for diagnosis in diagnoses}
    by_uid: dict[str, Workload] = {p.workload.uid: p.workload for p in snapshot.pending}
    by_uid.update({a.workload.uid: a.workload for a in snapshot.admitted})
    planned = {each.uid: each for each in plan.planned}
    moves = {"moves": _moves(plan, snapshot)} if plan.moved or snapshot.make_room else {}
    return {
        "admitted": [
            {
                "workload": by_uid[admission.uid].ref,
                "kind": by_uid[admission.uid].kind,
                "podSets": _podsets(admission.placement),
                "proof": admission.proof.value,
            }
            for admission in plan.admitted
        ],
        "preempted": [
            *_victims(plan.preempted, by_uid),
            *_evicted((*evicted, *plan.evicted), by_uid),
        ],
        "spared": _victims(plan.spared, by_uid),
        **moves,
        **({"mig": [_mig(by_uid[uid], fix) for uid, fix in mig]} if mig is not None else {}),
        **({"reservations": _reservations(plan, snapshot)} if snapshot.reservations else {}),
        "pending": [
            _pending(refusal, by_uid, diagnosed.get(refusal.uid, Diagnosis(refusal.uid)))
            | _planned_start(planned.get(refusal.uid))
            for refusal in plan.pending
        ],
        "proof": plan.proof.value,
        "ignored": [asdict(each) for each in ignored],
        **({"documents": dict(documents)} if documents else {}),
        "warnings": [*warnings, *_uneven(plan, by_uid)],
        "stats": {**plan.stats, "diagnosed": len(diagnosed)},
    }


def _uneven(plan: Plan, by_uid: Mapping[str, Workload]) -> list[str]:
    return [
        f"{by_uid[uid].ref}: podset {podset} is to be balanced, but its pods are spread unevenly"
        for uid, podset in plan.uneven
    ]


def _reservations(plan: Plan, snapshot: Snapshot) -> list[dict[str, Any]]:
    """Each Reservation: its current or next occurrence, its nodes, and the reason why it does not have all."""
    known = {state.name: state for state in plan.reserved}
    shown = []
    for each in snapshot.reservations:
        times = {
            "name": each.name,
            "from": format_time(each.begins),
            "until": format_time(each.ends),
        }
        state = known.get(each.name)
        named = dict.fromkeys(each.reservation.nodes)
        if state is None:
            shown.append({**times, "nodes": named})
            continue
        nodes = named or dict(state.nodes)
        found = {"nodes": nodes} if nodes else {}
        why = {"reason": state.reason} if state.reason else {}
        later = {} if state.earliest is None else {"earliest": format_time(state.earliest)}
        shown.append({**times, **found, **why, **later})
    return shown


def _podsets(placement: Placement) -> list[dict[str, Any]]:
    podsets = []
    for placed in placement.podsets:
        nodes: dict[str, int] = {}
        for node, count in placed.nodes:
            nodes[node] = nodes.get(node, 0) + count
        podset: dict[str, Any] = {
            "name": placed.podset,
            "flavors": _flavors(placed.flavors),
            "nodes": nodes,
        }
        if placed.pods is not None:
            podset["count"] = placed.pods
        if placed.shares:
            podset["shares"] = [
                {"count": share.pods, "flavors": _flavors(share.flavors)} for share in placed.shares
            ]
        podsets.append(podset)
    return podsets


def _flavors(flavors: Mapping[str, str]) -> dict[str, str]:
    return dict(sorted(flavors.items()))


def _victims(victims: Iterable[Preemption], by_uid: Mapping[str, Workload]) -> list[dict[str, Any]]:
    """Victim, preemptor, rule and lost work of each eviction."""
    return [
        {
            "workload": by_uid[victim.victim].ref,
            "for": by_uid[victim.preemptor].ref,
            "reason": victim.reason,
            "cost": _cost(victim.cost),
            "proof": victim.proof.value,
        }
        for victim in victims
    ]


def _evicted(evicted: Iterable[Eviction], by_uid: Mapping[str, Workload]) -> list[dict[str, Any]]:
    """Gangs that are evicted for no other gang, without a cost."""
    return [
        {
            "workload": by_uid[eviction.uid].ref,
            "for": None,
            "reason": eviction.code.value,
            "cost": None,
            "proof": Proof.OPTIMAL.value,
        }
        for eviction in evicted
    ]


def _moves(plan: Plan, snapshot: Snapshot) -> list[dict[str, Any]]:
    """Migrated gang, old and new nodes, preemptor and lost work of each migration."""
    running = {a.workload.uid: a for a in snapshot.admitted}
    waiting = {p.workload.uid: p.workload for p in snapshot.pending}
    return [
        {
            "workload": running[move.uid].workload.ref,
            "kind": running[move.uid].workload.kind,
            "for": waiting[move.beneficiary].ref,
            "from": _podsets(running[move.uid].placement),
            "to": _podsets(move.placement),
            "cost": _cost(move.cost),
            "proof": move.proof.value,
        }
        for move in plan.moved
    ]


def _mig(workload: Workload, fix: SuggestedFix) -> dict[str, Any]:
    """The nodes to reconfigure, the gangs that migrate first, and the gang that starts then."""
    details = fix.details
    return {
        "for": workload.ref,
        "nodes": list(details["nodes"]),
        "gangs": list(details.get("gangs", ())),
        "least": fix.least,
    }


def _cost(cost: Cost) -> dict[str, int | float]:
    return {"priority": cost.priority, "lostWork": cost.lost_work, "gpus": as_number(cost.gpus)}


def _pending(
    refusal: Refusal, by_uid: Mapping[str, Workload], diagnosis: Diagnosis
) -> dict[str, Any]:
    written: dict[str, Any] = {
        "workload": by_uid[refusal.uid].ref,
        "reasons": [_reason(reason, by_uid) for reason in refusal.reasons],
        "conflict": [_obstacle(obstacle) for obstacle in diagnosis.conflict],
        "conflictProof": diagnosis.proof.value,
        "suggestedFixes": [_suggested_fix(fix) for fix in diagnosis.suggested_fixes],
        "proof": refusal.proof.value,
    }
    if refusal.lease is not None:
        written["podSets"] = _podsets(refusal.lease.placement)
    return written


def _planned_start(planned: ScheduledGang | None) -> dict[str, Any]:
    """The planned start of a pending gang, if it has one."""
    if planned is None or planned.start.promised is None:
        return {}
    written: dict[str, Any] = {
        "at": format_time(planned.start.at),
        "podSets": _podsets(planned.start.placement),
    }
    if planned.slip is not None:
        written["movedBy"] = planned.slip.value
    return {"plannedStart": written}


def _obstacle(obstacle: Obstacle) -> dict[str, Any]:
    return {
        "code": obstacle.limit.value,
        "message": obstacle.message,
        "details": dict(obstacle.details),
    }


def _suggested_fix(fix: SuggestedFix) -> dict[str, Any]:
    return {
        "code": fix.remedy.value,
        "message": fix.message,
        "least": fix.least,
        "details": dict(fix.details),
    }


def _name(uid: str, by_uid: Mapping[str, Workload]) -> str:
    return by_uid[uid].ref if uid in by_uid else uid


def _reason(reason: Reason, by_uid: Mapping[str, Workload]) -> dict[str, Any]:
    """The name of a victim. The planner uses its uid."""
    details = dict(reason.details)
    if "victims" in details:
        details["victims"] = sorted(_name(uid, by_uid) for uid in details["victims"])
    return {"code": reason.code.value, "message": reason.message, "details": details}
