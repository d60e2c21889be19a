"""Checks of the invariants on the ledger and the cluster.

Each check reads one moment. The watch can be behind the ledger, so a violation counts only if it is found twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from queuectl.domain.fleet import Node
from queuectl.domain.jobs import JobRecord, PodRecord
from queuectl.domain.ledger import LIVE, Entry, Invariant, InvariantViolation, State, violations
from queuectl.domain.quantity import NOTHING, Resources
from queuectl.domain.reasons import Reason
from queuectl.state.ledger import Ledger
from queuectl.state.mirror import Mirror
from queuectl.state.usage import node_of


def of_gang(entry: Entry, mirror: Mirror, names: Mapping[str, str]) -> Iterator[InvariantViolation]:
    """The violated invariants of one workload. ``names``: hostname label -> node name."""
    for text in violations(entry):
        yield violation(Invariant.ENTRY, entry, f"{entry.state}: it does not hold that {text}")
    if entry.uid not in mirror.jobs:
        return
    free = [pod for pod in mirror.pods_of(entry) if not pod.gated and not pod.terminal]
    attempts = sorted({pod.attempt for pod in free})
    if len(attempts) > 1:
        yield violation(Invariant.ONCE, entry, f"pods of the attempts {attempts} run at once")
    ranks = Counter(
        (pod.podset, pod.rank) for pod in free if pod.rank is not None and not pod.terminating
    )
    for (podset, rank), count in ranks.items():
        if count > 1:
            text = f"{count} pods of rank {rank} of podset {podset} run at once"
            yield violation(Invariant.ONCE, entry, text)
    yield from _uncommitted(entry, attempts)
    yield from _misplaced(entry, free, names)


def _uncommitted(entry: Entry, attempts: Iterable[int]) -> Iterator[InvariantViolation]:
    if entry.state is State.EVICTING:
        wrong = [attempt for attempt in attempts if attempt > entry.attempt]
    else:
        wrong = [a for a in attempts if not entry.state.live or a != entry.attempt]
    if wrong:
        text = f"{entry.state} as attempt {entry.attempt}, and pods of attempt {wrong[-1]} run"
        yield violation(Invariant.WHOLE, entry, text)


def _misplaced(
    entry: Entry, free: Iterable[PodRecord], names: Mapping[str, str]
) -> Iterator[InvariantViolation]:
    if not entry.state.live or entry.placement is None:
        return
    for pod in free:
        node, placed = node_of(pod, names), entry.placement.of(pod.podset)
        if pod.attempt != entry.attempt or pod.terminating or node is None:
            continue
        if placed is not None and placed.nodes and node not in placed.by_node:
            text = f"pod {pod.name} is on node {node}, where the gang has no slot"
            yield violation(Invariant.PLACED, entry, text)
            return


_DELETED: Final = Node("")


@dataclass(frozen=True)
class CommittedSlots:
    """The committed slots of one moment, which a thread can add up.

    Attributes:
        gangs: those with slots, with their jobs.
        nodes: by name.
        backed: extended resources that a DeviceClass backs.
    """

    gangs: Sequence[tuple[Entry, JobRecord]]
    nodes: Mapping[str, Node]
    backed: Container[str]

    @classmethod
    def of(cls, ledger: Ledger, mirror: Mirror) -> CommittedSlots:
        """Those of a ledger."""
        known = ((entry, mirror.jobs.get(entry.uid)) for entry in ledger.entries(*LIVE))
        gangs = tuple((entry, job) for entry, job in known if job is not None and entry.placement)
        return cls(gangs, mirror.fleet.by_name, mirror.devices.backed)

    def used(self) -> dict[str, tuple[Resources, Entry]]:
        """By node: the sum of its slots, and the gang that started last there.

        Resources that a node has by ResourceSlices only are left out: kube-scheduler allocates devices for them.
        """
        sums: dict[str, Counter[str]] = {}
        newest: dict[str, Entry] = {}
        for entry, job in self.gangs:
            shapes = {podset.name: podset.shape.requests for podset in job.podsets}
            for podset in entry.placement.podsets if entry.placement is not None else ():
                for node, count in podset.nodes:
                    use = sums.setdefault(node, Counter())
                    own = self.nodes.get(node, _DELETED)
                    for name, amount in shapes.get(podset.podset, NOTHING).items():
                        if own.serves(name, self.backed):
                            use[name] += amount * count
                    known = newest.setdefault(node, entry)
                    if (entry.started_at or 0.0) > (known.started_at or 0.0):
                        newest[node] = entry
        return {node: (Resources(use), newest[node]) for node, use in sums.items()}

    def over(self) -> list[InvariantViolation]:
        """Nodes whose slots exceed their capacity now."""
        return [*_over(self.used(), {name: node.allocatable for name, node in self.nodes.items()})]


class HighWaterMarks:
    """The largest capacity that each node has had. A node that has lost a device is not a violation: no gang was started on it since.

    The use of a node at its first observation counts as its capacity.
    """

    def __init__(self) -> None:
        self._most: dict[str, Resources] = {}
        self._seen: Mapping[str, Node] = {}

    def over(self, slots: CommittedSlots) -> list[InvariantViolation]:
        """Nodes whose slots exceed each capacity that they have had since the first call."""
        used, most, known = slots.used(), self._most, self._seen
        for name in most.keys() - slots.nodes.keys():
            del most[name]
        for name, node in slots.nodes.items():
            if known.get(name) is not node:
                seen = most.get(name, used[name][0] if name in used else NOTHING)
                most[name] = _most(seen, node.allocatable)
        self._seen = slots.nodes
        return [*_over(used, most)]


def _over(
    used: Mapping[str, tuple[Resources, Entry]], has: Mapping[str, Resources]
) -> Iterator[InvariantViolation]:
    for node, (use, newest) in used.items():
        if node not in has:
            continue  # a lost node: its pods are replaced
        for name, amount in use.items():
            if amount > has[node][name]:
                text = f"the slots on node {node} take {amount} of {has[node][name]} {name}"
                yield violation(Invariant.CAPACITY, newest, text)
                break


def _most(left: Resources, right: Resources) -> Resources:
    return Resources({name: max(left[name], right[name]) for name in {*left, *right}})


def of_row(entry: Entry, stored: Entry | None) -> Iterator[InvariantViolation]:
    """Whether the database and the leader have the same entry of a workload. ``stored``: its row, None without one."""
    if stored is None or stored.state is State.FINISHED:
        yield violation(Invariant.DATABASE, entry, "the database does not hold it")
    elif _plain(stored) != _plain(entry):
        text = f"the database holds {stored.state} in version {stored.version}, the leader {entry.state} in {entry.version}"
        yield violation(Invariant.DATABASE, entry, text)


def _plain(entry: Entry) -> Entry:
    """The entry without its messages, which are for users only."""
    parked = Reason(entry.parked.code) if entry.parked is not None else None
    return replace(entry, reason=Reason(entry.reason.code), parked=parked)


def violation(invariant: Invariant, entry: Entry, message: str) -> InvariantViolation:
    """A violation of this workload."""
    return InvariantViolation(
        invariant, entry.uid, entry.kind, entry.namespace, entry.name, message
    )
