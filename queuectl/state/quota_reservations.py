"""The ResourceQuotas of namespaces, with the use of pods that do not exist yet.

The status of a quota counts existing pods. A gang that has started a moment ago creates the others.
"""

from __future__ import annotations

from collections.abc import Iterator

from queuectl.domain.ledger import Entry, State
from queuectl.domain.resource_quota import Allowance, Coming, with_promises
from queuectl.state.ledger import Ledger
from queuectl.state.mirror import Mirror
from queuectl.state.readiness import missing


def allowances(mirror: Mirror, ledger: Ledger) -> dict[str, tuple[Allowance, ...]]:
    """The quotas by namespace, in the order of their names. Namespaces without a quota are absent."""
    found: dict[str, list[Allowance]] = {}
    for record in mirror.resource_quotas.values():
        if record.allowance.limits:
            found.setdefault(record.namespace, []).append(record.allowance)
    if not found:
        return {}
    coming: dict[str, list[Coming]] = {}
    for entry in ledger.entries(State.STARTING, State.RUNNING):
        if entry.namespace in found and not _all_there(entry):
            coming.setdefault(entry.namespace, []).extend(_coming(entry, mirror))
    return {
        namespace: tuple(
            with_promises(quota, coming.get(namespace, ()))
            for quota in sorted(quotas, key=lambda quota: quota.name)
        )
        for namespace, quotas in sorted(found.items())
    }


def _all_there(entry: Entry) -> bool:
    """Whether all pods were ready at the last observation, so that none is missing."""
    return entry.state is State.RUNNING and entry.unready_since is None


def _coming(entry: Entry, mirror: Mirror) -> Iterator[Coming]:
    """Pods of its attempt that do not exist yet."""
    job = mirror.jobs.get(entry.uid)
    if job is None or entry.placement is None:
        return
    pods = [pod for pod in mirror.pods_of(entry) if pod.attempt == entry.attempt]
    started = {p.podset: p.pods for p in entry.placement.podsets if p.pods is not None}
    for podset in job.podsets:
        most = started.get(podset.name, podset.count)
        count = min(most, missing(job, podset, pods))
        if count > 0:
            yield podset, count
