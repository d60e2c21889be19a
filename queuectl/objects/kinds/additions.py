"""The containers that the controller of a kind adds to the pods of a template."""

from __future__ import annotations

from dataclasses import replace

from queuectl.domain.needs import ContainerNeeds, PodNeeds, incidental, limited, requested
from queuectl.domain.workload import PodSet


def with_init(podset: PodSet, container: ContainerNeeds) -> PodSet:
    """The podset with one more init container, after those of its template."""
    assert podset.needs is not None
    return _with(podset, replace(podset.needs, init=(*podset.needs.init, container)))


def with_container(podset: PodSet, container: ContainerNeeds) -> PodSet:
    """The podset with one more container, after those of its template."""
    assert podset.needs is not None
    return _with(podset, replace(podset.needs, containers=(*podset.needs.containers, container)))


def with_default(podset: PodSet, container: ContainerNeeds) -> PodSet:
    """The podset with this container alone if it has no template, or if admission wrote its template; otherwise as it is."""
    assert podset.needs is not None
    given = tuple(replace(one, name="") for one in podset.needs.containers)
    if given not in ((), (replace(container, incidental=False),)):
        return podset
    return _with(podset, replace(podset.needs, containers=(container,)))


def _with(podset: PodSet, needs: PodNeeds) -> PodSet:
    shape = replace(podset.shape, requests=requested(needs), incidental=incidental(needs))
    return replace(podset, shape=shape, limits=limited(needs), needs=needs)
