"""The charges of one gang for devices, without the other gangs of the cluster."""

from __future__ import annotations

from dataclasses import replace

from queuectl.devices.requests import Classes, lowered_shape
from queuectl.devices.shared import with_shared_claims
from queuectl.domain.snapshot import Admitted, Snapshot
from queuectl.domain.workload import PodSet, Workload


def with_charges(workload: Workload, classes: Classes) -> Workload:
    """The gang with the resources that are charged for its devices among its requests."""
    podsets = tuple(_charged(podset, classes) for podset in workload.podsets)
    return replace(workload, podsets=podsets) if podsets != workload.podsets else workload


def charged_gang(gang: Admitted, given: Snapshot, classes: Classes) -> Admitted:
    """The same for a gang that holds capacity, with podsets for the claims that its pods share.

    ``given``: without gangs.
    """
    if any(podset.shared_claims for podset in gang.workload.podsets):
        gang = with_shared_claims(replace(given, admitted=(gang,)), classes).admitted[0]
    return replace(gang, workload=with_charges(gang.workload, classes))


def _charged(podset: PodSet, classes: Classes) -> PodSet:
    request = classes.request_of(podset.shape)
    if request is None:
        return podset
    return replace(podset, shape=lowered_shape(podset.shape, classes.asked(request), {}, {}))
