"""The status of the objects of ``queuectl.dev/v1``, which the controller writes. It reads a status only to write what differs."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Final, Literal

import msgspec

from queuectl.domain.errors import MOST_REFUSAL
from queuectl.objects.configuration.bounds import keyed, states
from queuectl.objects.configuration.wire import Count, Strict


class ObjectCondition(Strict):
    type: Annotated[
        str,
        msgspec.Meta(
            description="Ready: the controller uses this generation. Active: gangs can start.",
            min_length=1,
            max_length=316,
        ),
    ]
    status: Annotated[
        Literal["True", "False", "Unknown"], msgspec.Meta(description="Whether it holds.")
    ]
    reason: Annotated[
        str, msgspec.Meta(description="A code for programs.", min_length=1, max_length=1024)
    ]
    message: Annotated[str, msgspec.Meta(description="A sentence for people.", max_length=32768)]
    last_transition_time: Annotated[
        str,
        msgspec.Meta(description="The time of the last change of status."),
        states(format="date-time"),
    ]
    observed_generation: (
        Annotated[Count, msgspec.Meta(description="metadata.generation of the object then.")] | None
    ) = None


class ObjectStatus(Strict):
    """The state of an object in the controller."""

    observed_generation: (
        Annotated[
            Count,
            msgspec.Meta(description="metadata.generation that the conditions are about."),
        ]
        | None
    ) = None
    conditions: (
        Annotated[
            list[ObjectCondition],
            msgspec.Meta(description="Ready and Active, by type.", max_length=16),
            keyed("type"),
        ]
        | None
    ) = None


class QueueStatus(ObjectStatus):
    """The same of a queue, with its gangs."""

    pending_workloads: (
        Annotated[Count, msgspec.Meta(description="Gangs that wait in the queue.")] | None
    ) = None
    reserving_workloads: (
        Annotated[
            Count,
            msgspec.Meta(description="Gangs that hold quota, those that run included."),
        ]
        | None
    ) = None
    admitted_workloads: (
        Annotated[Count, msgspec.Meta(description="Gangs that were started and have not ended.")]
        | None
    ) = None

    @property
    def counts(self) -> tuple[object, ...]:
        """The fields that change with the gangs of the queue, to compare."""
        return self.pending_workloads, self.reserving_workloads, self.admitted_workloads

    def keep_counts(self, earlier: QueueStatus) -> None:
        """State the counts of an earlier status."""
        self.pending_workloads = earlier.pending_workloads
        self.reserving_workloads = earlier.reserving_workloads
        self.admitted_workloads = earlier.admitted_workloads


# ---- The status that an object has

READY: Final = "Ready"
ACTIVE: Final = "Active"


class _SeenCondition(msgspec.Struct, rename="camel"):
    """As an API server can have it: any client with the right writes conditions."""

    type: str
    status: Literal["True", "False", "Unknown"]
    reason: str = ""
    message: str = ""
    last_transition_time: str = ""
    observed_generation: Count | None = None


class _SeenStatus(msgspec.Struct, rename="camel"):
    observed_generation: Count | None = None
    conditions: list[_SeenCondition] | None = None
    pending_workloads: Count | None = None
    reserving_workloads: Count | None = None
    admitted_workloads: Count | None = None


_seen = msgspec.json.Decoder(_SeenStatus).decode


def seen_status(content: bytes) -> QueueStatus | None:
    """The part of a status that the controller writes; None = it is absent, or has another form."""
    return seen_parts(content, (READY, ACTIVE))


def seen_parts(content: bytes, types: Collection[str]) -> QueueStatus | None:
    """Conditions of these types and counts of a status.

    Conditions of others, and those with longer messages than the controller writes, are left out, so it needs little memory.
    """
    if not content:
        return None
    try:
        status = _seen(content)
    except (msgspec.MsgspecError, RecursionError):
        return None
    own = {
        one.type: ObjectCondition(
            one.type,
            one.status,
            one.reason,
            one.message,
            one.last_transition_time,
            one.observed_generation,
        )
        for one in status.conditions or ()
        if one.type in types and max(len(one.message), len(one.reason)) <= MOST_REFUSAL
    }
    return QueueStatus(
        status.observed_generation,
        [own[name] for name in sorted(own)],
        status.pending_workloads,
        status.reserving_workloads,
        status.admitted_workloads,
    )
