"""Reports stragglers of running gangs: one line in the history, and one Event, for each episode of a rank."""

from __future__ import annotations

from collections.abc import Container, Sequence

from queuectl.domain.events import NoteAdded
from queuectl.domain.ledger import EntryChange, State
from queuectl.domain.node_health import Straggler
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.rules import Rules
from queuectl.lifecycle.machine import handle
from queuectl.state.ledger import Ledger

_Rank = tuple[str, int, str]  # uid and attempt of the gang, pod


class Stragglers:
    """Of one leadership. A new leader reports a straggler that is still slow again."""

    def __init__(self, fresh_seconds: float) -> None:
        """``fresh_seconds``: the age in seconds after which an evaluation is no longer shown."""
        self._fresh = fresh_seconds
        self._at = 0.0
        self._known: dict[_Rank, Straggler] = {}
        self._reported: set[_Rank] = set()

    def found(self, stragglers: Sequence[Straggler], now: float) -> bool:
        """Store the result of an evaluation. Returns whether a report is due. An episode ends when the rank is not slow."""
        self._at = now
        self._known = {(one.uid, one.attempt, one.pod): one for one in stragglers}
        self._reported &= self._known.keys()
        return bool(self._known.keys() - self._reported)

    def of(self, uid: str, attempt: int, now: float) -> list[Straggler]:
        """The stragglers of a gang, by pod; none if the last evaluation is old."""
        if now - self._at > self._fresh:
            return []
        mine = [one for one in self._known.values() if (one.uid, one.attempt) == (uid, attempt)]
        return sorted(mine, key=lambda one: one.pod)

    def changes(
        self, ledger: Ledger, rules: Rules, now: float, busy: Container[str]
    ) -> list[EntryChange]:
        """The reports that are due, one for each gang. ``busy``: uids of gangs that change for other reasons."""
        due: dict[str, list[_Rank]] = {}
        for rank in sorted(self._known.keys() - self._reported):
            due.setdefault(rank[0], []).append(rank)
        found = []
        for uid, ranks in due.items():
            entry = ledger.get(uid)
            if uid in busy or entry is None or entry.state is not State.RUNNING:
                continue
            slow = [self._known[rank] for rank in ranks if rank[1] == entry.attempt]
            self._reported |= set(ranks)
            if not slow:
                continue
            details = {"stragglers": list(map(_details, slow))}
            reason = Reason(Code.STRAGGLER, "; ".join(map(str, slow)), details)
            change = handle(entry, NoteAdded(reason), now, rules)
            if change is not None:
                found.append(change)
        return found


def _details(one: Straggler) -> dict[str, object]:
    return {
        "podSet": one.podset,
        "rank": one.rank,
        "pod": one.pod,
        "node": one.node,
        "device": one.device,
        "partOfPeers": round(one.part, 3),
    }
