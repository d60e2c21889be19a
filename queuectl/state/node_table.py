"""The nodes in the copy of the cluster that the watch keeps, and the evidence that takes some of them out of placement."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from queuectl.domain.fleet import Fleet
from queuectl.domain.records import NodeRecord


class NodeTable(Mapping[str, NodeRecord]):
    """Records of nodes by name. Each method that changes them returns whether plans can differ now.

    Attributes:
        conditions_seen: how often conditions of a node changed, without those of the kubelet.
        closed: the evidence against nodes that are out of placement, by name: those that fail, and those of which a condition announces
            the end. A pod that tolerates a cordon can be placed on them.
        failing: the evidence against nodes whose hardware fails.
        ending: the announcement that a node is taken away, by name of the node: a condition or a taint.
    """

    def __init__(self) -> None:
        self._records: dict[str, NodeRecord] = {}
        self._fleet: Fleet | None = None
        self.failing: Mapping[str, str] = {}
        self.ending: Mapping[str, str] = {}
        self._interrupted: Mapping[str, str] = {}
        self.closed: Mapping[str, str] = {}
        self.conditions_seen = 0

    def __getitem__(self, name: str) -> NodeRecord:
        return self._records[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)

    @property
    def fleet(self) -> Fleet:
        """All nodes in the order of their names; the same object until a field on which plans depend changes."""
        if self._fleet is None:
            self._fleet = Fleet(tuple(self._records[name].node for name in sorted(self._records)))
        return self._fleet

    def put(self, record: NodeRecord) -> bool:
        """Keep it, unless the present one is as new. A heartbeat changes no plan."""
        old = self._records.get(record.node.name)
        if old is not None and record.version <= old.version:
            return False
        record = self._judged(record)
        self._records[record.node.name] = record
        judged_anew = old is None or old.conditions != record.conditions
        if judged_anew:
            self.conditions_seen += 1
        if old is None or old.node != record.node:
            self._fleet = None
            return True
        return judged_anew

    def expect_again(self, name: str) -> None:
        """Let the next record of this node replace the present one, also with the same version."""
        self._records[name] = replace(self._records[name], version=0)

    def drop(self, name: str) -> bool:
        """Forget it."""
        self._records.pop(name, None)
        self._fleet = None
        return True

    def mark_unhealthy(self, evidence: Mapping[str, str]) -> bool:
        """Take these nodes out of placement, and no others. ``evidence``: by node name."""
        self.failing = evidence
        return self._close()

    def mark_interrupted(self, conditions: Mapping[str, str], taints: Mapping[str, str]) -> bool:
        """The same for nodes of which a condition announces the end. A taint that announces it closes its node itself."""
        ending = {**taints, **conditions}
        changed, self.ending, self._interrupted = ending != self.ending, ending, conditions
        return self._close() or changed

    def mark_as(self, other: NodeTable) -> None:
        """Take over the evidence of another table."""
        self.failing, self.ending = other.failing, other.ending
        self._interrupted = other._interrupted
        self._close()

    def _close(self) -> bool:
        before, now = self.closed, {**self.failing, **self._interrupted}
        names = before.keys() | now.keys()
        changed = [name for name in names if before.get(name) != now.get(name)]
        if not changed:
            return False
        self.closed = now
        for name in self._records.keys() & set(changed):
            self._records[name] = self._judged(self._records[name])
            self._fleet = None
        return True

    def _judged(self, record: NodeRecord) -> NodeRecord:
        """The node as the last judgement of its health has it."""
        node, evidence = record.node, self.closed.get(record.node.name, "")
        if node.unhealthy == evidence:
            return record
        closed = record.cordoned or bool(evidence)
        return replace(record, node=replace(node, unhealthy=evidence, unschedulable=closed))
