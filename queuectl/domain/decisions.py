"""The record of each planning cycle that changed something, and of each plan that the verifier refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from queuectl.domain.gpus import Gpus
from queuectl.domain.plan import Proof

# ---- Planning cycles

KEPT_SECONDS: Final = 7 * 86400.0
"""How long records are kept; the history of each workload is kept longer."""


@dataclass(frozen=True, slots=True)
class CycleDecision:
    """One cycle.

    Attributes:
        at: unix seconds of the snapshot it was planned from.
        revision: of the configuration.
        nodes, pending, running: what there was: nodes, gangs that waited, gangs that held capacity.
        started, gpus: gangs that it started, and the GPUs they hold.
        evicted, moved: gangs that it evicted; ``moved`` are those that have another placement already.
        waiting: gangs that it left waiting.
        reasons: of these, how many wait for which reason.
        proof: how sure all of it is.
        seconds: from the snapshot to the verified plan, by the clock.
        stats: the solver's own counts.
    """

    at: float
    revision: int
    nodes: int
    pending: int
    running: int
    started: int
    gpus: Gpus
    evicted: int
    moved: int
    waiting: int
    reasons: Mapping[str, int]
    proof: Proof
    seconds: float
    stats: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoredDecision:
    """A record as it is stored.

    Attributes:
        id: increases with time, with gaps.
        epoch, cycle: of the leader, and counted within it.
        after, upto: its history lines have larger ids than ``after``, up to ``upto`` inclusive.
    """

    id: int
    epoch: int
    cycle: int
    after: int
    upto: int
    decision: CycleDecision


# ---- Refused plans

KEPT_DECISIONS: Final = 20
"""How many are kept: the newest."""
KEPT_BYTES: Final = 50 * 1024 * 1024
"""Of all that are kept together. A larger one is not kept at all."""


@dataclass(frozen=True, slots=True)
class RefusedPlan:
    """The description of a refused plan.

    Attributes:
        id: rises with time; 0 = not written yet.
        at: unix seconds of the snapshot.
        epoch: of the leader.
        cycle: within the epoch.
        rules: names of the rules that the plan broke, each once, sorted.
        size: bytes of the file.
    """

    id: int
    at: float
    epoch: int
    cycle: int
    rules: tuple[str, ...]
    size: int
