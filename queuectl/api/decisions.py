"""Planning cycles as answers."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from queuectl.api.feed import EventView
from queuectl.api.schemas import View
from queuectl.domain.gpus import rounded
from queuectl.domain.ledger import StoredDecision
from queuectl.domain.plan import Proof
from queuectl.domain.words import utc


class DecisionView(View):
    """One planning cycle that changed something: its input and its decisions."""

    id: int
    at: datetime = Field(description="Time of the snapshot.")
    epoch: int = Field(description="Epoch of the leader.")
    cycle: int = Field(
        description="Number of the cycle in this epoch. History lines have both numbers."
    )
    revision: int = Field(description="Revision of the configuration.")
    nodes: int
    pending: int = Field(description="Pending gangs in the snapshot.")
    running: int = Field(description="Gangs that hold capacity in the snapshot.")
    started: int
    gpus_started: float
    evicted: int = Field(description="Evicted gangs, without moved gangs.")
    moved: int
    waiting: int = Field(description="Gangs that stay pending.")
    reasons: dict[str, int] = Field(description="Number of gangs that stay pending by reason.")
    proof: Proof
    milliseconds: float = Field(description="Time from the snapshot to the verified plan.")
    solver: dict[str, float] = Field(description="Counters of the solver.")


class DecisionPageView(View):
    items: list[DecisionView] = Field(description="The newest first.")
    next_before: int | None = Field(
        description="Value of `before` for the next page; null = this is the last page."
    )


class DecisionDetailView(DecisionView):
    steps: list[EventView] = Field(
        description="Its steps of workloads that you are allowed to see."
    )
    next_after: int | None = Field(
        description="Value of `after` for the next page; null = this is the last page."
    )


def decision_view(decided: StoredDecision) -> DecisionView:
    """One record."""
    decision = decided.decision
    return DecisionView(
        id=decided.id,
        at=utc(decision.at),
        epoch=decided.epoch,
        cycle=decided.cycle,
        revision=decision.revision,
        nodes=decision.nodes,
        pending=decision.pending,
        running=decision.running,
        started=decision.started,
        gpus_started=rounded(decision.gpus),
        evicted=decision.evicted,
        moved=decision.moved,
        waiting=decision.waiting,
        reasons=dict(decision.reasons),
        proof=decision.proof,
        milliseconds=round(decision.seconds * 1000, 3),
        solver=dict(decision.stats),
    )
