"""Other splits of the GPU quota of a flavor among its ClusterQueues, and its use in common. The sum stays the same."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from math import gcd
from typing import Any, Final

from queuectl.domain.quantity import GPU, PODS
from queuectl.objects.configuration.queue_config import API_VERSION
from queuectl.objects.documents import Document
from queuectl.simulate.advice.changes import Change, Kind, set_field
from queuectl.simulate.setting import Setting

_SHARES: Final = {"halfway to demand": 0.5, "by demand": 1.0}

COHORT: Final = "shared"
"""Name of the cohort that a change makes."""

_COHORT: Final = {
    "kueue.x-k8s.io/v1beta1": "cohort",
    "kueue.x-k8s.io/v1beta2": "cohortName",
    API_VERSION: "cohortName",
}

_OTHER_RESOURCES: Final = "Change the quotas of the other resources in the same proportion."

Split = dict[str, int]
"""ClusterQueue to GPUs."""


def quota_splits(given: Sequence[Document], setting: Setting) -> Iterator[Change]:
    """The GPUs of each flavor by the GPU-seconds that the jobs of its queues request, in part or fully.

    Each queue keeps enough for its largest job that fits now.
    """
    present = _present(given)
    if not present:
        return
    yield from _shared(given, present)
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
        more = _OTHER_RESOURCES if _covers_others(given) else ""
        yield Change((Kind.QUOTA,), f"quota {name}: {moved}", _edit(splits), instruction=more)


def _shared(given: Sequence[Document], present: Mapping[str, Split]) -> Iterator[Change]:
    """The ClusterQueues of a flavor, none of which has a cohort, in one cohort."""
    free = {
        document.body["metadata"]["name"]
        for document in given
        if document.kind == "ClusterQueue"
        and not any((document.body.get("spec") or {}).get(name) for name in _COHORT.values())
    }
    for flavor, quotas in sorted(present.items()):
        queues = sorted(quotas)
        if not free.issuperset(queues):
            continue

        def edit(body: dict[str, Any], queues: Sequence[str] = queues) -> None:
            if body["metadata"]["name"] in queues:
                field = _COHORT.get(str(body.get("apiVersion")), "cohortName")
                set_field(field, value=COHORT)(body)
                set_field("preemption", "reclaimWithinCohort", value="Any")(body)

        name = f"one cohort of {' and '.join(queues)}, which reclaim their quota (flavor {flavor})"
        yield Change((Kind.QUOTA,), name, edit)


def _present(given: Sequence[Document]) -> dict[str, Split]:
    """By flavor, the nominal quotas of ClusterQueues that are whole numbers; flavors of several queues only."""
    found: dict[str, Split] = defaultdict(dict)
    for document in given:
        if document.kind != "ClusterQueue":
            continue
        for flavor, resource in _resources(document.body):
            amount = str(resource.get("nominalQuota"))
            if amount.isdecimal() and len(amount) < 19:
                found[flavor][document.body["metadata"]["name"]] = int(amount)
    return {flavor: quotas for flavor, quotas in found.items() if len(quotas) > 1}


def _resources(body: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Flavor and entry of each quota of GPUs."""
    for group in (body.get("spec") or {}).get("resourceGroups") or ():
        for flavor in group.get("flavors") or ():
            for resource in flavor.get("resources") or ():
                if resource.get("name") == GPU:
                    yield str(flavor.get("name")), resource


def _covers_others(given: Sequence[Document]) -> bool:
    """Whether ClusterQueues have quota of resources other than GPUs and pods."""
    return any(
        set(group.get("coveredResources") or ()) - {GPU, PODS}
        for document in given
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
    asked = sum(demand.get(queue, 0.0) for queue in quotas)
    if not asked:
        return quotas
    wanted = {
        queue: (1 - share) * now + share * total * demand.get(queue, 0.0) / asked
        for queue, now in quotas.items()
    }
    least = {
        queue: -(-min(largest.get(queue, 0), now) // unit) * unit for queue, now in quotas.items()
    }
    found = {queue: max(least[queue], int(wanted[queue] // unit) * unit) for queue in quotas}
    while (left := total - sum(found.values())) != 0:
        step = unit if left > 0 else -unit
        open_queues = [q for q in sorted(found) if step > 0 or found[q] > least[q]]
        if not open_queues:
            return quotas
        queue = max(open_queues, key=lambda q: (wanted[q] - found[q]) * step)
        found[queue] += step
    return found


def _edit(splits: Mapping[str, Split]) -> Any:
    def edit(body: dict[str, Any]) -> None:
        name = body["metadata"]["name"]
        for flavor, resource in _resources(body):
            number = splits.get(flavor, {}).get(name)
            if number is not None and number != int(resource["nominalQuota"]):
                resource["nominalQuota"] = number

    return edit
