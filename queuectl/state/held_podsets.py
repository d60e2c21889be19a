"""The podsets of a gang that holds a placement."""

from __future__ import annotations

from dataclasses import replace

from queuectl.domain.jobs import JobRecord
from queuectl.domain.ledger import Entry
from queuectl.domain.quantity import NOTHING
from queuectl.domain.workload import PodSet, PodSetPlacement, PodShape
from queuectl.state.mirror import Mirror


def held_podsets(entry: Entry, job: JobRecord, mirror: Mirror) -> tuple[PodSet, ...]:
    """The podsets of the job, with the requests that the gang's placement holds; the same object if the job still has these.

    The object can change while the pods of an attempt exist: its user edits it while its pods end, an error hides its templates, or
    the object with the templates is deleted. Until the pods have ended, they use what they requested. A podset without a slot in the
    placement stays as it is.
    """
    if entry.placement is None:
        return job.podsets
    podsets = {podset.name: podset for podset in job.podsets}
    changed = False
    for placed in entry.placement.podsets:
        podset = podsets.get(placed.podset)
        if podset is not None and entry.state.live:
            continue  # the mirror keeps the requests of a job that is not suspended
        held = _held(entry, placed, podset, mirror)
        if held is not podset:
            podsets[placed.podset], changed = held, True
    return tuple(podsets.values()) if changed else job.podsets


def _held(entry: Entry, placed: PodSetPlacement, podset: PodSet | None, mirror: Mirror) -> PodSet:
    if podset is None:
        return recorded_podset(entry, placed, mirror)
    requests = podset.shape.requests
    if entry.planned is not None and entry.planned.requests.get(podset.name) == requests:
        return podset
    held = recorded_podset(entry, placed, mirror).shape.requests
    if not held or held == requests:
        return podset
    return replace(podset, shape=replace(podset.shape, requests=held))


def recorded_podset(entry: Entry, placed: PodSetPlacement, mirror: Mirror) -> PodSet:
    """The podset without its job: each pod has the requests of its decided start; of an adopted gang, those of its largest pod."""
    pods = [
        pod for pod in mirror.pods_of(entry) if pod.podset == placed.podset and not pod.terminal
    ]
    requests = entry.planned.requests.get(placed.podset) if entry.planned is not None else None
    if requests is None:
        requests = NOTHING
        for pod in pods:
            requests = requests.at_least(pod.requests)
    count = placed.pods or placed.count or len(pods) or 1
    return PodSet(placed.podset, count, PodShape(requests))
