"""The nodes in the copy of the cluster that the watch keeps, and the evidence against some of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from queuectl.domain.fleet import Fleet
from queuectl.domain.node_health import GpuFault, HealthMode, HealthSignal, NodeHealthRules
from queuectl.domain.records import NodeRecord

# ---- Nodes of the copy


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
        self._reconfigured: dict[str, NodeRecord] = {}

    @property
    def reconfigured(self) -> Collection[NodeRecord]:
        """The nodes with a change of their MIG configuration, including a change that has ended."""
        return self._reconfigured.values()

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
        """Keep it, unless the current one is as new. A heartbeat changes no plan."""
        old = self._records.get(record.node.name)
        if old is not None and record.version <= old.version:
            return False
        record = self._judged(record)
        if old is not None and old.node == record.node:
            record = replace(record, node=old.node)  # what follows from the object stays valid
        self._keep(record)
        judged_anew = old is None or old.conditions != record.conditions
        if judged_anew:
            self.conditions_seen += 1
        if old is None or old.node is not record.node:
            self._fleet = None
            return True
        return judged_anew

    def expect_again(self, name: str) -> None:
        """Let the next record of this node replace the current one, also with the same version."""
        self._keep(replace(self._records[name], version=0))

    def drop(self, name: str) -> bool:
        """Forget it."""
        self._records.pop(name, None)
        self._reconfigured.pop(name, None)
        self._fleet = None
        return True

    def _keep(self, record: NodeRecord) -> None:
        name = record.node.name
        self._records[name] = record
        if record.node.mig is not None:
            self._reconfigured[name] = record
        else:
            self._reconfigured.pop(name, None)

    def mark_unhealthy(self, evidence: Mapping[str, str]) -> bool:
        """Take these nodes out of placement, and no others. ``evidence``: by node name."""
        self.failing = evidence
        return self._close()

    def mark_interrupted(self, conditions: Mapping[str, str], taints: Mapping[str, str]) -> bool:
        """The same for nodes of which a condition announces the end. A taint that announces it closes its node itself."""
        ending = {**taints, **conditions}
        changed, self.ending, self._interrupted = ending != self.ending, ending, conditions
        return self._close() or changed

    def mark_as(self, table: NodeTable) -> None:
        """Take over the evidence of another table."""
        self.failing, self.ending = table.failing, table.ending
        self._interrupted = table._interrupted
        self._close()

    def _close(self) -> bool:
        before, now = self.closed, {**self.failing, **self._interrupted}
        names = before.keys() | now.keys()
        changed = [name for name in names if before.get(name) != now.get(name)]
        if not changed:
            return False
        self.closed = now
        for name in self._records.keys() & set(changed):
            self._keep(self._judged(self._records[name]))
            self._fleet = None
        return True

    def _judged(self, record: NodeRecord) -> NodeRecord:
        """The node as the last judgment of its health has it."""
        node, evidence = record.node, self.closed.get(record.node.name, "")
        if node.unhealthy == evidence:
            return record
        closed = record.cordoned or bool(evidence)
        return replace(record, node=replace(node, unhealthy=evidence, unschedulable=closed))


# ---- Health of nodes
#
# A fault counts while it is observed, and for the time of the rule after that. Without an answer of the source nothing new is found, and
# what was found expires after the same time. A node is never taken out because data is missing or old.

_SHOWN = 3  # findings of one node in its evidence


_CONDITION = "condition "


class _Finding(NamedTuple):
    """``signal``: None = found by an earlier leader. ``gpu``: in words; empty = it is about the node."""

    signal: HealthSignal | None
    text: str
    gpu: str = ""


class Judgment(NamedTuple):
    """The result of one evaluation.

    Attributes:
        out: evidence against the nodes to take out of placement, by name.
        staying: evidence against nodes that stay in placement: the mode is Report, or too many are unhealthy.
        signals: for each signal, the number of nodes with a finding.
    """

    out: Mapping[str, str]
    staying: Mapping[str, str]
    signals: Mapping[HealthSignal, int]


class NodeHealthTracker:
    """Judges all nodes with each evaluation, and keeps the times of the last observations."""

    def __init__(self, earlier: Mapping[str, str] | None = None) -> None:
        """``earlier``: the evidence of the last leader against the nodes that it took out, by name."""
        self._seen: dict[GpuFault, float] = {}
        self._earlier = {name: text for name, text in (earlier or {}).items() if _of_gpus(text)}
        self._began: float | None = None  # the time of the first evaluation
        self._out: tuple[str, ...] = tuple(self._earlier)  # the longest first

    def judge(
        self,
        nodes: Mapping[str, NodeRecord],
        faults: Iterable[GpuFault] | None,
        rules: NodeHealthRules,
        now: float,
    ) -> Judgment:
        """Judge these nodes, by name.

        Args:
            nodes: all nodes.
            faults: of GPUs, as of ``now``; None = the source does not answer, or does not exist.
            rules: those in use.
            now: unix seconds.
        """
        # The last leader does not record when it observed the faults last: at most this long ago, they count from now on.
        self._began = now if self._began is None else self._began
        if now - self._began > rules.hold:
            self._earlier = {}
        self._seen |= dict.fromkeys(faults or (), now)
        self._seen = {f: at for f, at in self._seen.items() if now - at <= rules.hold}
        if rules.mode is HealthMode.OFF:
            self._out = ()
            return Judgment({}, {}, {})
        found = self._found(nodes, rules)
        evidence = {name: _evidence(findings) for name, findings in found.items()}
        signals = {
            signal: sum(
                any(one.signal is signal for one in findings) for findings in found.values()
            )
            for signal in HealthSignal
        }
        out = self._limited(sorted(evidence), len(nodes), rules)
        closed = {name: evidence[name] for name in out}
        return Judgment(
            closed,
            {name: text for name, text in evidence.items() if name not in closed},
            signals,
        )

    def _found(
        self, nodes: Mapping[str, NodeRecord], rules: NodeHealthRules
    ) -> dict[str, list[_Finding]]:
        """The findings of each node."""
        by_node: dict[str, list[_Finding]] = {}
        for name, record in nodes.items():
            for kind, status, reason in record.conditions:
                if (kind, status) in rules.conditions:
                    text = in_words(kind, status, reason)
                    by_node.setdefault(name, []).append(_Finding(HealthSignal.CONDITION, text))
        own = set(by_node)
        hosts = {record.node.hostname: name for name, record in nodes.items()}
        for fault in sorted(self._seen):
            place = fault.node if fault.node in nodes else hosts.get(fault.node)
            if place is not None and fault.signal in rules.signals:
                text = f"{fault.device}: {fault.text}"
                by_node.setdefault(place, []).append(_Finding(fault.signal, text, fault.device))
                own.add(place)
        for name, text in self._earlier.items():
            if name in nodes and name not in own:
                by_node[name] = [_Finding(None, text)]
        return by_node

    def _limited(self, failing: list[str], fleet: int, rules: NodeHealthRules) -> tuple[str, ...]:
        """The nodes to take out: those that are out already come first, and no more than the limit."""
        if rules.mode is not HealthMode.CORDON:
            self._out = ()
        else:
            known = dict.fromkeys(failing)
            stay = dict.fromkeys(name for name in self._out if name in known)
            self._out = tuple({**stay, **known})[: rules.most_unhealthy(fleet)]
        return self._out


def in_words(kind: str, status: str, reason: str) -> str:
    """A condition of a node."""
    return f"{_CONDITION}{kind}={status}" + (f" ({reason})" if reason else "")


def _evidence(findings: Sequence[_Finding]) -> str:
    """In words, with the number of GPUs where several are affected."""
    gpus = len({one.gpu for one in findings if one.gpu})
    shown = "; ".join(one.text for one in findings[:_SHOWN])
    more = f" and {len(findings) - _SHOWN} more" if len(findings) > _SHOWN else ""
    return (f"{gpus} GPUs: " if gpus > 1 else "") + shown + more


def _of_gpus(evidence: str) -> bool:
    """Whether a part of it is about a GPU. A condition is a state of the node, which the watch shows."""
    _, counted, parts = evidence.partition(" GPUs: ")
    return (
        bool(counted)
        or evidence.endswith(" more")
        or any(not part.startswith(_CONDITION) for part in (parts or evidence).split("; "))
    )
