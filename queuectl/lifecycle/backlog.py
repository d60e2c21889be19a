"""The workloads that are to be observed, in the order in which observations take them."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

_SHARE: Final = 4  # one in this many is observed again while others have changed


class Backlog:
    """Workloads that have changed, and workloads that an edit of the configuration or a takeover makes the leader observe again.

    Those that have changed are taken first, so an edit that concerns all workloads delays no new one. The others have a share of each
    observation, so constant changes do not delay them indefinitely.
    """

    def __init__(self) -> None:
        self._changed = _Turns()
        self._again = _Turns()

    def __len__(self) -> int:
        return len(self._changed) + len(self._again)

    def __contains__(self, uid: str) -> bool:
        return uid in self._changed or uid in self._again

    def put(self, uid: str, namespace: str, *, again: bool) -> None:
        """Add a workload at the end of those of its namespace; one that is already to be observed keeps its place.

        Args:
            uid: the workload.
            namespace: its namespace.
            again: it has not changed itself.
        """
        if not again:
            self._again.remove(uid)
            self._changed.put(uid, namespace)
        elif uid not in self._changed:
            self._again.put(uid, namespace)

    def take(self, most: int | None) -> list[str]:
        """Remove and return the workloads to observe now. ``most``: None = all."""
        most = len(self) if most is None else most
        taken = self._changed.take(most - min(len(self._again), most // _SHARE))
        return taken + self._again.take(most - len(taken))


class _Turns:
    """Workloads of which each namespace has the same number in turn.

    One namespace can change any number of objects. The workloads of the others do not wait for all of them. Those of a namespace are
    taken in the order in which they were added, because edits of its queues add all of them again and again.
    """

    def __init__(self) -> None:
        self._uids: OrderedDict[str, OrderedDict[str, None]] = OrderedDict()  # by namespace
        self._namespaces: dict[str, str] = {}  # by uid

    def __len__(self) -> int:
        return len(self._namespaces)

    def __contains__(self, uid: str) -> bool:
        return uid in self._namespaces

    def put(self, uid: str, namespace: str) -> None:
        if uid not in self._namespaces:
            self._namespaces[uid] = namespace
            self._uids.setdefault(namespace, OrderedDict())[uid] = None

    def remove(self, uid: str) -> None:
        namespace = self._namespaces.pop(uid, None)
        if namespace is not None:
            del self._uids[namespace][uid]
            if not self._uids[namespace]:
                del self._uids[namespace]

    def take(self, most: int) -> list[str]:
        taken: list[str] = []
        while self._uids and len(taken) < most:
            namespace, uids = next(iter(self._uids.items()))
            uid, _ = uids.popitem(last=False)
            del self._namespaces[uid]
            taken.append(uid)
            if uids:
                self._uids.move_to_end(namespace)
            else:
                del self._uids[namespace]
        return taken
