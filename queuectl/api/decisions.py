"""Planning cycles as answers."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from queuectl.api.events import EventView
from queuectl.api.schemas import View, moment
from queuectl.domain.decisions import StoredDecision
from queuectl.domain.plan import Proof


class DecisionView(View):
    """One planning cycle that changed something: its input and its decisions."""

    id: int
    at: datetime = Field(description="Of the state of things it was planned from.")
    epoch: int = Field(description="Of the leader.")
    cycle: int = Field(description="Counted within the epoch; history lines carry both.")
    revision: int = Field(description="Of the configuration.")
    nodes: int
    pending: int = Field(description="Gangs that waited when it began.")
    running: int = Field(description="Gangs that held capacity when it began.")
    started: int
    gpus_started: int
    evicted: int = Field(description="Taken down, but for those that were moved.")
    moved: int
    waiting: int = Field(description="Gangs that it left waiting.")
    reasons: dict[str, int] = Field(description="How many of these wait for which reason.")
    proof: Proof
    milliseconds: float = Field(description="From the state of things to the verified plan.")
    solver: dict[str, float] = Field(description="The solver's own counts.")


class DecisionPageView(View):
    items: list[DecisionView] = Field(description="The newest first.")
    next_before: int | None = Field(
        description="Give it as `before` for older ones; null = these were the last."
    )


class DecisionDetailView(DecisionView):
    steps: list[EventView] = Field(
        description="Its steps of workloads that you are allowed to see."
    )
    next_after: int | None = Field(description="Give it as `after` for more; null = that was all.")


def decision_view(decided: StoredDecision) -> DecisionView:
    """One record."""
    decision = decided.decision
    return DecisionView(
        id=decided.id,
        at=moment(decision.at),
        epoch=decided.epoch,
        cycle=decided.cycle,
        revision=decision.revision,
        nodes=decision.nodes,
        pending=decision.pending,
        running=decision.running,
        started=decision.started,
        gpus_started=decision.gpus,
        evicted=decision.evicted,
        moved=decision.moved,
        waiting=decision.waiting,
        reasons=dict(decision.reasons),
        proof=decision.proof,
        milliseconds=round(decision.seconds * 1000, 3),
        solver=dict(decision.stats),
    )
