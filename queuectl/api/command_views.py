"""Commands in the API: request bodies, results and previews; see api/schemas.py."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final, Literal, Self

from pydantic import AwareDatetime, Field, StringConstraints, model_validator

from queuectl.api.params import NAME
from queuectl.api.schemas import View, maybe
from queuectl.domain.checks import CheckReport, CheckState, PodSetUpdate
from queuectl.domain.commands import (
    EVICTING,
    HIGHEST_PRIORITY,
    LOWEST_PRIORITY,
    Action,
    Command,
    CommandState,
)
from queuectl.domain.fleet import Effect, Toleration
from queuectl.domain.gpus import rounded
from queuectl.domain.identity import Caller
from queuectl.domain.ledger import Entry
from queuectl.domain.redaction import ANOTHER_TEAM, shown_uid
from queuectl.domain.what_if import Preview
from queuectl.domain.words import utc


class CommandBody(View):
    """The optional fields of a command."""

    by: str | None = Field(
        default=None,
        min_length=1,
        max_length=200,
        description="The user, for the history. Used only without authentication; otherwise it is the caller.",
    )
    why: str | None = Field(
        default=None, min_length=1, max_length=500, description="The reason, for the history."
    )


Attempt = Annotated[
    int | None,
    Field(
        ge=0,
        le=2**53,
        description="Refuse the workload if its number of starts is another one; null = any.",
    ),
]


class EvictingBody(CommandBody):
    """The body of a command that evicts a running gang."""

    attempt: Attempt = None


class PriorityBody(CommandBody):
    priority: int | None = Field(
        ge=LOWEST_PRIORITY,
        le=HIGHEST_PRIORITY,
        description="Valid until it is set again; null = the priority of its classes, from the time when it is pending.",
    )
    until: AwareDatetime | None = Field(
        default=None,
        description="Time from which the priority of its classes counts again; null = no end.",
    )


class TolerationBody(View):
    key: str = Field(default="", max_length=317)
    operator: Literal["Exists", "Equal"] = "Equal"
    value: str = Field(default="", max_length=63)
    effect: Effect | None = None
    toleration_seconds: int | None = Field(default=None, ge=0, le=2**53)


KeyValues = Annotated[
    dict[
        Annotated[str, StringConstraints(min_length=1, max_length=317)],
        Annotated[str, StringConstraints(max_length=262144)],
    ],
    Field(max_length=64),
]


class PodSetUpdateBody(View):
    """An addition to the pods of a podset. It cannot change a value that the template has."""

    name: str = Field(pattern=NAME, description="Name of the podset.")
    labels: KeyValues = Field(default_factory=dict)
    annotations: KeyValues = Field(default_factory=dict)
    node_selector: KeyValues = Field(default_factory=dict)
    tolerations: list[TolerationBody] = Field(default=[], max_length=64)


class CheckBody(CommandBody):
    check: str = Field(pattern=NAME, description="Name of the AdmissionCheck.")
    state: CheckState = Field(
        description="`Retry`: the workload releases its quota and its nodes, and queues again later. `Rejected`: it is deactivated."
    )
    message: str = Field(default="", max_length=500, description="For users, in one line.")
    requeue_after_seconds: int | None = Field(
        default=None,
        ge=0,
        le=366 * 24 * 3600,
        description="Only of `Retry`: seconds until it queues again; null = 60, doubled with each retry, at most 1800.",
    )
    pod_set_updates: list[PodSetUpdateBody] = Field(
        default=[], max_length=64, description="Only of `Ready`: additions to its pods."
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.requeue_after_seconds is not None and self.state is not CheckState.RETRY:
            raise ValueError("requeueAfterSeconds: is a field of state Retry")
        if self.pod_set_updates and self.state is not CheckState.READY:
            raise ValueError("podSetUpdates: is a field of state Ready")
        return self

    @property
    def report(self) -> CheckReport:
        """The new state."""
        after = self.requeue_after_seconds
        return CheckReport(
            self.check,
            self.state,
            " ".join(self.message.split()),
            float(after) if after is not None else None,
            tuple(map(_update, self.pod_set_updates)),
        )


def _update(body: PodSetUpdateBody) -> PodSetUpdate:
    return PodSetUpdate(
        body.name,
        tuple(sorted(body.labels.items())),
        tuple(sorted(body.annotations.items())),
        tuple(sorted(body.node_selector.items())),
        tuple(
            Toleration(t.key, t.operator, t.value, t.effect, t.toleration_seconds)
            for t in body.tolerations
        ),
    )


class MoveBody(CommandBody):
    queue: str = Field(
        pattern=NAME, description="LocalQueue in its namespace. The workload keeps its queue time."
    )


BODIES: Final = {
    **dict.fromkeys(Action, CommandBody),
    **dict.fromkeys(EVICTING, EvictingBody),
    Action.PRIORITY: PriorityBody,
    Action.MOVE: MoveBody,
    Action.CHECK: CheckBody,
}
"""The body of each action."""
REQUIRED: Final = frozenset({Action.PRIORITY, Action.MOVE, Action.CHECK})
"""Actions that require a body."""


class CommandView(View):
    """A command. The leader executes commands in the order of their ids. Results are kept for a day."""

    id: int
    uid: str
    workload: str | None = Field(description="namespace/name; null = the workload was deleted.")
    action: Action
    priority: int | None
    until: datetime | None
    queue: str | None
    check: str | None = Field(description="Name of the AdmissionCheck; only of `check`.")
    check_state: CheckState | None = Field(description="Only of `check`.")
    by: str
    why: str
    request_id: str
    at: datetime
    state: CommandState
    outcome: str | None = Field(description="The result in words; null = not executed yet.")


class CommandPage(View):
    uid: str
    items: list[CommandView]
    next_after: int | None = Field(
        description="Value of `after` for the next page; null = this is the last page."
    )


class CommandListView(View):
    items: list[CommandView] = Field(description="The newest first.")
    next_before: int | None = Field(
        description="Value of `before` for the next page; null = this is the last page."
    )


class StarterView(View):
    uid: str | None = Field(description="null = you are not allowed to see it.")
    workload: str = Field(
        description=f"namespace/name; `{ANOTHER_TEAM}` for a workload that you are not allowed to see; an unknown uid does not change."
    )


class PreviewView(View):
    """The effect that an action would have on a gang now. Nothing changes."""

    uid: str
    workload: str = Field(description="namespace/name")
    action: Action
    change: str = Field(description="The change of the workload in words.")
    evicts: bool = Field(description="Whether it runs and would be evicted.")
    pods: int = Field(description="Number of pods that would be stopped.")
    gpus: float | None = Field(
        description="GPUs that become free; null = not known at the moment: send the request again."
    )
    lost_gpu_seconds: int | None = Field(
        description="Lost work since its last checkpoint and for a restart in GPU-seconds, as for each victim; null as for `gpus`."
    )
    notice_seconds: float | None = Field(
        description="Seconds of notice before its suspension; null as for `gpus`."
    )
    starts: list[StarterView] | None = Field(
        description="Gangs that could start then and cannot start now, in queue order. The gang itself is included if it would start again. "
        "null = not known within the time limit, or as for `gpus`."
    )


def own(caller: Caller, key: str) -> str:
    """The request id for a caller's key: the same key of another caller is another request."""
    return f"{caller.name} {key}"


def command_view(command: Command, ref: str | None) -> CommandView:
    """A command with its result. ``ref``: ``namespace/name`` of its workload; None if it is no longer known."""
    return CommandView(
        id=command.id,
        uid=command.uid,
        workload=ref,
        action=command.action,
        priority=command.priority,
        until=maybe(command.until),
        queue=command.queue,
        check=command.report.check if command.report is not None else None,
        check_state=command.report.state if command.report is not None else None,
        by=command.by,
        why=command.why,
        request_id=command.request_id.rpartition(" ")[2],  # a key has no space in it
        at=utc(command.at),
        state=command.state,
        outcome=command.outcome,
    )


def starter_view(uid: str, name: str) -> StarterView:
    """A gang that could start. ``name``: ANOTHER_TEAM if the caller is not allowed to see it."""
    return StarterView(uid=shown_uid(name, uid), workload=name)


def preview_view(
    entry: Entry,
    action: Action,
    change: str,
    preview: Preview | None,
    starts: list[StarterView] | None,
) -> PreviewView:
    """A preview. ``change``: in words; ``starts``: of the preview, with names."""
    evicts = entry.state.live and action in EVICTING
    cost = preview.cost if preview is not None else None
    known = preview is not None or action not in EVICTING
    return PreviewView(
        uid=entry.uid,
        workload=entry.ref,
        action=action,
        change=change,
        evicts=evicts,
        pods=entry.started_pods if evicts else 0,
        gpus=(rounded(cost.gpus) if cost is not None else 0) if known else None,
        lost_gpu_seconds=(cost.lost_work if cost is not None else 0) if known else None,
        notice_seconds=preview.notice if preview is not None else 0.0 if known else None,
        starts=starts,
    )
