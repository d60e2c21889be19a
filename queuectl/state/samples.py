"""The last samples of the GPU utilization of gangs. The usage ledger divides time by each of them, not only by the newest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from queuectl.domain.measured import FRESH_SECONDS
from queuectl.domain.utilization import GangUse

KEPT_SECONDS: Final = 2 * FRESH_SECONDS  # a mark of the ledger can be late


class SampleLog:
    """The samples of one leader, in memory only: samples that it has not accounted for are unknown to the next leader."""

    def __init__(self) -> None:
        self._samples: list[tuple[float, Mapping[str, GangUse]]] = []

    def note(self, uses: Mapping[str, GangUse], at: float) -> None:
        """Add the sample of time ``at`` (unix seconds), by uid, and drop samples older than ``KEPT_SECONDS``."""
        self._samples = [one for one in self._samples if one[0] > at - KEPT_SECONDS]
        self._samples.append((at, uses))

    def of(self, uid: str) -> tuple[GangUse, ...]:
        """The samples of a gang, oldest first."""
        return tuple(use for _, uses in self._samples if (use := uses.get(uid)) is not None)
