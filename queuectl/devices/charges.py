"""The charges of one gang for devices, without the other gangs of the cluster."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from queuectl.devices.requests import Classes, lowered_shape
from queuectl.devices.shared import ClaimKey, with_shared_claims
from queuectl.domain.snapshot import Admitted, Snapshot
from queuectl.domain.workload import PodSet, Workload


def with_charges(workload: Workload, classes: Classes) -> Workload:
    """The gang with the resources that are charged for its devices among its requests."""
    podsets = tuple(_charged(podset, classes) for podset in workload.podsets)
    return replace(workload, podsets=podsets) if podsets != workload.podsets else workload


def charged_gang(
    gang: Admitted, given: Snapshot, classes: Classes, elsewhere: Collection[ClaimKey] = ()
) -> Admitted:
    """The same for a gang that holds capacity, with podsets for the claims that its pods share.

    Args:
        gang: as its users know it.
        given: without gangs.
        classes: of devices.
        elsewhere: claims that count for other gangs.
    """
    if any(podset.shared_claims for podset in gang.workload.podsets):
        gang = with_shared_claims(replace(given, admitted=(gang,)), classes, elsewhere).admitted[0]
    return replace(gang, workload=with_charges(gang.workload, classes))


def _charged(podset: PodSet, classes: Classes) -> PodSet:
    request = classes.request_of(podset.shape)
    if request is None:
        return podset
    return replace(podset, shape=lowered_shape(podset.shape, classes.asked(request), {}, {}))
