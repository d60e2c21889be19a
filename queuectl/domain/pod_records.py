"""Pods as the watch reports them, as small frozen records: no more than planning and the protocol need."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from queuectl.domain.fleet import Toleration
from queuectl.domain.job_records import JobRecord, OwnerKey
from queuectl.domain.needs import PodNeeds
from queuectl.domain.quantity import NOTHING, Resources

DAEMON_SET: Final = "DaemonSet"
"""Kind of the owner of pods that run on each node."""


class PodPhase(StrEnum):
    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class Member:
    """The request of a pod with a queue label of its own.

    Attributes:
        job: the pod as a workload of its own. Its only podset has the name that pods of this shape have in a group.
        group: its group; empty = it is a workload of its own.
        parent: the set of gangs to which its group belongs; empty = none.
        total: the number of pods of its group; None without a valid number.
        fast: its group can start before all of them exist.
        retriable: a pod can follow it after it has failed.
        workload: uid of the workload for which it was released, "" before.
    """

    job: JobRecord
    group: str = ""
    parent: str = ""
    total: int | None = None
    fast: bool = False
    retriable: bool = True
    workload: str = ""


@dataclass(frozen=True, slots=True)
class PodRecord:
    """Any pod of the cluster; managed ones carry an attempt.

    Attributes:
        owner: uid of the controller owner reference, "" if none. If that is a child of a workload, uid of the workload.
        owner_kind: kind in that reference. Both are a claim of the creator of the pod; see ``owned_by``.
        maker: uid of the pod that created it for the workload, "" if none did.
        pin: hostname its nodeSelector names, None if none. A pinned pod counts on that node before it is bound.
        node: node it is bound to, None before.
        gated: it still carries the gate ``queuectl.dev/placement``.
        attempt: label; 0 when absent.
        podset: label; "" when absent.
        rank: from the kind's rank label, None if there is none.
        unschedulable: kube-scheduler reports so now (PodScheduled=False, reason Unschedulable). Since when is not read: the
            condition keeps the time at which the API server put it on the gated pod.
        gates: its other scheduling gates. The patch that drops our gate must repeat them, and
        tolerations: its tolerations, only while ``gated``.
        scheduler: the name of the scheduler that is to bind it; "" = the default, or it is bound.
        needs: what its containers request; only while ``gated``, to compare it with its template.
        started_at: unix seconds at which its node took it on, None before; in whole seconds.
        checkpoint_at: annotation, unix seconds; None if absent or unreadable.
        restarts: of all its containers together.
        guaranteed: its QoS class is Guaranteed.
        preempt_requested: annotation: the last deadline of a notice, "" if none.
        preempt_ready: annotation: it can be stopped at once.
        workload: uid of the workload for which it was made or released; of pods with a rank only, "" for others.
        member: of a pod with a queue label that admission took in; None for all others. The mirror then sets its owner.
        status_reason: why it does not run, in one word as ``kubectl get pods`` shows it; "" where its status names no reason.
    """

    namespace: str
    name: str
    uid: str
    version: int
    requests: Resources = NOTHING
    owner: str = ""
    pin: str | None = None
    node: str | None = None
    gated: bool = False
    attempt: int = 0
    podset: str = ""
    rank: int | None = None
    phase: PodPhase = PodPhase.PENDING
    ready: bool = False
    terminating: bool = False
    unschedulable: bool = False
    gates: tuple[str, ...] = ()
    scheduler: str = ""
    tolerations: tuple[Toleration, ...] = ()
    needs: PodNeeds | None = field(default=None, compare=False, repr=False)
    started_at: float | None = None
    checkpoint_at: float | None = None
    owner_kind: str = ""
    maker: str = ""
    restarts: int = 0
    status_reason: str = ""
    guaranteed: bool = False
    preempt_requested: str = ""
    preempt_ready: bool = False
    workload: str = ""
    member: Member | None = field(default=None, repr=False)

    @property
    def owned_by(self) -> OwnerKey:
        """The object it names as its controller, which can only be one of its own namespace."""
        return OwnerKey(self.owner_kind, self.namespace, self.owner)

    @property
    def terminal(self) -> bool:
        """Whether it will never use its node again."""
        return self.phase in (PodPhase.SUCCEEDED, PodPhase.FAILED)
