"""The longest time that a gang can run, from its job and its ClusterQueue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class ExecutionLimits:
    """The limits of a ClusterQueue, in seconds over all attempts of a gang; None = no limit.

    Attributes:
        default: of gangs whose job states none; None = ``most``.
        most: a gang whose job states more does not start.
    """

    default: float | None = None
    most: float | None = None

    def limit(self, stated: float | None) -> float | None:
        """The limit of a gang. ``stated``: that of its job; None = it states none."""
        own = stated if stated is not None else self.default
        known = [limit for limit in (own, self.most) if limit is not None]
        return min(known, default=None)

    def refuses(self, stated: float | None) -> bool:
        """Whether the job states more than the ClusterQueue permits."""
        return stated is not None and self.most is not None and stated > self.most


NO_LIMITS: Final = ExecutionLimits()
