"""Amounts of the usage ledger in GPU-seconds, seconds and money."""

from __future__ import annotations

from dataclasses import dataclass, fields

from queuectl.domain.accounting import MILLISECONDS, UNITS, Amounts


@dataclass
class GpuSeconds:
    """The fields of :class:`Amounts`."""

    allocated: float = 0.0
    used: float = 0.0
    idle: float = 0.0
    stuck: float = 0.0
    unknown: float = 0.0
    waited: float = 0.0
    waiting: float = 0.0
    cost: float = 0.0
    unpriced: float = 0.0

    def units(self) -> Amounts:
        """As the ledger has them."""
        found = Amounts(cost=self.cost, waiting=round(self.waiting * MILLISECONDS))
        for field in fields(self):
            if field.name not in ("waiting", "cost"):
                setattr(found, field.name, round(getattr(self, field.name) * UNITS))
        return found


def gpu_seconds(amounts: Amounts) -> GpuSeconds:
    """Units as GPU-seconds, and milliseconds as seconds."""
    return GpuSeconds(
        **{
            field.name: getattr(amounts, field.name) / UNITS
            for field in fields(Amounts)
            if field.name not in ("waiting", "cost")
        },
        waiting=amounts.waiting / MILLISECONDS,
        cost=amounts.cost,
    )
