"""Gangs of snapshots, each changed once: a gang that is also in the next snapshot gives the same object."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol, TypeVar

from queuectl.domain.snapshot import Admitted, Pending, Snapshot

_SPARE: Final = 4  # times as many gangs as a snapshot has
Gang = TypeVar("Gang", Pending, Admitted)


class _Change(Protocol):
    def __call__(self, gang: Gang, /) -> Gang: ...


class ChangedGangs:
    """By the identity of the gangs, which are kept for this."""

    def __init__(self) -> None:
        self._pending: dict[int, tuple[Pending, Pending]] = {}
        self._admitted: dict[int, tuple[Admitted, Admitted]] = {}

    def of(
        self, snapshot: Snapshot, change: _Change
    ) -> tuple[tuple[Pending, ...], tuple[Admitted, ...]]:
        """Its pending and its admitted gangs, changed. Each call has the same ``change``."""
        return (
            _changed(snapshot.pending, self._pending, change),
            _changed(snapshot.admitted, self._admitted, change),
        )

    def forget_others(self, snapshot: Snapshot) -> bool:
        """Whether there were many gangs that are not in the snapshot. They are forgotten then."""
        known = len(self._pending) + len(self._admitted)
        many = known > _SPARE * (len(snapshot.pending) + len(snapshot.admitted))
        if many:
            self._pending = {id(gang): self._pending[id(gang)] for gang in snapshot.pending}
            self._admitted = {id(gang): self._admitted[id(gang)] for gang in snapshot.admitted}
        return many


def _changed(
    gangs: Sequence[Gang], lowered: dict[int, tuple[Gang, Gang]], change: _Change
) -> tuple[Gang, ...]:
    for gang in gangs:
        if id(gang) not in lowered:
            lowered[id(gang)] = gang, change(gang)
    return tuple([lowered[id(gang)][1] for gang in gangs])
