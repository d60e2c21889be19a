"""Records of the sample alongside the ledger: planning cycles, requests for changes, usage by hour."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from queuectl.domain.accounting import HOUR, Amounts, LostWorkSum, Subject
from queuectl.domain.audit import AuditLine
from queuectl.domain.ledger import CycleDecision, Entry, State, StoredDecision
from queuectl.domain.plan import Proof
from queuectl.domain.queries import HistoryLine
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.usage_reports import FleetRow
from tests.doubles.store import MemoryDatabase
from tests.support.gpu_seconds import GpuSeconds

USERS = ("ann", "ben", "cleo", "")
HOURS = 24
STEPS = 6  # of the history, in one cycle
CYCLES = 120
PRICE = 2.9
CONFIGURATION: dict[str, Any] = {
    "apiVersion": "queuectl.dev/v1",
    "kind": "Configuration",
    "metadata": {"name": "default"},
    "queuectl": {
        "accounting": {
            "userLabel": "example.com/user",
            "labels": ["team"],
            "currency": "EUR",
            "prices": [{"name": "on-demand", "gpuHour": PRICE}],
        }
    },
}


def keep_records(
    database: MemoryDatabase, now: float, nodes: int, gpus: int, rng: random.Random
) -> None:
    """Add the records of the entries in the database; ``nodes`` and ``gpus``: numbers of the cluster."""
    database.decisions = list(_decisions(database, nodes, rng))
    database.audit = list(_audit(database, now, rng))
    _account(database, now, gpus, rng)


def _decisions(
    database: MemoryDatabase, nodes: int, rng: random.Random
) -> Iterator[StoredDecision]:
    """Of the last steps of the history, some steps a cycle."""
    history = database.history
    waiting = sum(entry.state is State.PENDING for entry in database.entries.values())
    begin = max(0, len(history) - STEPS * CYCLES)
    for number, after in enumerate(range(begin, len(history), STEPS), 1):
        lines = history[after : after + STEPS]
        started = [line for line in lines if line.to_state is State.STARTING]
        evicted = sum(line.to_state is State.EVICTING for line in lines)
        if not started and not evicted:
            continue
        yield StoredDecision(
            id=number,
            epoch=1,
            cycle=number,
            after=after,
            upto=after + len(lines),
            decision=CycleDecision(
                at=lines[-1].at,
                revision=database.revision,
                nodes=nodes,
                pending=waiting + len(started),
                running=len(database.entries) - waiting,
                started=len(started),
                gpus=sum(database.entries[line.uid].gpus for line in started),
                evicted=evicted,
                moved=0,
                waiting=waiting,
                reasons={
                    Code.WAITING_FOR_QUOTA: waiting - waiting // 3,
                    Code.TOPOLOGY_PLACEMENT_FAILED: waiting // 3,
                },
                proof=rng.choice(list(Proof)),
                seconds=rng.uniform(0.002, 0.09),
                stats={"solves": 2.0, "seconds": 0.004},
            ),
        )


def _audit(database: MemoryDatabase, now: float, rng: random.Random) -> Iterator[AuditLine]:
    """Holds of gangs, changes of queues, and refused requests."""
    uids = sorted(database.entries)[:20]
    requests = [
        *(("POST", f"/api/v1/workloads/{uid}/hold", "holdWorkload", 202, "") for uid in uids),
        ("PUT", "/api/v1/clusterqueues/vision", "putClusterQueue", 200, "nominalQuota 512 to 640"),
        ("POST", "/api/v1/namespaces/team-vision/workloads/sweep-1/preempt", "preemptNamedWorkload", 202, ""),
        ("DELETE", "/api/v1/cohorts/research", "deleteCohort", 403, "ben may not delete cohorts research of queuectl.dev in all namespaces"),
        ("PUT", "/api/v1/resourceflavors/h100", "putResourceFlavor", None, ""),
    ]  # fmt: skip
    for number in range(1, 161):
        method, path, operation, status, detail = rng.choice(requests)
        caller = rng.choice(("ann", "ben", "system:serviceaccount:team-vision:trainer"))
        yield AuditLine(
            number, now - 600 * (161 - number), f"req-{number}", caller,
            ("system:authenticated",), method, path, operation, status, detail,
        )  # fmt: skip


def _account(database: MemoryDatabase, now: float, gpus: int, rng: random.Random) -> None:
    """Hours of running and pending gangs, until the last full hour."""
    tables = database.usage
    last = int(now // HOUR) * HOUR
    tables.until = float(last)
    for entry in database.entries.values():
        subject = subject_of(entry)
        waits = entry.started_at is None
        since = entry.started_at or entry.queued_at
        begin = max(last - HOURS * HOUR, int(since // HOUR) * HOUR)
        tables.subjects[subject.id] = subject
        share, unknown = rng.uniform(0.2, 0.95), rng.random() < 0.1
        for hour in range(begin, last, HOUR):
            flavor = "" if waits else "h100"
            key = (hour, subject.id, flavor, "" if waits else "on-demand")
            tables.hours[key] = (
                GpuSeconds(waited=HOUR * int(entry.gpus), waiting=HOUR).units()
                if waits
                else _held(int(entry.gpus), share, unknown=unknown, idle=rng.random() < 0.07)
            )
        if not waits and begin < last and rng.random() < 0.3:
            tables.losses[begin, subject.id, "h100", Code.PREEMPTED] = LostWorkSum(9000.0, 1)
    for hour in range(last - HOURS * HOUR, last, HOUR):
        shares = (1.0, 0.14, 0.04, 0.01, 0.0)  # all, free, fragmented, stranded, inside
        tables.fleet[hour, "h100"] = FleetRow("h100", HOUR, *(HOUR * gpus * x for x in shares))


def subject_of(entry: Entry) -> Subject:
    """The account of a workload."""
    queue = entry.cluster_queue
    return Subject(
        entry.uid, entry.kind, entry.namespace, entry.name, entry.queue, queue,
        "research", entry.user, (("team", queue),),
    )  # fmt: skip


def _held(gpus: int, share: float, *, unknown: bool, idle: bool) -> Amounts:
    """An hour of a gang."""
    seconds = float(HOUR * gpus)
    return GpuSeconds(
        allocated=seconds,
        used=0.0 if unknown or idle else seconds * share,
        idle=seconds if idle and not unknown else 0.0,
        unknown=seconds if unknown else 0.0,
        cost=PRICE * gpus,
    ).units()


def line_of(
    number: int,
    at: float,
    entry: Entry,
    before: State | None,
    after: State,
    reason: Reason,
    attempt: int,
) -> HistoryLine:
    """A line of the history of a workload."""
    return HistoryLine(
        id=number,
        uid=entry.uid,
        kind=entry.kind,
        namespace=entry.namespace,
        name=entry.name,
        at=at,
        epoch=1,
        cycle=number,
        attempt=attempt,
        event=str(reason.code),
        from_state=before,
        to_state=after,
        reason=reason,
    )
