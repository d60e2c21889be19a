"""The statuses of objects of ``queuectl.dev``: while they own the configuration, and while they do not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from queuectl.domain.errors import bounded
from queuectl.domain.queries import DocumentKey
from queuectl.domain.reasons import Code, Reason
from queuectl.objects.configuration.owners import FOLLOWED, Owner
from queuectl.objects.configuration.queue_config import inactive_reason, inadmissible_reason
from queuectl.objects.configuration.status_wire import (
    ACTIVE,
    READY,
    ObjectCondition,
    ObjectStatus,
    QueueStatus,
    seen_status,
)
from queuectl.ownership.observed import FollowedObject
from queuectl.ownership.status_form import (
    CLUSTER_QUEUE,
    LOCAL_QUEUE,
    Decision,
    GangsByQueue,
    QueuesNow,
    QueueUse,
    StatusCounts,
    acts,
    condition,
)

NOT_OWNER: Final = "NotOwner"


class _OwnForm:
    """The parts that both forms share."""

    def read(self, content: bytes) -> QueueStatus | None:
        return seen_status(content)

    def counts(self, use: QueueUse, queues: QueuesNow) -> StatusCounts:  # noqa: ARG002 - of StatusForm
        return GangsByQueue.of(use.entries)

    def body(self, kind: str, version: str, status: ObjectStatus) -> Mapping[str, Any]:  # noqa: ARG002 - of StatusForm
        body: Mapping[str, Any] = msgspec.to_builtins(status)
        return body


class OwnStatusForm(_OwnForm):
    """The conditions Ready and Active, and counts of gangs."""

    def status(
        self,
        followed: FollowedObject,
        had: QueueStatus | None,
        decision: Decision,
        queues: QueuesNow,
        now: float,
    ) -> ObjectStatus:
        key, generation = followed.key, followed.generation
        conditions = _Conditions(had, generation, now)
        ready = conditions.ready(key, decision, acting=acts(key, queues.config))
        if key.kind not in (CLUSTER_QUEUE, LOCAL_QUEUE):
            return ObjectStatus(generation, [ready])
        return QueueStatus(generation, [conditions.active(_inactive(key, queues)), ready])


class UnownedStatusForm(_OwnForm):
    """One condition: the object does not own the configuration."""

    def __init__(self, owner: Owner) -> None:
        """``owner``: of the configuration."""
        owners = {kind.group for kind in FOLLOWED[owner]}
        named = f"objects of {owners.pop()}" if owners else "the database"
        self._text = f"It has no effect: the owner of the configuration is {named}"

    def status(
        self,
        followed: FollowedObject,
        had: QueueStatus | None,
        decision: Decision,  # noqa: ARG002 - of StatusForm
        queues: QueuesNow,  # noqa: ARG002 - of StatusForm
        now: float,
    ) -> ObjectStatus:
        generation = followed.generation
        ready = condition(had, generation, now, READY, "False", NOT_OWNER, self._text)
        return ObjectStatus(generation, [ready])


@dataclass(frozen=True, slots=True)
class _Conditions:
    """The conditions of one object that owns configuration."""

    had: QueueStatus | None
    generation: int
    now: float

    def ready(self, key: DocumentKey, decision: Decision, *, acting: bool) -> ObjectCondition:
        had, generation, now = self.had, self.generation, self.now
        if key in decision.faults:
            text = bounded(decision.faults[key])
            return condition(had, generation, now, READY, "False", "Invalid", text)
        if key in decision.waiting:
            text = "The edit takes effect when no object was edited for a time"
            return condition(had, generation, now, READY, "Unknown", "Waiting", text)
        if not acting:
            text = "The controller has not taken it in"
            return condition(had, generation, now, READY, "Unknown", "Waiting", text)
        text = "The controller uses it"
        return condition(had, generation, now, READY, "True", "Accepted", text)

    def active(self, why: Reason | None) -> ObjectCondition:
        had, generation, now = self.had, self.generation, self.now
        if why is None:
            return condition(had, generation, now, ACTIVE, "True", "Active", "Gangs can start")
        code, text = str(why.code), bounded(why.message)
        return condition(had, generation, now, ACTIVE, "False", code, text)


def _inactive(key: DocumentKey, queues: QueuesNow) -> Reason | None:
    """Why no gang of a queue can start now; None if gangs can."""
    config = queues.config
    if not acts(key, config):
        return Reason(Code.MISCONFIGURED, "No valid version of it is in effect")
    if key.kind == CLUSTER_QUEUE:
        return inactive_reason(config.cluster_queues[key.name], config)
    why = inadmissible_reason(key.namespace, key.name, config, queues.labels(key.namespace))
    target = config.cluster_queue_of(key.namespace, key.name)
    if why is None and target is not None:
        why = inactive_reason(target, config)
    return why
