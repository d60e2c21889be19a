"""From a cycle to its record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from queuectl.domain.decisions import Decision
from queuectl.domain.gpus import summed
from queuectl.domain.ledger import EntryChange, State
from queuectl.domain.plan import Plan
from queuectl.domain.reasons import Code
from queuectl.domain.snapshot import Admitted, Snapshot


def record_of(
    snapshot: Snapshot, plan: Plan, changes: Iterable[EntryChange], seconds: float
) -> Decision | None:
    """The record of one cycle; None if no decision has a line of history.

    Args:
        snapshot: the plan was made from.
        plan: what was decided.
        changes: its committed changes.
        seconds: its duration.
    """
    noted = {c.after.uid: c.after for c in changes if c.note is not None}
    if not noted:
        return None
    asked = {p.workload.uid: p.workload for p in snapshot.pending if p.workload.uid in noted}
    started = [
        Admitted(asked[admission.uid], admission.placement).gpus
        for admission in plan.admitted
        if not admission.repaired
        and (entry := noted.get(admission.uid)) is not None
        and entry.state is State.STARTING
    ]
    leaving = [entry.reason.code for entry in noted.values() if entry.state is State.EVICTING]
    moved = leaving.count(Code.DEFRAGMENTED)
    return Decision(
        at=snapshot.now,
        revision=snapshot.config.revision,
        nodes=len(snapshot.fleet.nodes),
        pending=len(snapshot.pending),
        running=len(snapshot.admitted),
        started=len(started),
        gpus=summed(started),
        evicted=len(leaving) - moved,
        moved=moved,
        waiting=len(plan.pending),
        reasons=dict(sorted(Counter(str(r.reasons[0].code) for r in plan.pending).items())),
        proof=plan.proof,
        seconds=seconds,
        stats=dict(plan.stats),
    )
