"""The status of the objects of ``queuectl.dev/v1``, which the controller writes and does not read."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

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
