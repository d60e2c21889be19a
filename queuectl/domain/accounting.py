"""The usage ledger: GPU-seconds by workload and hour, made from marks.

A mark states the use of a workload from a time on: it waits for a number of GPUs, holds a number of each flavor, or neither. The
leader writes it in the same transaction as the change of state that it follows from, so marks are as durable as the state
itself. :mod:`queuectl.domain.folding` turns them into hours.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import blake2b
from math import floor
from typing import Final, TypeAlias
from uuid import UUID

from queuectl.domain.gpus import PARTS, Gpus, GpuWeights

HOUR: Final = 3600


class UsagePhase(StrEnum):
    """The use that a workload is charged for."""

    WAITS = "Waits"  # queued, or in back-off
    HOLDS = "Holds"  # from the commit of its start until its last pod has ended
    ASIDE = "Aside"  # held or deactivated: it neither waits nor holds
    GONE = "Gone"


@dataclass(frozen=True, slots=True)
class Price:
    """The price of one GPU for an hour.

    Attributes:
        name: of this price in reports, e.g. ``spot``.
        gpu_hour: in the currency of the configuration.
        flavor: it holds for this ResourceFlavor only; None = for every one.
        node_labels: it holds on nodes that carry all of these.
    """

    name: str
    gpu_hour: float
    flavor: str | None = None
    node_labels: tuple[tuple[str, str], ...] = ()

    def holds(self, flavor: str, labels: Mapping[str, str]) -> bool:
        """Whether it is the price of a flavor's GPU on a node with these labels."""
        if self.flavor is not None and self.flavor != flavor:
            return False
        return all(labels.get(key) == value for key, value in self.node_labels)


@dataclass(frozen=True, slots=True)
class Accounting:
    """How usage is grouped and priced.

    Attributes:
        user_label: label that names the user of a job of a trusted submitter; None = no label does.
        labels: keys of the job labels by which reports can be grouped.
        prices: the first that holds is the price.
        currency: of the prices; only shown.
        keep_days: hours of the usage ledger that are older are deleted.
        gpus: how much of a GPU a unit of each resource is.
    """

    user_label: str | None = None
    labels: tuple[str, ...] = ()
    prices: tuple[Price, ...] = ()
    currency: str = "USD"
    keep_days: int = 400
    gpus: GpuWeights = GpuWeights()

    def price(self, flavor: str, labels: Mapping[str, str]) -> Price | None:
        """The price of a flavor's GPU on such a node; None without one."""
        return next((p for p in self.prices if p.holds(flavor, labels)), None)

    def price_of(self, flavor: str, labels: Mapping[str, str]) -> str:
        """Its name; empty without one."""
        price = self.price(flavor, labels)
        return price.name if price is not None else ""


@dataclass(frozen=True, slots=True)
class Subject:
    """The account of one workload, with all keys by which reports group. ``user`` is empty if it is unknown."""

    uid: str
    kind: str
    namespace: str
    name: str
    queue: str
    cluster_queue: str
    cohort: str = ""
    user: str = ""
    labels: tuple[tuple[str, str], ...] = ()

    @property
    def id(self) -> UUID:
        """Follows from the content, so that writing the same subject twice is writing it once."""
        return UUID(bytes=blake2b(repr(self).encode(), digest_size=16).digest())


@dataclass(frozen=True, slots=True)
class FlavorGpus:
    """GPUs of one flavor at one price (by name; empty = none)."""

    flavor: str
    price: str
    gpus: Gpus


@dataclass(frozen=True, slots=True)
class LostWork:
    """Work that an eviction threw away. ``reason``: the eviction's code."""

    reason: str
    gpu_seconds: float


@dataclass(frozen=True, slots=True)
class Mark:
    """The use of a workload from a time on.

    Attributes:
        at: unix seconds from which it counts.
        written_at: when it was written; after ``at`` for a job that had been created before we saw it.
        attempt: of the workload then.
        gpus: that it asks for.
        held: while it holds; None = the same as before.
        subject: None = the same as before. Its cohort is left empty: the configuration names it when hours are made.
        loss: what the eviction that this is the mark of threw away.
    """

    uid: str
    at: float
    written_at: float
    phase: UsagePhase
    attempt: int
    gpus: Gpus
    held: tuple[FlavorGpus, ...] | None = ()
    subject: Subject | None = None
    loss: LostWork | None = None


@dataclass(frozen=True, slots=True)
class Meter:
    """The use of a workload since its last mark, as far as marks are folded."""

    phase: UsagePhase
    attempt: int
    gpus: Gpus
    held: tuple[FlavorGpus, ...]
    subject: Subject


MILLISECONDS: Final = 1000
UNITS: Final = PARTS * MILLISECONDS
"""Units of a GPU-second. The ledger counts whole units, so that the parts of a sum add up to it exactly."""


def milliseconds(at: float) -> int:
    """A time or a duration in whole milliseconds."""
    return round(at * MILLISECONDS)


@dataclass(slots=True)
class Amounts:
    """The use of one workload in one hour, by flavor and price. All in units but ``waiting`` (milliseconds) and ``cost`` (money).

    ``allocated`` = what was measured busy and not busy, plus ``unknown``. ``used``: allocated times measured utilization;
    none of it while stuck. ``idle`` and ``stuck``: what was allocated while in that state.
    """

    allocated: int = 0
    used: int = 0
    idle: int = 0
    stuck: int = 0
    unknown: int = 0
    waited: int = 0
    waiting: int = 0
    cost: float = 0.0
    unpriced: int = 0

    def add(self, more: Amounts) -> None:
        """Add other amounts to these."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(more, name))


@dataclass(slots=True)
class LostWorkSum:
    """GPU-seconds of work lost for one reason, and in how many evictions."""

    gpu_seconds: float = 0.0
    evictions: int = 0


HourKey: TypeAlias = tuple[int, UUID, str, str]
"""Start of the hour (unix seconds), subject, flavor, name of the price; the latter two are empty for waiting."""
LossKey: TypeAlias = tuple[int, UUID, str, str]
"""Start of the hour, subject, flavor, reason."""


@dataclass(frozen=True, slots=True)
class AccountingTerms:
    """The configuration for making hours: the cohort of each ClusterQueue, and the amount of each price."""

    cohorts: Mapping[str, str] = field(default_factory=dict)
    prices: Mapping[str, float] = field(default_factory=dict)


def hour_of(at: float) -> int:
    """Start of the hour that a time is in; unix seconds, UTC."""
    return floor(at / HOUR) * HOUR


def by_hour(start: float, end: float) -> Iterator[tuple[int, int]]:
    """A span cut at full hours: (start of the hour, milliseconds in it). They are negative if it runs backwards."""
    first, last = milliseconds(start), milliseconds(end)
    sign, low, high = (1, first, last) if first <= last else (-1, last, first)
    while low < high:
        hour = low // (HOUR * MILLISECONDS) * HOUR
        cut = min(high, (hour + HOUR) * MILLISECONDS)
        yield hour, sign * (cut - low)
        low = cut


@dataclass(frozen=True, slots=True)
class ClusterGpus:
    """All GPUs of the cluster at a time.

    Attributes:
        physical: of all nodes, failed GPUs included, and those that gangs hold on deleted nodes.
        unmanaged: held by pods of no gang.
        unhealthy: failed, or free on nodes that take no pods.
    """

    physical: Gpus = 0
    unmanaged: Gpus = 0
    unhealthy: Gpus = 0


@dataclass(slots=True)
class ClusterAmounts:
    """All GPUs of the cluster in one hour, in units: physical = allocated + unallocated + unmanaged + unhealthy, exactly."""

    physical: int = 0
    unallocated: int = 0
    unmanaged: int = 0
    unhealthy: int = 0

    @property
    def allocated(self) -> int:
        """Held by gangs."""
        return self.physical - self.unallocated - self.unmanaged - self.unhealthy


@dataclass(frozen=True, slots=True)
class UsageProgress:
    """Progress of the ledger.

    Attributes:
        begins: of the first folding; None = there was none. GPUs that gangs held before come from Kueue.
        until: the time up to which all hours are made; None = none is.
        meters: all, by uid.
    """

    begins: float | None
    until: float | None
    meters: Mapping[str, Meter]


@dataclass(frozen=True, slots=True)
class Free:
    """GPUs of one flavor's nodes at a time; see :class:`queuectl.domain.usage_reports.FleetRow`."""

    capacity: float
    free: float
    fragmented: float
    stranded: float
    inside: float = 0.0
