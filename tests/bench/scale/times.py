"""Times and writes from the audit log of the API server.

A watcher in Python would take CPU time from the system under test. The API server writes a line for each write that it has answered,
so the log has the time of each step, and reading it costs a few microseconds for each line:

- *submitted*: the creation of the Job is accepted;
- *bound*: the creation of the `binding` of a pod is accepted, for the last pod of a gang;
- *running*: KWOK, as the kubelet, writes the status of a bound pod for the first time.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec

POLICY: Final = Path(__file__).parent / "audit-policy.yaml"
KWOK: Final = "system:serviceaccount:kube-system:kwok-controller"
HARNESS: Final = "queuectl-localcluster-admin"
LEASES, EVENTS = "node leases", "Events"
_OK: Final = 300
_NODE_LEASES: Final = "kube-node-lease"


class AuditUser(msgspec.Struct):
    """The user of a request."""

    username: str = ""


class AuditReference(msgspec.Struct):
    """The object of a request."""

    resource: str = ""
    namespace: str = ""
    name: str = ""
    subresource: str = ""


class AuditStatus(msgspec.Struct):
    """The answer to a request."""

    code: int = 0


class AuditEvent(msgspec.Struct, rename="camel"):
    """A line of the log: a write and its answer."""

    verb: str
    user: AuditUser
    request_received_timestamp: datetime
    stage_timestamp: datetime
    object_ref: AuditReference = msgspec.field(default_factory=AuditReference)
    response_status: AuditStatus = msgspec.field(default_factory=AuditStatus)

    @property
    def accepted(self) -> bool:
        """Whether the API server has done it."""
        return self.response_status.code < _OK

    @property
    def at(self) -> float:
        """Unix seconds of the answer."""
        return self.stage_timestamp.timestamp()


_decode = msgspec.json.Decoder(AuditEvent).decode


class AuditLog:
    """The log of one API server, read from its end of the last reading on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._part = b""

    def skip(self) -> None:
        """Ignore what is there until now."""
        self._offset, self._part = self._path.stat().st_size, b""

    def read_new(self) -> list[AuditEvent]:
        """The events since the last reading."""
        with self._path.open("rb") as log:
            log.seek(self._offset)
            text = log.read()
        self._offset += len(text)
        *lines, self._part = (self._part + text).split(b"\n")
        return [_decode(line) for line in lines if line]


def gang_of(namespace: str, pod: str) -> str:
    """``namespace/name`` of the Job of a pod: an indexed Job names its pods JOB-INDEX-SUFFIX."""
    return f"{namespace}/{pod.rsplit('-', 2)[0]}"


def writer_of(event: AuditEvent) -> str:
    """The program that wrote; node leases and Events apart, because they are of all programs and change no gang."""
    reference, user = event.object_ref, event.user.username
    if reference.resource == "leases" and reference.namespace == _NODE_LEASES:
        return LEASES
    if reference.resource == "events":
        return EVENTS
    if user == HARNESS:
        return "harness"
    if user == KWOK:
        return "KWOK"
    if user.startswith("system:serviceaccount:") and ":kube-system:" not in user:
        return user.split(":")[2].removesuffix("-system")
    if user == "system:kube-scheduler":
        return "kube-scheduler"
    return "kube-apiserver" if user == "system:apiserver" else "Kubernetes controllers"


@dataclass(slots=True)
class Timeline:
    """The life of all gangs of a row, in unix seconds. Gangs are ``namespace/name``.

    Attributes:
        submitted: by gang.
        bound, running: by gang and pod, the first time.
        created: the creations of pods by namespace; the log does not have their names.
        deleted, removed: by gang and pod: its deletion was requested for the first and for the last time. A kubelet that is lost removes no
            pod: the garbage collector deletes it again, which removes it.
        writes: accepted writes by program and resource.
        refused: refused writes by program and status code.
        first, last: of all writes.
    """

    submitted: dict[str, float] = field(default_factory=dict)
    bound: dict[str, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    running: dict[str, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    deleted: dict[str, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    created: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    removed: dict[str, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    writes: Counter[tuple[str, str]] = field(default_factory=Counter)
    refused: Counter[tuple[str, int]] = field(default_factory=Counter)
    first: float = math.inf
    last: float = 0.0

    def follow(self, events: Iterable[AuditEvent]) -> None:
        """Take in further events."""
        for event in events:
            self._take(event)

    def _take(self, event: AuditEvent) -> None:
        reference, writer = event.object_ref, writer_of(event)
        self.first, self.last = min(self.first, event.at), max(self.last, event.at)
        if not event.accepted:
            self.refused[writer, event.response_status.code] += 1
            return
        path = "/".join(filter(None, (reference.resource, reference.subresource)))
        self.writes[writer, path] += 1
        if path == "pods/binding":
            gang = gang_of(reference.namespace, reference.name)
            self.bound[gang].setdefault(reference.name, event.at)
        elif path == "pods/status" and writer == "KWOK":
            gang = gang_of(reference.namespace, reference.name)
            self.running[gang].setdefault(reference.name, event.at)
            # Of a binding whose answer took longer than the scheduler waits, the log has a failure, although it is stored.
            self.bound[gang].setdefault(reference.name, event.at)
        elif path == "pods" and event.verb == "create":
            self.created[reference.namespace].append(event.at)
        elif path == "jobs" and event.verb == "create":
            self.submitted.setdefault(f"{reference.namespace}/{reference.name}", event.at)
        elif path == "pods" and event.verb == "delete":
            gang = gang_of(reference.namespace, reference.name)
            self.deleted[gang].setdefault(reference.name, event.at)
            self.removed[gang][reference.name] = event.at

    def pods_bound(self, gangs: Iterable[str]) -> int:
        """The pods of these gangs that have been bound."""
        return sum(len(self.bound.get(gang, ())) for gang in gangs)

    def whole(self, gang: str, pods: int, *, running: bool = False) -> float | None:
        """When the last of so many pods of a gang was bound (or ran) for the first time; None before."""
        times = (self.running if running else self.bound).get(gang, {})
        return sorted(times.values())[pods - 1] if len(times) >= pods else None

    def all_writes(self, *, without: Sequence[str] = (LEASES,)) -> int:
        """Accepted writes, without those of some programs."""
        return sum(n for (writer, _), n in self.writes.items() if writer not in without)

    def by_writer(self) -> dict[str, int]:
        """Accepted writes by program, most first."""
        sums: Counter[str] = Counter()
        for (writer, _), number in self.writes.items():
            sums[writer] += number
        return dict(sums.most_common())


def percentile(seconds: Sequence[float], part: float) -> float:
    """The nearest-rank percentile; NaN of nothing."""
    ordered = sorted(seconds)
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)] if ordered else math.nan


def median(seconds: Sequence[float]) -> float:
    """The median; NaN of nothing."""
    return statistics.median(seconds) if seconds else math.nan
