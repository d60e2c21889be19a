"""The gangs of a group of equal gangs that a cycle has not decided yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from queuectl.domain.plan import Refusal
from queuectl.domain.snapshot import Pending
from queuectl.planner.order.pending_gangs import EqualGangs
from queuectl.planner.order.queue_order import stretch
from queuectl.planner.problem.topology import Ints


@dataclass(eq=False, slots=True)
class UndecidedGangs:
    """The gangs of a group that are not decided. They differ in name, age, priority, and in length where there are planned starts.

    Attributes:
        gangs: the group.
        left: numbers of those that are not decided, in queue order.
    """

    gangs: EqualGangs
    left: Sequence[int] | Ints
    _at: int = 0  # of those that are left, the first one to be considered
    _now: float | None = None  # of the order by length; None = queue order

    def __len__(self) -> int:
        """How many are not decided."""
        return len(self.left)

    @property
    def first(self) -> Pending:
        """The one that is considered next."""
        return self.gangs.gangs[self.left[self._at]]

    def sort(self, now: float) -> None:
        """From here on the shortest is first, in relation to its wait."""
        if self._now != now:
            self._now = now
            self._find_first()

    def pass_first(self) -> None:
        """The first one is decided."""
        here = self._at
        self.left = np.delete(self.left, here) if here else self.left[1:]
        self._find_first()

    def take_longer(self, seconds: float) -> UndecidedGangs:
        """Take out those that run for at least so many seconds, or for an unknown time."""
        if seconds <= 0.0:
            taken = UndecidedGangs(self.gangs, self.left, self._at, self._now)
            self.left = ()
            return taken
        left = np.asarray(self.left)
        long = self.gangs.lengths[left] >= seconds
        taken = UndecidedGangs(self.gangs, self.left if long.all() else left[long], _now=self._now)
        taken._find_first()
        self.left = left[~long]
        self._find_first()
        return taken

    def refuse(self, like: Refusal) -> Mapping[str, Refusal]:
        """The refusals, by uid, of all that are left."""
        if isinstance(self.left, range):
            return self.gangs.refuse(self.left.start, like)
        gangs = self.gangs.gangs
        uids = [gangs[number].workload.uid for number in self.left]
        return {uid: Refusal(uid, like.reasons, None, like.proof) for uid in uids}

    def _find_first(self) -> None:
        self._at = 0
        if self._now is None or len(self.left) < 2:
            return
        left, gangs = np.asarray(self.left), self.gangs
        stretched = stretch(self._now, gangs.queued_at[left], gangs.lengths[left])
        level = gangs.priorities[left]
        self._at = int(np.argmax(np.where(level == level.max(), stretched, -np.inf)))


def all_of(gangs: EqualGangs) -> UndecidedGangs:
    """A group of which none is decided."""
    return UndecidedGangs(gangs, range(len(gangs.gangs)))
