"""Conversions between values of the ledger and rows of the database."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from sys import intern
from types import MappingProxyType
from typing import Any, Final

from sqlalchemy import Column
from sqlalchemy import Row as Result

from queuectl.db.bulk import Row
from queuectl.db.engine import decode_json, storable
from queuectl.db.tables import history, leases, outbox, placements, workloads
from queuectl.domain.checks import NO_CHECKS, CheckReport, Checks
from queuectl.domain.commands import Action, Command
from queuectl.domain.gpus import of_parts
from queuectl.domain.ledger import Entry, EntryChange, Intent, State
from queuectl.domain.notifications import EventType, JobNotifications
from queuectl.domain.queries import HistoryLine
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.snapshot import CapacityLease, PlannedStart
from queuectl.domain.workload import DecidedRequest, FlavorShare, Placement, PodSetPlacement

# Fields of an Entry that are stored as they are, under the same name.
_PLAIN: Final = (
    "uid", "version", "kind", "namespace", "name", "queue", "cluster_queue", "priority", "pods", "attempt",
    "queued_at", "since", "requeue_at", "started_at", "ready_at", "finished_at", "failures", "evictions", "budget",
    "requeued_at", "unready_since", "past_seconds", "stop_at", "priority_set",
    "priority_until", "queue_set", "announced_start",
)  # fmt: skip
_FIXED: Final = {"kind", "namespace", "name"}  # part of the identity: never updated

# The columns that :func:`entry_from` reads, in this order.
ENTRY_COLUMNS: Final[tuple[Column[Any], ...]] = tuple(
    workloads.c[name]
    for name in (
        *(*_PLAIN, "state", "excluded", "preempted_at"),
        *("reason_code", "reason_message", "reason_details", "evicted_for", "parked", "gates"),
        *("planned", "user", "planned_start", "checks", "gpu_parts", "labels"),
        "notify",
    )
)
WORKLOAD_COLUMNS: Final[tuple[Column[Any], ...]] = tuple(workloads.c)
UPDATED_COLUMNS: Final[tuple[Column[Any], ...]] = tuple(
    c for c in workloads.c if c.name not in _FIXED
)
PLACEMENT_COLUMNS: Final[tuple[Column[Any], ...]] = tuple(placements.c)
LEASE_COLUMNS: Final[tuple[Column[Any], ...]] = tuple(leases.c)
OUTBOX_COLUMNS: Final[tuple[Column[Any], ...]] = tuple(outbox.c)
HISTORY_COLUMNS: Final[tuple[Column[Any], ...]] = tuple(c for c in history.c if c.name != "id")


def workload_row(entry: Entry) -> Row:
    """The row of ``workloads``."""
    row = {name: getattr(entry, name) for name in _PLAIN}
    row["state"] = entry.state.value
    row["excluded"] = list(entry.excluded)
    row["preempted_at"] = list(entry.preempted_at)
    row["reason_code"] = entry.reason.code.value
    row["reason_message"] = storable(entry.reason.message)
    row["reason_details"] = entry.reason.details
    row["evicted_for"] = entry.evicted_for.value if entry.evicted_for is not None else None
    row["parked"] = entry.parked
    row["gates"] = [storable(gate) for gate in entry.gates]
    row["planned"] = entry.planned
    row["user"] = storable(entry.user)
    row["planned_start"] = entry.planned_start
    row["labels"] = dict(entry.labels)
    row["notify"] = entry.notify
    row["checks"] = entry.checks if entry.checks != NO_CHECKS else None
    row["gpu_parts"] = entry.gpu_parts
    return row


def placement_rows(entry: Entry) -> list[Row]:
    """The rows of ``placements``: one per podset, none while it has no placement."""
    return [
        {
            "uid": entry.uid,
            "attempt": entry.attempt,
            "podset": placed.podset,
            "ordinal": ordinal,
            "nodes": placed.nodes,
            "flavors": placed.flavors,
            "pods": placed.pods,
            "shares": [(share.pods, share.flavors) for share in placed.shares] or None,
        }
        for ordinal, placed in enumerate(entry.placement.podsets if entry.placement else ())
    ]


def lease_row(entry: Entry, lease: CapacityLease) -> Row:
    """The row of ``leases``."""
    return {
        "uid": entry.uid,
        "placement": lease.placement,
        "victims": lease.victims,
        "created_at": lease.created_at,
        "expires_at": lease.expires_at,
    }


def outbox_row(change: EntryChange, epoch: int) -> Row:
    """The row of ``outbox`` for the intent that ``change`` brings."""
    entry = change.after
    return {
        "uid": entry.uid,
        "attempt": entry.attempt,
        "intent": entry.intent,
        "reason": entry.reason.code.value,
        "created_at": change.at,
        "epoch": epoch,
    }


def history_row(change: EntryChange, *, epoch: int, cycle: int) -> Row | None:
    """The line to append; None if the change has no line."""
    before, after, note = change.before, change.after, change.line
    if note is None:
        return None
    moved = before is None or before.placement != after.placement
    return {
        "uid": after.uid,
        "kind": after.kind,
        "namespace": after.namespace,
        "name": after.name,
        "at": change.at,
        "epoch": epoch,
        "cycle": cycle,
        "attempt": after.attempt,
        "event": note.event,
        "from_state": note.from_state.value if note.from_state is not None else None,
        "to_state": note.to_state.value,
        "code": note.reason.code.value,
        "message": storable(note.reason.message),
        "details": note.reason.details,
        "placement": after.placement if moved else None,
    }


def placements_from(rows: Iterable[Result[Any]]) -> dict[str, Placement]:
    """Rows of ``placements``, ordered by uid and ordinal, as uid -> Placement."""
    podsets: dict[str, list[PodSetPlacement]] = {}
    for row in rows:
        podsets.setdefault(row.uid, []).append(
            PodSetPlacement(
                row.podset,
                tuple((node, count) for node, count in row.nodes),
                row.flavors,
                row.pods,
                tuple(FlavorShare(pods, flavors) for pods, flavors in row.shares or ()),
            )
        )
    return {uid: Placement(tuple(parts)) for uid, parts in podsets.items()}


def lease_from(row: Result[Any]) -> CapacityLease:
    """A CapacityLease from its row."""
    return CapacityLease(
        decode_json(Placement, row.placement), tuple(row.victims), row.created_at, row.expires_at
    )


def entry_from(
    row: Result[Any],
    placed: Mapping[str, Placement] = MappingProxyType({}),
    leased: Mapping[str, CapacityLease] = MappingProxyType({}),
    intents: Mapping[str, Intent] = MappingProxyType({}),
) -> Entry:
    """One workload from its ENTRY_COLUMNS and side tables. A new leader reads tens of thousands."""
    values = dict(zip(_PLAIN, row, strict=False))
    state, excluded, preempted_at, code, message, details, *more = row[len(_PLAIN) :]
    why, parked, gates, planned, user, start, checks, gpu_parts, labels, notify = more
    uid = row[0]
    return Entry(
        **values,
        state=State(state),
        excluded=tuple(excluded),
        preempted_at=tuple(preempted_at),
        reason=Reason.read(code, message, details),
        placement=placed.get(uid),
        lease=leased.get(uid),
        intent=intents.get(uid),
        evicted_for=Code.read(why) if why is not None else None,
        parked=reason_from(parked) if parked is not None else None,
        gates=tuple(gates),
        planned=decode_json(DecidedRequest, planned) if planned is not None else None,
        user=user,
        labels=tuple(sorted((intern(name), label) for name, label in labels.items())),
        planned_start=decode_json(PlannedStart, start) if start is not None else None,
        gpus=of_parts(gpu_parts),
        notify=notify_from(notify) if notify is not None else None,
        checks=decode_json(Checks, checks) if checks is not None else NO_CHECKS,
    )


def reason_from(document: Mapping[str, Any]) -> Reason:
    """A reason from its JSON."""
    return Reason.read(document["code"], document["message"], document["details"])


def notify_from(document: Mapping[str, Any]) -> JobNotifications:
    """The request of a job. A newer release can have written other types; without any, all types would count as requested."""
    known = {each.value for each in EventType}
    events = tuple(EventType(name) for name in document["events"] if name in known)
    receivers = document["receivers"] if events or not document["events"] else ()
    return JobNotifications(tuple(receivers), events, document["error"])


def command_from(row: Result[Any]) -> Command:
    """A command from its row."""
    return Command(
        id=row.id,
        uid=row.uid,
        action=Action(row.action),
        by=row.by,
        request_id=row.request_id,
        at=row.at,
        priority=row.priority,
        until=row.until,
        queue=row.queue,
        why=row.why,
        outcome=row.outcome,
        admin=row.admin,
        report=decode_json(CheckReport, row.report) if row.report is not None else None,
    )


def history_line_from(row: Result[Any]) -> HistoryLine:
    """A history line from its row."""
    values = row._asdict()
    reason = Reason.read(values.pop("code"), values.pop("message"), values.pop("details"))
    placement = values["placement"]
    return HistoryLine(
        **values
        | {
            "from_state": State(values["from_state"]) if values["from_state"] else None,
            "to_state": State(values["to_state"]),
            "reason": reason,
            "placement": decode_json(Placement, placement) if placement is not None else None,
        }
    )
