"""The decisions of one cycle. A plan changes nothing by itself: it is verified, committed, then actuated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fractions import Fraction
from typing import Final

from queuectl.domain.reasons import Code, Reason
from queuectl.domain.reservations import ReservationState
from queuectl.domain.snapshot import CapacityLease, PlannedStart
from queuectl.domain.workload import Placement


class Proof(StrEnum):
    """How sure an answer is: proved, good but perhaps not the best, or not known at all."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Admission:
    """Start this gang now, here. ``repaired``: it already runs; only slots on lost nodes moved."""

    uid: str
    placement: Placement
    repaired: bool = False
    proof: Proof = Proof.OPTIMAL


@dataclass(frozen=True, slots=True)
class Cost:
    """The loss of evicting one gang.

    Attributes:
        priority: of the victim.
        lost_work: GPU-seconds since its last checkpoint (or start), times utilization, plus restart cost.
        gpus: GPUs freed.
        further_gpus: GPUs that pods without GPUs count as in its lost work.
    """

    priority: int
    lost_work: int
    gpus: Fraction
    further_gpus: float = 0.0

    @property
    def size(self) -> float:
        """GPUs whose work is lost with each second that it runs on."""
        return float(self.gpus) + self.further_gpus


class PreemptionReason(StrEnum):
    """By which rule a victim was taken: Kueue's names, and those for queuectl's policies."""

    IN_CLUSTER_QUEUE = "InClusterQueue"
    IN_COHORT_RECLAMATION = "InCohortReclamation"
    IN_COHORT_RECLAIM_WHILE_BORROWING = "InCohortReclaimWhileBorrowing"
    IN_COHORT_FAIR_SHARING = "InCohortFairSharing"
    IN_COHORT_ROOM = "InCohortRoom"  # within nominal quota, but on nodes that the other gang needs
    TIME_SLICE = "TimeSlice"  # it ran for the time slice of its ClusterQueue, and another one waits
    IDLE = "IdleReclaim"  # it did not use its GPUs, and its queue lets such gangs go for others
    BY_HAND = "ByHand"  # a user's command


@dataclass(frozen=True, slots=True)
class Preemption:
    """Evict ``victim`` so that ``preemptor`` fits. Committed together with the preemptor's lease."""

    victim: str
    preemptor: str
    cost: Cost
    reason: str = PreemptionReason.IN_CLUSTER_QUEUE.value
    proof: Proof = Proof.OPTIMAL  # that no legal victims lose less


@dataclass(frozen=True, slots=True)
class Move:
    """Evict ``uid`` so that ``beneficiary`` fits; unlike a victim it has a place to start again at once.

    Attributes:
        placement: where it will start again; leased to it in the same commit.
        cost: of the restart.
        proof: OPTIMAL when no cheaper set of moves helps.
    """

    uid: str
    beneficiary: str
    placement: Placement
    cost: Cost
    proof: Proof = Proof.OPTIMAL


@dataclass(frozen=True, slots=True)
class Eviction:
    """Evict a gang for its own reason, e.g. nodes lost and no repair possible."""

    uid: str
    code: Code
    message: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """Not now, and why. ``reasons`` is never empty; the first is the main one.

    ``lease`` is set when the gang waits for victims or admission checks: its planned placement, new or kept from the snapshot.
    ``checks``: names of all checks that the placement needs, if some are not ready.
    """

    uid: str
    reasons: tuple[Reason, ...]
    lease: CapacityLease | None = None
    proof: Proof = Proof.OPTIMAL
    checks: tuple[str, ...] = ()


class SlipCause(StrEnum):
    """Why a planned start moved to a later time."""

    OVERRUN = "Overrun"  # a gang ran longer than expected
    LOST_NODE = "LostNode"  # a node failed, or pods that no queue manages use it
    HIGHER_PRIORITY = "HigherPriority"  # a gang that is before it in queue order now
    RECLAIM = "Reclaim"  # another ClusterQueue uses quota that it would have borrowed
    CONFIGURATION = "Configuration"  # queues, quotas, Reservations or other rules changed


SLIPS: Final[Mapping[SlipCause, str]] = {
    SlipCause.OVERRUN: "a gang runs longer than expected",
    SlipCause.LOST_NODE: "a node that it was to use is lost",
    SlipCause.HIGHER_PRIORITY: "a gang before it in queue order uses the room",
    SlipCause.RECLAIM: "another ClusterQueue uses its own quota",
    SlipCause.CONFIGURATION: "the configuration has changed",
}
"""Each cause in words."""


@dataclass(frozen=True, slots=True)
class ScheduledGang:
    """A gang that waits, and its planned start.

    Attributes:
        slip: why it is later than the last plan had it; None = it is not.
        is_current: False: this plan finds no time. ``start`` is the last plan's. Its ``promised`` is None if ``slip`` names the cause.
    """

    uid: str
    start: PlannedStart
    slip: SlipCause | None = None
    is_current: bool = True


@dataclass(frozen=True, slots=True)
class Plan:
    """Each pending gang of the snapshot is in exactly one of ``admitted`` and ``pending``, in queue order.

    Running gangs that lost nodes stand before them: in ``admitted`` if their lost pods move now, in ``pending`` with a lease
    if they wait for the room that leaving gangs or victims make.

    ``returning``: uids of gangs on the move whose new place (``Admitted.lease``) is kept for them.

    ``uneven``: (uid, podset) of the placements, leases included, that were to be balanced and are not.

    ``spared``: the gangs with idle GPUs that would be evicted, and for which gangs, if their queue had no dry run.
    The preemptors are pending and stay so.

    ``planned``: planned starts, in queue order. Their gangs are pending.
    """

    admitted: tuple[Admission, ...] = ()
    preempted: tuple[Preemption, ...] = ()
    moved: tuple[Move, ...] = ()
    returning: tuple[str, ...] = ()
    evicted: tuple[Eviction, ...] = ()
    pending: tuple[Refusal, ...] = ()
    proof: Proof = Proof.OPTIMAL
    cut: bool = False  # the wall-clock safety net ended a solve: discard
    stats: Mapping[str, float] = field(default_factory=dict)
    alarms: tuple[str, ...] = ()  # what broke in the solver, as sentences: a defect each
    uneven: tuple[tuple[str, str], ...] = ()
    spared: tuple[Preemption, ...] = ()
    planned: tuple[ScheduledGang, ...] = ()
    reserved: tuple[ReservationState, ...] = ()

    def without(self, uids: Collection[str]) -> Plan:
        """The same plan without these pending gangs, and without the evictions and moves for them."""
        moves = any(move.beneficiary in uids for move in self.moved)
        return replace(
            self,
            admitted=tuple(one for one in self.admitted if one.uid not in uids),
            preempted=tuple(one for one in self.preempted if one.preemptor not in uids),
            moved=() if moves else self.moved,
            pending=tuple(one for one in self.pending if one.uid not in uids),
            uneven=tuple(one for one in self.uneven if one[0] not in uids),
            spared=tuple(one for one in self.spared if one.preemptor not in uids),
            planned=tuple(one for one in self.planned if one.uid not in uids),
        )

    @property
    def waiting_by_code(self) -> dict[str, int]:
        """How many gangs wait for which reason, in the order of the codes."""
        counts = Counter([refusal.reasons[0].code for refusal in self.pending])
        return {str(code): count for code, count in sorted(counts.items())}
