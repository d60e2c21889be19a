"""The changes of a configuration, or of the requests of jobs, that are worth a simulation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import count
from math import gcd
from typing import Any, Final

from queuectl.domain.fleet import HOSTNAME
from queuectl.domain.quantity import GPU, PODS
from queuectl.domain.queues import QueueingStrategy
from queuectl.objects.configuration.config_kinds import API_VERSION
from queuectl.objects.documents import Document
from queuectl.objects.keys import PREFIX, REQUIRED_TOPOLOGY
from queuectl.simulate.setting import Setting
from queuectl.simulate.trace import TraceJob

# ---- Changes to compare

Body = dict[str, Any]
Jobs = tuple[TraceJob, ...]
Edit = Callable[[Body], None]
"""Changes the body of a ClusterQueue in place."""


class Kind(StrEnum):
    """The subject of a change. Changes of several kinds can be combined."""

    QUOTA = "quota"
    STRATEGY = "strategy"
    PREEMPTION = "preemption"
    TOPOLOGY = "topology"
    IDLE_RECLAIM = "idle reclaim"


@dataclass(frozen=True, slots=True)
class Change:
    """One change.

    Attributes:
        kinds: what it is about.
        name: in one line, for people.
        queues: changes the ClusterQueues.
        jobs: changes the requests of the jobs.
        instruction: what else is to be done to apply it; empty = nothing.
    """

    kinds: tuple[Kind, ...]
    name: str
    queues: Edit = lambda _: None
    jobs: Callable[[Jobs], Jobs] = lambda jobs: jobs
    instruction: str = ""

    def documents(self, before: Sequence[Document]) -> list[Document]:
        """The input after the change. Objects that do not change stay the same objects."""
        return [self._changed(document) for document in before]

    def _changed(self, document: Document) -> Document:
        if document.kind != "ClusterQueue":
            return document
        body = deepcopy(document.body)
        self.queues(body)
        return document if body == document.body else replace(document, body=body)

    def differs(self, before: Sequence[Document], jobs: Jobs) -> bool:
        """Whether it changes anything."""
        after = self.documents(before)
        return (
            any(a is not b for a, b in zip(after, before, strict=True)) or self.jobs(jobs) != jobs
        )


def combined(changes: Sequence[Change]) -> Change:
    """All of these changes together, one after the other."""

    def queues(body: Body) -> None:
        for change in changes:
            change.queues(body)

    def jobs(requests: Jobs) -> Jobs:
        for change in changes:
            requests = change.jobs(requests)
        return requests

    return Change(
        tuple(kind for change in changes for kind in change.kinds),
        " + ".join(change.name for change in changes),
        queues,
        jobs,
        " ".join(change.instruction for change in changes if change.instruction),
    )


def set_field(*path: str, to: object) -> Edit:
    """Sets a field of the spec."""

    def edit(body: Body) -> None:
        at = body.setdefault("spec", {})
        for name in path[:-1]:
            below = at.get(name)
            at[name] = at = dict(below) if isinstance(below, dict) else {}
        at[path[-1]] = to

    return edit


def only_if(matches: Callable[[Body], bool], edit: Edit) -> Edit:
    """The edit, of the ClusterQueues that match."""

    def checked(body: Body) -> None:
        if matches(body):
            edit(body)

    return checked


def changed_objects(before: Iterable[Document], after: Iterable[Document]) -> list[Body]:
    """The bodies of the objects that differ."""
    return [b.body for a, b in zip(before, after, strict=True) if a is not b]


# ---- Other splits of the GPU quota

_SHARES: Final = {"halfway to demand": 0.5, "by demand": 1.0}

_COHORT: Final = {
    "kueue.x-k8s.io/v1beta1": "cohort",
    "kueue.x-k8s.io/v1beta2": "cohortName",
    API_VERSION: "cohortName",
}

_OTHER_RESOURCES: Final = "Change the quotas of the other resources in the same proportion."

Split = dict[str, int]
"""ClusterQueue to GPUs."""


def quota_splits(documents: Sequence[Document], setting: Setting) -> Iterator[Change]:
    """The GPUs of each flavor by the GPU-seconds that the jobs of its queues request, in part or fully.

    Each queue keeps enough for its largest job that fits now.
    """
    present = _present(documents)
    if not present:
        return
    yield from _shared(documents, present)
    demand, largest = _demand(setting)
    unit = gcd(*(node.allocatable[GPU] for node in setting.fleet.nodes)) or 1
    for name, share in _SHARES.items():
        splits = {
            flavor: _split(quotas, demand, largest, share, unit)
            for flavor, quotas in present.items()
        }
        moved = ", ".join(
            f"{queue} {quotas[queue]} → {number}"
            for flavor, quotas in sorted(present.items())
            for queue, number in sorted(splits[flavor].items())
            if number != quotas[queue]
        )
        more = _OTHER_RESOURCES if _covers_others(documents) else ""
        yield Change((Kind.QUOTA,), f"quota {name}: {moved}", _edit(splits), instruction=more)


def _shared(documents: Sequence[Document], present: Mapping[str, Split]) -> Iterator[Change]:
    """The ClusterQueues of a flavor, none of which has a cohort, in one cohort."""
    free = {
        document.body["metadata"]["name"]
        for document in documents
        if document.kind == "ClusterQueue"
        and not any((document.body.get("spec") or {}).get(name) for name in _COHORT.values())
    }
    cohort = _unused(documents)
    for flavor, quotas in sorted(present.items()):
        queues = sorted(quotas)
        if not free.issuperset(queues):
            continue

        def edit(body: dict[str, Any], queues: Sequence[str] = queues) -> None:
            if body["metadata"]["name"] in queues:
                field = _COHORT.get(str(body.get("apiVersion")), "cohortName")
                set_field(field, to=cohort)(body)
                set_field("preemption", "reclaimWithinCohort", to="Any")(body)

        name = f"one cohort of {' and '.join(queues)}, which reclaim their quota (flavor {flavor})"
        yield Change((Kind.QUOTA,), name, edit)


def _unused(documents: Sequence[Document]) -> str:
    """The name of a cohort that the documents do not name."""
    specs = [document.body.get("spec") or {} for document in documents]
    taken = {str(spec.get(name)) for spec in specs for name in (*_COHORT.values(), "parentName")}
    taken |= {d.body["metadata"]["name"] for d in documents if d.kind == "Cohort"}
    names = ("shared" if number == 1 else f"shared-{number}" for number in count(1))
    return next(name for name in names if name not in taken)


def _present(documents: Sequence[Document]) -> dict[str, Split]:
    """By flavor, the nominal quotas of ClusterQueues that are whole numbers; flavors of several queues only."""
    by_flavor: dict[str, Split] = defaultdict(dict)
    for document in documents:
        if document.kind != "ClusterQueue":
            continue
        for flavor, resource in _resources(document.body):
            amount = str(resource.get("nominalQuota"))
            if amount.isdecimal() and len(amount) < 19:
                by_flavor[flavor][document.body["metadata"]["name"]] = int(amount)
    return {flavor: quotas for flavor, quotas in by_flavor.items() if len(quotas) > 1}


def _resources(body: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Flavor and entry of each quota of GPUs."""
    for group in (body.get("spec") or {}).get("resourceGroups") or ():
        for flavor in group.get("flavors") or ():
            for resource in flavor.get("resources") or ():
                if resource.get("name") == GPU:
                    yield str(flavor.get("name")), resource


def _covers_others(documents: Sequence[Document]) -> bool:
    """Whether ClusterQueues have quota of resources other than GPUs and pods."""
    return any(
        set(group.get("coveredResources") or ()) - {GPU, PODS}
        for document in documents
        if document.kind == "ClusterQueue"
        for group in (document.body.get("spec") or {}).get("resourceGroups") or ()
    )


def _demand(setting: Setting) -> tuple[dict[str, float], Split]:
    """GPU-seconds of all jobs, and GPUs of the largest one, by ClusterQueue."""
    demand: dict[str, float] = defaultdict(float)
    largest: Split = defaultdict(int)
    for job in setting.jobs:
        queue = setting.cluster_queue(job.queue).name
        demand[queue] += job.gpus * job.runs_for
        largest[queue] = max(largest[queue], job.gpus)
    return demand, largest


def _split(
    quotas: Split,
    demand: Mapping[str, float],
    largest: Mapping[str, int],
    share: float,
    node: int,
) -> Split:
    """In whole nodes if all quotas are. ``node``: GPUs of a node."""
    total, unit = sum(quotas.values()), gcd(node, *quotas.values())
    unit = unit if unit == node else 1
    requested = sum(demand.get(queue, 0.0) for queue in quotas)
    if not requested:
        return quotas
    targets = {
        queue: (1 - share) * now + share * total * demand.get(queue, 0.0) / requested
        for queue, now in quotas.items()
    }
    least = {
        queue: -(-min(largest.get(queue, 0), now) // unit) * unit for queue, now in quotas.items()
    }
    split = {queue: max(least[queue], int(targets[queue] // unit) * unit) for queue in quotas}
    while (left := total - sum(split.values())) != 0:
        step = unit if left > 0 else -unit
        open_queues = [q for q in sorted(split) if step > 0 or split[q] > least[q]]
        if not open_queues:
            return quotas
        queue = max(open_queues, key=lambda q: (targets[q] - split[q]) * step)
        split[queue] += step
    return split


def _edit(splits: Mapping[str, Split]) -> Any:
    def edit(body: dict[str, Any]) -> None:
        name = body["metadata"]["name"]
        for flavor, resource in _resources(body):
            number = splits.get(flavor, {}).get(name)
            if number is not None and number != int(resource["nominalQuota"]):
                resource["nominalQuota"] = number

    return edit


# ---- Changes that are worth a simulation

_ANNOTATION: Final = f"{PREFIX}{REQUIRED_TOPOLOGY}"


def candidates(documents: Sequence[Document], setting: Setting) -> list[Change]:
    """All changes that differ from the input, in a fixed order."""
    every = [
        *quota_splits(documents, setting),
        *_strategies(),
        *_preemption(setting),
        *_topology(setting),
        *_idle_reclaim(setting),
    ]
    return [change for change in every if change.differs(documents, setting.jobs)]


def _strategies() -> Iterator[Change]:
    for strategy in QueueingStrategy:
        yield Change(
            (Kind.STRATEGY,),
            f"queueingStrategy {strategy}",
            set_field("queueingStrategy", to=strategy.value),
        )


def _preemption(setting: Setting) -> Iterator[Change]:
    def change(field: str, mode: str) -> Change:
        name = f"preemption.{field} {mode}"
        return Change((Kind.PREEMPTION,), name, set_field("preemption", field, to=mode))

    priorities_differ = len(set(setting.priorities.values())) > 1
    if any(queue.cohort for queue in setting.config.cluster_queues.values()):
        for mode in ("Never", "LowerPriority", "Any") if priorities_differ else ("Never", "Any"):
            yield change("reclaimWithinCohort", mode)
    if priorities_differ:
        for mode in ("Never", "LowerPriority"):
            yield change("withinClusterQueue", mode)


def _topology(setting: Setting) -> Iterator[Change]:
    """Gangs of several pods in one domain of a level, or without one."""
    levels = {level for topology in setting.config.topologies.values() for level in topology.levels}
    used = {job.topology_level for job in setting.jobs if job.topology_level}
    if used:
        yield Change(
            (Kind.TOPOLOGY,),
            "no required topology level",
            jobs=_at_level(""),
            instruction=f"Users remove the annotation {_ANNOTATION} from their jobs.",
        )
    for level in sorted(levels - {HOSTNAME}):
        yield Change(
            (Kind.TOPOLOGY,),
            f"required topology level {level}",
            jobs=_at_level(level),
            instruction=f"Users set the annotation {_ANNOTATION}: {level} on jobs of several pods.",
        )


def _at_level(level: str) -> Any:
    def change(jobs: Jobs) -> Jobs:
        return tuple(replace(j, topology_level=level) if j.pods > 1 else j for j in jobs)

    return change


def _idle_reclaim(setting: Setting) -> Iterator[Change]:
    if all(job.utilization is None for job in setting.jobs):
        return
    policies: dict[str, dict[str, object]] = {
        "Off": {},
        "OnDemand": {},
        "OnDemand, to equal priority": {"yieldsToEqualPriority": True},
        "Always": {},
    }
    for name, more in policies.items():
        mode = {"mode": name.partition(",")[0], **more}

        def edit(body: dict[str, Any], mode: dict[str, object] = mode) -> None:
            policy = (body.get("spec") or {}).get("policy") or {}
            known = policy.get("idleReclaim") or {}
            set_field("policy", "idleReclaim", to={**known, **mode})(body)

        yield Change((Kind.IDLE_RECLAIM,), f"idleReclaim {name}", only_if(_native, edit))


def _native(body: dict[str, Any]) -> bool:
    """Whether it can have fields of queuectl."""
    return body.get("apiVersion") == API_VERSION
