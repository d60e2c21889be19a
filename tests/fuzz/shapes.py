"""Small clusters with every shape of work: pods as the API server makes them, pods without GPUs, other accelerators, and what passes.

A small snapshot with the features of :mod:`tests.planner.generate_features` gets more nodes, gangs and configuration. Each addition is on or
off whatever the others are.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from queuectl.domain.fleet import HOSTNAME, Effect, Fleet, Node, Taint, Toleration
from queuectl.domain.node_quota import quota_from_nodes
from queuectl.domain.quantity import GPU, Resources
from queuectl.domain.queues import (
    ClusterQueue,
    FlavorQuotas,
    Protection,
    QueueConfig,
    QuotaOverride,
    ResourceGroup,
    WithinClusterQueue,
    in_force,
)
from queuectl.domain.snapshot import Admitted, Pending, Snapshot
from queuectl.domain.workload import PodSet, Workload
from tests.planner.build import NOW, gang, holding, node, podset, resources
from tests.planner.generate import FreeNodes
from tests.planner.generate_features import HOUR, MODELS, Sizes, place_anywhere, snapshot_of

SMALL: Final = Sizes(nodes=(3, 7), running=(0, 4), pending=(1, 2), hinders=0.15)
ACCELERATORS: Final = ("google.com/tpu", "aws.amazon.com/neuron", "habana.ai/gaudi")
SHAPES: Final = frozenset(
    (
        *("RuntimeClass", "ExtendedResourceToleration", "preemptionPolicy Never", "CPU gangs"),
        *("accelerators", "resized pods", "cordoned", "not ready", "start-up taint"),
        *("unhealthy devices", "quota overrides", "quota from nodes", "minCount 0"),
        *("never fits", "twins", "refused node", "too large now"),
    )
)
"""The additions to the features of the snapshot."""
_GPU_TAINT: Final = Taint(GPU, Effect.NO_SCHEDULE, "present")
_START_UP: Final = (
    "node.cloudprovider.kubernetes.io/uninitialized",
    "node.cilium.io/agent-not-ready",
    "startup-taint.cluster-autoscaler.kubernetes.io/driver",
    "node.kubernetes.io/disk-pressure",
)


@dataclass(frozen=True, slots=True)
class Shaped:
    """A snapshot, and the configuration of which its quotas follow.

    Attributes:
        snapshot: with the quotas that are in force.
        stated: with overrides, and with the stated quotas where quota follows the nodes.
        on: the additions that it has.
    """

    snapshot: Snapshot
    stated: QueueConfig
    on: frozenset[str]


def quotas_at(stated: QueueConfig, now: float, fleet: Fleet) -> QueueConfig:
    """The configuration with the quotas of a time (unix seconds) and of these nodes."""
    return quota_from_nodes(in_force(stated, now), fleet)


def shaped(seed: int) -> Shaped:
    """The snapshot of a seed."""
    rng = random.Random(f"shapes {seed}")
    on = frozenset(name for name in sorted(SHAPES) if rng.random() < 0.4)
    made = _Shaping(rng, on, snapshot_of(seed, SMALL))
    return made.all()


class _Shaping:
    """The additions to one snapshot."""

    def __init__(self, rng: random.Random, on: frozenset[str], snapshot: Snapshot) -> None:
        self.rng, self.on, self.snapshot = rng, on, snapshot
        self.queues = sorted(snapshot.config.cluster_queues)
        self.nodes = list(snapshot.fleet.nodes)
        self.running = list(snapshot.admitted)
        self.pending = list(snapshot.pending)
        self.other = dict(snapshot.other_pods)
        self.stated = snapshot.config

    def all(self) -> Shaped:
        self._configured()
        self._nodes()
        self._run()
        self._wait()
        self.nodes = [self._worn(one) for one in self.nodes]
        self.rng.shuffle(self.pending)
        fleet = Fleet(tuple(sorted(self.nodes, key=lambda one: one.name)))
        snapshot = replace(
            self.snapshot,
            fleet=fleet,
            config=quotas_at(self.stated, NOW, fleet),
            pending=tuple(self.pending),
            admitted=tuple(self.running),
            other_pods=self.other,
        )
        return Shaped(snapshot, self.stated, self.on)

    def some(self, what: str, chance: float = 0.5) -> bool:
        return what in self.on and self.rng.random() < chance

    # ---- configuration

    def _configured(self) -> None:
        """Quota for the accelerators, overrides, and quota that follows the nodes."""
        config = self.stated
        queues = {name: self._covering(one) for name, one in config.cluster_queues.items()}
        overrides = {}
        for name, one in queues.items():
            if self.some("quota overrides", 0.6):
                [quotas, *_] = one.groups[0].flavors
                begins = self.rng.choice((-HOUR, HOUR))
                change: dict[str, Any] = self.rng.choice(
                    ({"add": -8}, {"add": 8}, {"add": 32}, {"nominal": 24}, {"nominal": 0})
                )
                overrides[name] = QuotaOverride(
                    name, name, quotas.flavor, GPU, NOW + begins, NOW + 2 * HOUR, **change
                )
            if self.some("quota from nodes", 0.6):
                queues[name] = replace(one, headroom=self.rng.choice((0.0, 0.25)))
        flavors = dict(config.flavors)
        if "default" in flavors:
            flavors["default"] = replace(flavors["default"], node_labels=(("pool", "x"),))
        self.stated = replace(config, cluster_queues=queues, overrides=overrides, flavors=flavors)

    def _covering(self, one: ClusterQueue) -> ClusterQueue:
        one = replace(one, split_flavors=one.split_flavors and self.rng.random() < 0.3)
        if "accelerators" not in self.on:
            return one

        def more(quotas: FlavorQuotas) -> FlavorQuotas:
            amounts = {name: self.rng.choice((0, 4, 8, 64)) for name in ACCELERATORS}
            return replace(quotas, nominal={**quotas.nominal, **amounts})

        groups = (
            ResourceGroup((*g.covered, *ACCELERATORS), tuple(map(more, g.flavors)))
            for g in one.groups
        )
        return replace(one, groups=tuple(groups))

    # ---- nodes

    def _nodes(self) -> None:
        racks = sorted({(one.labels["block"], one.labels["rack"]) for one in self.nodes})
        more: list[tuple[str, dict[str, Any]]] = []
        if "CPU gangs" in self.on:
            more += [("cpu", {}) for _ in range(self.rng.randint(1, 2))]
        if "accelerators" in self.on:
            more += [(name, {name: self.rng.choice((4, 8))}) for name in self._accelerators()]
        if "RuntimeClass" in self.on:
            more.append(("kata", {"gpu": self.rng.choice((0, 4))}))
        for i, (kind, amounts) in enumerate(more):
            block, rack = self.rng.choice(racks)
            labels = {"model": self.rng.choice(MODELS), "kind": kind}
            made = node(
                f"x{i}",
                f"{block}/{rack}",
                cpu=self.rng.choice((4, 16, 32)),
                memory=64,
                labels=labels,
                taints=[Taint("sandbox", Effect.NO_SCHEDULE, "kata")] if kind == "kata" else (),
                **amounts,
            )
            self.nodes.append(made)
        tainted = "ExtendedResourceToleration" in self.on
        for i, one in enumerate(self.nodes):
            taints = (*one.taints, _GPU_TAINT) if tainted and one.allocatable[GPU] else one.taints
            self.nodes[i] = replace(one, taints=taints, labels={**one.labels, "pool": "x"})

    def _accelerators(self) -> list[str]:
        return self.rng.sample(ACCELERATORS, self.rng.randint(1, 2))

    def _worn(self, one: Node) -> Node:
        """The node, perhaps with a cause that passes."""
        gpus = one.allocatable[GPU]
        if self.some("unhealthy devices", 0.4) and gpus:
            fails = resources(gpu=self.rng.randint(1, gpus))
            one = replace(one, allocatable=one.allocatable - fails, failed=fails)
        if self.some("cordoned", 0.3):
            one = replace(one, unschedulable=True)
        if self.some("not ready", 0.2):
            one = replace(one, ready=False)
        if self.some("start-up taint", 0.3):
            taint = Taint(self.rng.choice(_START_UP), Effect.NO_SCHEDULE)
            one = replace(one, taints=(*one.taints, taint))
        return one

    # ---- gangs

    def _run(self) -> None:
        """Gangs and pods that run."""
        room = FreeNodes(self.nodes)
        for held in self.running:
            for name, used in held.placement.use(held.workload).items():
                room.left[name] -= used
        for name, used in self.other.items():
            room.left[name] -= used
        for i in range(self.rng.randint(0, 3)):
            wanted = self._gang(f"s{i}", self._shape())
            found = place_anywhere(self.rng, wanted, self.nodes, room, self.stated)
            if found is not None:
                ran = self.rng.choice((10.0, 1000.0, 90_000.0))
                self.running.append(replace(found, started_at=NOW - ran))
        for one in self.nodes:
            amounts = resources(cpu=self.rng.choice((1, 3)), memory=self.rng.choice((0, 40)))
            if self.some("resized pods", 0.4) and room.take(one.name, amounts):
                self.other[one.name] = self.other.get(one.name, resources(pods=1)) + amounts
        if "twins" in self.on:
            self._twins(room)

    def _twins(self, room: FreeNodes) -> None:
        """Equal gangs fill the GPUs of a node, and a gang of higher priority wants one."""
        ready = [n for n in self.nodes if n.ready and 2 <= room.left[n.name].get(GPU, 0) <= 8]
        if not ready:
            return
        there, name = self.rng.choice(ready), self.rng.choice(self.queues)
        queues = dict(self.stated.cluster_queues)
        queues[name] = replace(
            queues[name],
            within_cluster_queue=WithinClusterQueue.LOWER_PRIORITY,
            protection=Protection(),
            time_slice=None,
        )
        self.stated = replace(self.stated, cluster_queues=queues)
        flavor = next(
            f.name
            for f in self.stated.flavors.values()
            if f.topology is not None and there.has_labels(f.node_labels)
        )
        tolerates = self._tolerating(resources(gpu=1))
        for i in range(room.left[there.name][GPU]):
            wanted = gang(f"t{i}", podset(gpu=1, tolerations=tolerates), queue=name, queued_at=1.0)
            if room.take(there.name, wanted.requests):
                ages = [10.0, 20.0, 300.0, 5000.0]
                held = holding(wanted, {there.name: 1}, flavor=flavor, utilization=0.0)
                self.running.append(replace(held, started_at=NOW - self.rng.choice(ages)))
        select = {HOSTNAME: there.name}
        urgent = podset(gpu=1, select=select, tolerations=tolerates)
        self.pending.append(Pending(gang("urgent", urgent, queue=name, priority=9)))

    def _wait(self) -> None:
        """Gangs that wait."""
        self.pending = [self._changed(entry) for entry in self.pending]
        for i in range(self.rng.randint(2, 6)):
            pods = [self._shape() for _ in range(self.rng.choice((1, 1, 2)))]
            self.pending.append(self._entry(f"x{i}", *pods))
        if "never fits" in self.on:
            for i in range(self.rng.randint(1, 2)):
                self.pending.append(self._entry(f"never{i}", self._impossible()))
        if "too large now" in self.on:
            whole = podset(
                count=len(self.nodes), gpu=1, tolerations=self._tolerating(resources(gpu=1))
            )
            self.pending.append(self._entry("all", whole))

    def _entry(self, uid: str, *pods: PodSet) -> Pending:
        pods = tuple(replace(one, name=f"p{i}") for i, one in enumerate(pods))
        return self._changed(Pending(self._gang(uid, *pods)))

    def _gang(self, uid: str, *pods: PodSet) -> Workload:
        return gang(
            uid,
            *pods,
            priority=self.rng.choice((0, 0, 1, 3, 5)),
            queued_at=float(self.rng.randint(0, 50)),
            queue=self.rng.choice(self.queues),
        )

    def _changed(self, entry: Pending) -> Pending:
        """As admission plugins and PriorityClasses make it."""
        workload = entry.workload
        if self.some("preemptionPolicy Never", 0.4):
            workload = replace(workload, preempts=False)
        pods = tuple(self._admitted(one) for one in workload.podsets)
        if len(pods) > 1 and self.some("minCount 0") and not _slices(pods[-1]):
            pods = (*pods[:-1], replace(pods[-1], min_count=0))
        if self.some("refused node", 0.3):
            entry = replace(entry, excluded=frozenset((self.rng.choice(self.nodes).name,)))
        return replace(entry, workload=replace(workload, podsets=pods))

    def _admitted(self, one: PodSet) -> PodSet:
        """The pods with what the API server adds."""
        shape = one.shape
        rules, requests = shape.rules, shape.requests
        more = self._tolerating(requests)
        rules = replace(rules, tolerations=tuple(dict.fromkeys((*rules.tolerations, *more))))
        if self.some("RuntimeClass", 0.3):
            requests = requests + resources(cpu=self.rng.choice((1, 2)), memory=8)
            kata = Toleration("sandbox", "Equal", "kata")
            rules = replace(rules, tolerations=(*rules.tolerations, kata))
            if self.rng.random() < 0.5:
                rules = replace(rules, selector=tuple(sorted((*rules.selector, ("kind", "kata")))))
        return replace(one, shape=replace(shape, rules=rules, requests=requests))

    def _tolerating(self, requests: Resources) -> tuple[Toleration, ...]:
        """The tolerations that ExtendedResourceToleration adds."""
        if "ExtendedResourceToleration" in self.on and requests.get(GPU, 0):
            return (Toleration(GPU, "Exists"),)
        return ()

    def _shape(self) -> PodSet:
        """Pods without GPUs, with other accelerators, or with GPUs."""
        level = self.rng.choice((None, None, "rack", HOSTNAME))
        topology: dict[str, Any] = {self.rng.choice(("required", "preferred")): level}
        together = topology if level else {}
        count = self.rng.choice((1, 1, 2, 3))
        if self.some("CPU gangs", 0.6):
            return podset(count=count, cpu=self.rng.choice((1, 4, 8, 16)), **together)
        if self.some("accelerators", 0.6):
            amounts: dict[str, Any] = {
                self.rng.choice(ACCELERATORS): self.rng.choice((1, 4, 8)),
                "cpu": self.rng.choice((0, 1, 8)),
            }
            return podset(count=count, **together, **amounts)
        return podset(count=count, gpu=self.rng.choice((1, 2, 8)), cpu=1, **together)

    def _impossible(self) -> PodSet:
        """Pods that no state of this cluster has room for."""
        return self.rng.choice(
            (
                podset(gpu=9),
                podset(cpu=33),
                podset(gpu=1, select={"kind": "unknown"}),
                podset(gpu=1, fpga=1),
                podset(count=40, gpu=8),
                podset(count=6, gpu=8, required=HOSTNAME),
            )
        )


def _slices(one: PodSet) -> bool:
    return one.topology is not None and bool(one.topology.slices)


def lasting(made: Shaped) -> Iterator[Snapshot]:
    """The states in which only causes that last are left: no other gangs and pods, all nodes recovered, the quotas of each time."""
    fleet = Fleet(tuple(map(_recovered, made.snapshot.fleet.nodes)))
    times = {NOW, *(at for o in made.stated.overrides.values() for at in (o.begins, o.ends))}
    for at in sorted(time for time in times if time >= NOW):
        config = quotas_at(made.stated, at, fleet)
        yield replace(made.snapshot, fleet=fleet, config=config, admitted=(), other_pods={})


def _recovered(one: Node) -> Node:
    """By what was done to it here."""
    taints = tuple(taint for taint in one.taints if taint.key not in _START_UP)
    healthy = replace(one, allocatable=one.allocatable + one.failed, failed=Resources({}))
    return replace(healthy, taints=taints, ready=True, unschedulable=False)


def shapes_of(made: Shaped) -> Sequence[str]:
    """The additions of which the snapshot has some object."""
    nodes, entries = made.snapshot.fleet.nodes, made.snapshot.pending
    gangs: list[Admitted | Pending] = [*entries, *made.snapshot.admitted]
    pods = [p for g in gangs for p in g.workload.podsets]
    held: list[Admitted] = list(made.snapshot.admitted)
    queues = made.stated.cluster_queues.values()
    has = {
        "RuntimeClass": any(t.key == "sandbox" for p in pods for t in p.shape.rules.tolerations),
        "ExtendedResourceToleration": any(_GPU_TAINT in one.taints for one in nodes),
        "preemptionPolicy Never": any(not g.workload.preempts for g in gangs),
        "CPU gangs": "CPU gangs" in made.on
        and any(all(_plain(p) for p in g.workload.podsets) for g in gangs),
        "accelerators": any(p.shape.requests.get(n, 0) for p in pods for n in ACCELERATORS),
        "resized pods": any(used.get("memory", 0) for used in made.snapshot.other_pods.values()),
        "cordoned": any(one.unschedulable for one in nodes),
        "not ready": "not ready" in made.on and any(not one.ready for one in nodes),
        "start-up taint": any(t.key in _START_UP for one in nodes for t in one.taints),
        "unhealthy devices": any(one.failed for one in nodes),
        "quota overrides": bool(made.stated.overrides),
        "quota from nodes": any(one.headroom is not None for one in queues),
        "minCount 0": any(p.min_count == 0 for p in pods),
        "never fits": any(g.workload.uid.startswith("never") for g in gangs),
        "twins": sum(g.workload.uid.startswith("t") for g in held) > 1,
        "refused node": any(entry.excluded for entry in entries),
        "too large now": any(entry.workload.uid == "all" for entry in entries),
    }
    assert has.keys() == SHAPES
    return [name for name, found in has.items() if found]


def _plain(one: PodSet) -> bool:
    return not any(one.shape.requests.get(name, 0) for name in (GPU, *ACCELERATORS))
