"""The last looks at what gangs do with their GPUs: the usage ledger splits time by each of them, not only by the newest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from queuectl.domain.measured import FRESH_SECONDS
from queuectl.domain.utilization import GangUse

KEPT_SECONDS: Final = 2 * FRESH_SECONDS  # an entry of the ledger may be late


class SampleLog:
    """Of one leadership; in memory only, so what was looked at and not accounted for is unknown to the next leader."""

    def __init__(self) -> None:
        self._samples: list[tuple[float, Mapping[str, GangUse]]] = []

    def note(self, uses: Mapping[str, GangUse], at: float) -> None:
        """Add a look, by uid, made at ``at`` (unix seconds); those that are too old for anybody go."""
        self._samples = [one for one in self._samples if one[0] > at - KEPT_SECONDS]
        self._samples.append((at, uses))

    def of(self, uid: str) -> tuple[GangUse, ...]:
        """What was measured of a gang, oldest first."""
        return tuple(use for _, uses in self._samples if (use := uses.get(uid)) is not None)
