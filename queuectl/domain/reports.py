"""Reports of the usage ledger: what is asked, the sums that answer it, and the figures made of those.

Efficiency = used / (allocated - unknown): of the measured GPU-seconds, those that computed. Wasted =
allocated - unknown - used. Both are empty where no sample exists; ``unknown`` is shown beside them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Self

from queuectl.domain.accounting import HOUR, Amounts, ClusterAmounts, LostWorkSum
from queuectl.domain.errors import BadInput
from queuectl.domain.reasons import BY_POLICY, FAILED_START

MOST_ROWS: Final = 20_000  # of one report: it is made in memory


class ReportKind(StrEnum):
    """The subjects of reports."""

    @property
    def summed(self) -> bool:
        """Whether it is a sum over hours that are asked for."""
        return self not in (ReportKind.EFFICIENCY, ReportKind.BUDGETS)

    USAGE = "usage"
    COST = "cost"
    WASTE = "waste"
    WAITS = "waits"
    EFFICIENCY = (
        "efficiency"  # of the cluster now; the others are sums over hours of the usage ledger
    )
    BUDGETS = "budgets"  # in the present month


class By(StrEnum):
    """The keys by which rows are grouped."""

    QUEUE = "queue"  # LocalQueue, namespace/name
    CLUSTER_QUEUE = "clusterqueue"
    COHORT = "cohort"
    NAMESPACE = "namespace"
    USER = "user"
    FLAVOR = "flavor"
    PRICE = "price"
    HOUR = "hour"
    WORKLOAD = "workload"
    LABEL = "label"


_LABEL: Final = re.compile(r"label:([A-Za-z0-9](?:[-A-Za-z0-9_./]{0,314}[A-Za-z0-9])?)")
_HOURLY: Final = ",hour"
_FOR_OTHERS: Final = frozenset(code.value for code in BY_POLICY)
_FAILED: Final = frozenset(code.value for code in FAILED_START)


@dataclass(frozen=True, slots=True)
class Grouping:
    """``label``: its key, with :attr:`By.LABEL`. ``hourly``: each hour has rows of its own."""

    by: By
    label: str = ""
    hourly: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``queue``, ``label:team``, ``workload,hour``...

        Raises:
            BadInput: it is none of them.
        """
        what = text.removesuffix(_HOURLY)
        hourly = what != text
        found = _LABEL.fullmatch(what)
        if found is not None:
            return cls(By.LABEL, found[1], hourly)
        if what in set(By) - {By.LABEL} and not (hourly and what == By.HOUR):
            return cls(By(what), "", hourly)
        known = ", ".join([*(by for by in By if by is not By.LABEL), "label:KEY"])
        raise BadInput(f"by: {text!r} is none of {known}, with or without {_HOURLY!r} behind it")

    def __str__(self) -> str:
        what = f"label:{self.label}" if self.by is By.LABEL else self.by.value
        return what + _HOURLY if self.hourly else what


@dataclass(frozen=True, slots=True)
class Period:
    """Whole hours, unix seconds: from the start of the first to the end of the last."""

    since: int
    until: int

    @classmethod
    def around(cls, since: float, until: float) -> Self:
        """The full hours that a span of time touches.

        Raises:
            BadInput: it ends before it begins.
        """
        if until <= since:
            raise BadInput("until: must be later than since")
        return cls(int(since // HOUR) * HOUR, -int(-until // HOUR) * HOUR)


@dataclass(frozen=True, slots=True)
class ReportRow:
    """Sums of one group. ``names``: its keys; of a workload, all that is known of it."""

    names: Mapping[str, str]
    amounts: Amounts
    workloads: int = 0
    losses: Mapping[str, LostWorkSum] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def known(self) -> int:
        """Units that were measured."""
        return self.amounts.allocated - self.amounts.unknown

    @property
    def efficiency(self) -> float | None:
        """0..1; None where nothing was measured."""
        return self.amounts.used / self.known if self.known > 0 else None

    @property
    def wasted(self) -> int:
        """Units."""
        return self.known - self.amounts.used

    @property
    def wasted_cost(self) -> float:
        """The part of the cost that what was wasted has in what was allocated."""
        allocated = self.amounts.allocated
        return self.amounts.cost * self.wasted / allocated if allocated > 0 else 0.0

    @property
    def lost_to_others(self) -> float:
        """GPU-seconds of work lost because others needed the room, or a queue's policy took it back."""
        return self._lost(_FOR_OTHERS)

    @property
    def lost_in_starts(self) -> float:
        """GPU-seconds that starts held that failed."""
        return self._lost(_FAILED)

    @property
    def lost_otherwise(self) -> float:
        """GPU-seconds of work lost in evictions for any other reason."""
        return sum(x.gpu_seconds for x in self.losses.values()) - self._lost(_FOR_OTHERS | _FAILED)

    @property
    def evictions(self) -> int:
        return sum(x.evictions for x in self.losses.values())

    def _lost(self, reasons: frozenset[str]) -> float:
        return sum(x.gpu_seconds for reason, x in self.losses.items() if reason in reasons)


@dataclass(frozen=True, slots=True)
class FleetRow:
    """Free GPUs of one flavor's nodes over a period, in GPU-seconds.

    Attributes:
        seconds: that have samples.
        capacity: of nodes that take pods.
        free: of those, not held by a gang.
        fragmented: of the free, those on nodes too small for a shape, averaged over the shapes by how many pods want them.
        stranded: of the free, those on nodes that no shape fits.
        inside: of the fragmented, those on nodes with enough for the shape, but not of one PCIe root or NUMA node.
    """

    flavor: str
    seconds: float
    capacity: float
    free: float
    fragmented: float
    stranded: float
    inside: float


@dataclass(frozen=True, slots=True)
class Report:
    """``as_of``: everything before it is in; None = nothing was accounted for yet. ``cluster``: None = not for this caller."""

    period: Period
    grouping: Grouping
    as_of: float | None
    rows: tuple[ReportRow, ...]
    fleet: tuple[FleetRow, ...] = ()
    cluster: ClusterAmounts | None = None


def check_size(rows: int, grouping: Grouping) -> None:
    """Raises BadInput when a report would have more than :data:`MOST_ROWS` rows."""
    if rows > MOST_ROWS:
        raise BadInput(
            f"since: by {grouping} these hours have more than {MOST_ROWS:,} rows; ask for fewer hours"
        )
