"""Reads the Workloads of a Kueue that was shut down, from the server.

Unlike a file of a user, an invalid Workload is not refused: it is ignored.
"""

from __future__ import annotations

import msgspec

from queuectl.domain.jobs import PriorAdmission, PriorPodSet
from queuectl.objects.files.assignments import AdmissionStatus, read_admission
from queuectl.objects.kinds.common import holds
from queuectl.objects.kubernetes.wire import Condition, Meta, Wire
from queuectl.objects.times import time_or_none


class _Spec(Wire):
    active: bool | None = None


class _Status(Wire):
    conditions: list[Condition] | None = None
    admission: AdmissionStatus | None = None


class WireLeftWorkload(Wire):
    metadata: Meta = msgspec.field(default_factory=Meta)
    spec: _Spec | None = None
    status: _Status | None = None


def read_prior_admission(wire: WireLeftWorkload) -> PriorAdmission | None:
    """The gang of the job that controls the Workload; None if it is finished or has no controller.

    Raises:
        RequestError: its admission contradicts itself.
    """
    owner = next((o for o in wire.metadata.owner_references or () if o.controller), None)
    status = wire.status or _Status()
    conditions = status.conditions or []
    if owner is None or not owner.uid or holds(conditions, "Finished"):
        return None
    assigned = read_admission(status.admission) if status.admission is not None else {}
    return PriorAdmission(
        uid=owner.uid,
        kind=owner.kind,
        namespace=wire.metadata.namespace or "default",
        name=owner.name,
        queued_at=time_or_none(wire.metadata.creation_timestamp),
        active=wire.spec is None or wire.spec.active is not False,
        cluster_queue=status.admission.cluster_queue if status.admission is not None else "",
        admitted_at=next(
            (
                time_or_none(c.last_transition_time)
                for c in conditions
                if c.type == "Admitted" and c.status == "True"
            ),
            None,
        ),
        podsets={
            name: PriorPodSet(dict(one.flavors), one.hosts or ()) for name, one in assigned.items()
        },
    )
